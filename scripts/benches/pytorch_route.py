"""PyTorch networks through TVM's frontend: quantized, written as QDQ ONNX, run in onnxruntime.

``python scripts/benches/pytorch_route.py [NAME...]`` trains small networks on scikit-learn's
digits and prints one row each: top-1 of the float network in PyTorch, of the file that qdqbridge
wrote from the float graph, and of the quantized file; and which float operators are left in that.

Exits with 1 where a quantized file is more than half a point below the float network, or where the
float graph differs from PyTorch. Needs the ``models`` extra: ``pip install -e .[models,relax]``.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from pytorch_networks import ConvNext, MobileNetV3, UNet, Vit
from torch import nn

import qdqbridge as qb
from qdqbridge.tvm.relax.frontends import from_torch
from scripts.generators.make_models import (
    SEED,
    Digits,
    DigitsAttention,
    DigitsCnn,
    load_split,
    train,
)

NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "digits CNN": (DigitsCnn, 25),
    "digits transformer": (DigitsAttention, 60),
    "MobileNetV3-like": (MobileNetV3, 20),
    "ConvNeXt-like": (ConvNext, 40),
    "ViT-like": (Vit, 40),
    "U-Net-like": (UNet, 15),
}
"""A network and for how many epochs it is trained."""
CALIBRATION, MOST = 256, 0.005


def top1(path: Path, digits: Digits) -> float:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {session.get_inputs()[0].name: digits.test_x})
    return float((np.asarray(logits).argmax(axis=1) == digits.test_y).mean())


def exported(network: nn.Module) -> Any:
    batch = torch.export.Dim("batch")
    example = torch.zeros(4, 1, 8, 8)
    return torch.export.export(network, (example,), dynamic_shapes=({0: batch},))


def route(name: str, digits: Digits, folder: Path) -> bool:
    """Prints a row; returns whether it is as it should be."""
    torch.manual_seed(SEED)
    make, epochs = NETWORKS[name]
    network = train(make(), digits, epochs)
    with torch.no_grad():
        logits = network(torch.from_numpy(digits.test_x)).numpy()
    wanted = float((logits.argmax(axis=1) == digits.test_y).mean())
    graph = from_torch(exported(network))
    (result,) = qb.evaluate(graph, {graph.inputs[0].name: digits.test_x}).values()
    apart = float(np.abs(result - logits).max())
    data = {graph.inputs[0].name: digits.train_x[:CALIBRATION]}
    quantized = qb.quantize(graph, data)
    files = [folder / f"{name.replace(' ', '_')}{end}.onnx" for end in ("", "_quantized")]
    qb.save(graph, files[0])
    qb.save(quantized, files[1])
    float_file, found = (top1(file, digits) for file in files)
    left = Counter(n.op.name for n in quantized.nodes if is_float(n))
    left_text = ", ".join(f"{op} {count}" for op, count in sorted(left.items())) or "none"
    print(
        f"| {name} | {wanted:.2%} | {float_file:.2%} | {found:.2%} | {apart:.1e} | {left_text} |",
        flush=True,
    )
    return found >= wanted - MOST and apart < 1e-3


def is_float(node: Any) -> bool:
    """True for an operator that computes on float numbers alone."""
    values = [v for v in (*node.inputs, *node.outputs) if v is not None]
    plain = all(v.quant is None and v.type.dtype.is_float for v in values)
    return plain and node.op.name not in ("quantize", "dequantize")


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    digits = load_split()
    names = sys.argv[1:] or list(NETWORKS)
    print("| network | PyTorch | float file | quantized file | largest difference | float |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        good = [route(name, digits, Path(folder)) for name in names]
    sys.exit(not all(good))


if __name__ == "__main__":
    main()
