"""Files of several quantizers in one form: ``python examples/import_and_explain.py [FOLDER]``."""

# %% What is read: quantization is in the types of values, and no Q or DQ is left
from __future__ import annotations

from pathlib import Path

import bars
import onnx

import qdqbridge as qb

MODELS = Path(__file__).resolve().parent.parent / "models"
FOLDER = bars.folder()

cnn = qb.load(MODELS / "digits_cnn_u8s8_per_channel.onnx")
attention = qb.load(MODELS / "digits_attention_u8s8_per_channel.onnx")
for graph in (cnn, attention):
    print(f"{len(graph.nodes)} nodes, digest {graph.digest[:16]}")

# %% The digest is of what the file means: another opset, and QOperator, are the same network
older, qoperator = FOLDER / "opset_13.onnx", FOLDER / "qoperator.onnx"
qb.save(cnn, older, opset=13, overwrite=True)
qb.save(cnn, qoperator, profile="qoperator", overwrite=True)
for path in (older, qoperator):
    print(f"{path.name}: the same network: {qb.load(path).digest == cnn.digest}")

# %% What somebody should know of it: what stayed float and why, what was assumed
for note in qb.explain(attention):
    print(f"{note.rule}: {note.reason}")

# %% How much is left to compile: nodes of the files, as they are and in canonical form
counts: dict[str, int] = {}
for path in sorted(MODELS.glob("digits_*8s8_*.onnx")):
    kind = path.stem.removeprefix("digits_").partition("_per")[0]
    nodes = onnx.load(path).graph.node  # pyright: ignore[reportUnknownMemberType]
    counts[f"{kind}, file"] = len(nodes)
    counts[f"{kind}, canonical"] = len(qb.load(path).nodes)
bars.draw(FOLDER / "import_and_explain.svg", "nodes to compile", counts)
qb.view(attention, path=FOLDER / "attention.html")  # the whole graph, in a browser
