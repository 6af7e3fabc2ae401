// Runs a saved library between marks for QEMU's plugin count_instructions.c: marked_runs LIBRARY INPUT EXTENT...
// INPUT holds the elements of the one input, of float32; as marked_runs.py, it runs once and then two times.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>

namespace ffi = tvm::ffi;

struct Aligned {
  void AllocData(DLTensor* t) { t->data = std::aligned_alloc(64, (ffi::GetDataSize(*t) + 63) / 64 * 64); }
  void FreeData(DLTensor* t) { std::free(t->data); }
};

int main(int argc, char** argv) {
  ffi::Module library = ffi::Module::LoadFromFile(argv[1]);
  ffi::Module model = (*library->GetFunction("vm_load_executable"))().cast<ffi::Module>();
  (*model->GetFunction("vm_initialization"))(static_cast<int>(kDLCPU), 0, 2);
  std::vector<int64_t> extents;
  for (int i = 3; i < argc; i++) extents.push_back(std::atol(argv[i]));
  const DLDataType type{kDLFloat, 32, 1};
  ffi::Tensor x = ffi::Tensor::FromNDAlloc(Aligned(), ffi::Shape(extents), type, DLDevice{kDLCPU, 0});
  std::ifstream(argv[2], std::ios::binary).read(static_cast<char*>(x.data_ptr()), ffi::GetDataSize(x));
  ffi::Function run = *model->GetFunction("main");
  run(x);
  std::fprintf(stderr, "file: %s\n", argv[1]);
  for (int i = 0; i < 2; i++) {
    getppid();
    run(x);
    getppid();
  }
}
