"""Exported PyTorch programs, float and quantized by PT2E; only where PyTorch is installed.

PyTorch is no dependency of qdqbridge. ``pip install torch torchao onnxscript`` runs these; what
TVM's frontend writes is tested without it in ``test_read_torch.py``.
"""
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

import contextlib
import io
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyTorch's about itself
    for name in ("torch", "torchao", "onnxscript"):
        pytest.importorskip(name, reason=f"{name} is not installed: PyTorch is no dependency")
    pt2e: Any = import_module("torchao.quantization.pt2e.quantize_pt2e")
    x86: Any = import_module("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer")
    xnnpack: Any = import_module("torchao.testing.pt2e._xnnpack_quantizer")
    torch: Any = import_module("torch")

import qdqbridge as qb
from qdqbridge.errors import InputDataError, UnsupportedModelError, UnsupportedQuantization
from qdqbridge.tvm.relax.frontends import from_torch
from tests.onnx_models import ops
from tests.tvm.relax.read_cases import read_back, same

pytestmark = [pytest.mark.relax, pytest.mark.filterwarnings("ignore")]  # PyTorch's about itself
nn: Any = torch.nn
functional: Any = torch.nn.functional


class Images(nn.Module):
    """A residual, a depthwise convolution, a gate, HardSwish, SiLU, a join, a nearest resize."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU6())
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.gate, self.narrow = nn.Conv2d(8, 8, 1), nn.Conv2d(16, 8, 1)
        self.up, self.head = nn.ConvTranspose2d(8, 8, 2, 2), nn.Linear(8, 10)

    def forward(self, image: Any) -> Any:
        x = self.stem(image)
        x = x + functional.hardswish(self.depthwise(x))
        x = x * functional.hardsigmoid(self.gate(functional.adaptive_avg_pool2d(x, 1)))
        y = functional.interpolate(functional.max_pool2d(x, 2), scale_factor=2)
        x = functional.silu(self.narrow(torch.cat([x, y], 1)))
        x = functional.leaky_relu(self.up(functional.avg_pool2d(x, 2)), 0.1)
        return self.head(x.mean([-2, -1]))


class Rows(nn.Module):
    """Attention by products, LayerNorm, GELU, a class token, embedded positions, chunks."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.width = width
        self.embed, self.place = nn.Linear(8, width), nn.Embedding(9, width)
        self.token = nn.Parameter(torch.ones(1, 1, width))
        self.register_buffer("index", torch.arange(9))
        self.norm, self.mixed = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out, self.head = nn.Linear(width, width), nn.Linear(width, 10)

    def forward(self, image: Any) -> Any:
        x = self.embed(image.reshape(-1, 8, 8))
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.place(self.index)
        q, k, v = (
            part.view(-1, 9, 2, self.width // 2).transpose(1, 2)
            for part in self.mixed(self.norm(x)).chunk(3, dim=-1)
        )
        y = torch.softmax(q @ k.transpose(-2, -1) * 0.35, dim=-1) @ v
        x = x + self.out(functional.gelu(y.transpose(1, 2).reshape(-1, 9, self.width)))
        return self.head(x[:, 0])


class Fused(Rows):
    """The same by PyTorch's function for attention."""

    def forward(self, image: Any) -> Any:
        x = self.norm(self.embed(image.reshape(-1, 8, 8)))
        q, k, v = (p.unflatten(-1, (2, -1)).transpose(1, 2) for p in self.mixed(x).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.head(self.out(y).mean(1))


def quantizer(kind: str) -> Any:
    if kind == "x86":
        config = x86.get_default_x86_inductor_quantization_config()
        return x86.X86InductorQuantizer().set_global(config)
    config = xnnpack.get_symmetric_quantization_config(is_per_channel=kind == "per channel")
    return xnnpack.XNNPACKQuantizer().set_global(config)


def images() -> Any:
    torch.manual_seed(0)
    return torch.rand(16, 1, 8, 8)


def exported(model: Any, *, dynamic: bool = True) -> Any:
    shapes = ({0: torch.export.Dim("batch")},) if dynamic else None
    return torch.export.export(model, (images(),), dynamic_shapes=shapes)


def quantized(make: Any, kind: str) -> Any:
    torch.manual_seed(1)
    data, shapes = images(), ({0: torch.export.Dim.DYNAMIC},)
    model = torch.export.export(make().eval(), (data,), dynamic_shapes=shapes).module()
    prepared = pt2e.prepare_pt2e(model, quantizer(kind))
    prepared(data)
    return torch.export.export(pt2e.convert_pt2e(prepared), (data,), dynamic_shapes=shapes)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("make", [Images, Rows, Fused])
def test_float_programs_compute_what_pytorch_computes(make: Any, *, dynamic: bool) -> None:
    torch.manual_seed(1)
    model = make().eval()
    graph = from_torch(exported(model, dynamic=dynamic))
    assert [v.name for v in graph.inputs] == ["image"]
    (found,) = qb.evaluate(graph, {"image": images().numpy()}).values()
    assert np.abs(found - model(images()).detach().numpy()).max() < 1e-5
    same(read_back(graph), graph)


@pytest.mark.parametrize("make", [Rows, Fused])
def test_tvms_own_decompositions_are_read_too(make: Any) -> None:
    frontend: Any = import_module("tvm.relax.frontend.torch")
    model = make().eval()
    graph = qb.from_relax(frontend.from_exported_program(exported(model)))
    (found,) = qb.evaluate(graph, {graph.inputs[0].name: images().numpy()}).values()
    assert np.abs(found - model(images()).detach().numpy()).max() < 1e-5


@pytest.mark.parametrize("kind", ["per channel", "per tensor", "x86"])
@pytest.mark.parametrize("make", [Images, Rows])
def test_pt2e_has_the_digest_of_its_onnx_file(make: Any, kind: str, tmp_path: Path) -> None:
    program = quantized(make, kind)
    graph = from_torch(program)
    with contextlib.redirect_stdout(io.StringIO()):
        torch.onnx.export(program, (), tmp_path / "m.onnx", dynamo=True, opset_version=21)
    same(graph, qb.load(tmp_path / "m.onnx"))
    assert any(v.quant for v in graph.values())


def test_pt2e_computes_what_pytorch_computes() -> None:
    """PyTorch sums in float32 and multiplies by 1/scale: some ties round to the other side."""
    program = quantized(Images, "per channel")
    graph = from_torch(program)
    (found,) = qb.evaluate(graph, {graph.inputs[0].name: images().numpy()}).values()
    wanted = program.module()(images()).detach().numpy()
    (last,) = (v for v in graph.nodes[-1].inputs if v is not None)
    assert last.quant is not None
    assert np.abs(found - wanted).max() <= 2.5 * float(last.quant.params.scale)
    assert "Conv" in ops(graph)


def test_other_objects_are_refused() -> None:
    with pytest.raises(InputDataError, match="no exported program") as error:
        from_torch(Images())
    assert "torch.export.export" in error.value.fix


def test_training_is_refused() -> None:
    with pytest.raises(UnsupportedModelError) as error:
        from_torch(exported(Images().train()))
    assert "statistics of the batch" in error.value.why


class Shared(nn.Module):
    """Two products of one activation behind a third."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x: Any) -> Any:
        y = functional.relu(self.first(x))
        return self.second(y) + self.third(y)


def dynamically_quantized(model: Any, quantizer: Any) -> Any:
    torch.manual_seed(1)
    data, shapes = torch.randn(16, 8), ({0: torch.export.Dim.DYNAMIC},)
    prepared = pt2e.prepare_pt2e(
        torch.export.export(model.eval(), (data,), dynamic_shapes=shapes).module(), quantizer
    )
    prepared(data)
    return torch.export.export(pt2e.convert_pt2e(prepared), (data,), dynamic_shapes=shapes)


DYNAMIC = {
    "per tensor": lambda: xnnpack.XNNPACKQuantizer().set_global(
        xnnpack.get_symmetric_quantization_config(is_dynamic=True)
    ),
    "per channel": lambda: xnnpack.XNNPACKQuantizer().set_global(
        xnnpack.get_symmetric_quantization_config(is_per_channel=True, is_dynamic=True)
    ),
    "x86": lambda: x86.X86InductorQuantizer().set_global(
        x86.get_default_x86_inductor_quantization_config(is_dynamic=True)
    ),
}


@pytest.mark.parametrize("kind", DYNAMIC)
def test_dynamic_quantization_is_products_of_its_own(kind: str, tmp_path: Path) -> None:
    """PyTorch sums dequantized floats: last bits, where no tie rounds to the other side."""
    program = dynamically_quantized(Shared(), DYNAMIC[kind]())
    graph = from_torch(program)
    assert ops(graph) == ["DynamicDense", "Relu", "DynamicDense", "DynamicDense", "Add"]
    assert [note.rule for note in graph.notes] == ["smallest-scale"] * 2
    x = torch.randn(5, 8)
    wanted = program.module()(x).detach().numpy()
    (found,) = qb.evaluate(graph, {"x": x.numpy()}).values()
    # float32 sums of 8 and 16 terms
    assert np.abs(found - wanted).max() < 1e-6 * np.abs(wanted).max()
    same(read_back(graph), graph)
    qb.save(graph, tmp_path / "m.onnx")
    same(qb.load(tmp_path / "m.onnx"), graph)


def test_dynamic_quantization_that_onnx_does_not_have_is_refused() -> None:
    config = x86.get_default_x86_inductor_quantization_config(is_dynamic=True, reduce_range=True)
    program = dynamically_quantized(Shared(), x86.X86InductorQuantizer().set_global(config))
    with pytest.raises(UnsupportedQuantization) as error:
        from_torch(program)
    assert "the codes 0 to 127 of uint8" in error.value.why


def test_operators_that_tvm_does_not_know_are_named() -> None:
    class Spectrum(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.fft.rfft(x).abs()

    program = torch.export.export(Spectrum(), (torch.rand(2, 8),))
    with pytest.raises(UnsupportedModelError, match="PyTorch frontend") as error:
        from_torch(program)
    assert "fft" in error.value.why
