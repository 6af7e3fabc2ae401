"""What a toy NPU takes of a model: ``python examples/partition_for_npu.py [FOLDER]``.

The tutorial in ``qdqbridge/tvm/byoc/README.md`` goes on to a code generator.
"""

# %% The NPU as data: int8, small kernels, convolutions and matrix products
from __future__ import annotations

from pathlib import Path

import bars

import qdqbridge as qb
from qdqbridge.tvm.byoc import Constraints, Limits, canonical, partition, prepare

MODELS = Path(__file__).resolve().parent.parent / "models"
FOLDER = bars.folder()

npu = canonical(
    "npu",
    constraints=Constraints(
        everywhere=Limits(activations=("int8",), clamp=False),
        families={"convolution": Limits(max_kernel=3), "dense": Limits(symmetric_weights=True)},
    ),
).only("conv2d", "dense")

# %% What it takes of the file, and why it leaves the rest
graph = qb.load(MODELS / "digits_cnn_u8s8_per_channel.onnx")
_, before = partition(qb.to_relax(graph)[0], npu)
print(before.summary())
print(before.left[1].operator, *before.left[1].reasons)

# %% The model comes to the NPU: rewrites that change no number
prepared, rewrites = prepare(graph, npu)
print(*(f"{rewrite.name}: {rewrite.detail} ({rewrite.exactness})" for rewrite in rewrites))
_, after = partition(qb.to_relax(prepared)[0], npu)
print(after.summary())

# %% With every entry of the canonical table
_, full = partition(qb.to_relax(prepared)[0], canonical("npu"))
print(full.summary())
taken = {
    name: coverage.operators - len(coverage.left)
    for name, coverage in {"the file": before, "as int8": after, "all entries": full}.items()
}
bars.draw(FOLDER / "partition_for_npu.svg", "operators on the NPU, of 25", taken)
