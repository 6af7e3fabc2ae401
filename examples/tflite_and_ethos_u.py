"""TFLite in and out, and Ethos-U: ``python examples/tflite_and_ethos_u.py [FOLDER]``.

Needs the ``tflite`` extra, which knows the schema of such files; Vela is asked where it is there.
"""

# %% In: a TFLite file as QDQ ONNX, with the same integers
from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import bars

import qdqbridge as qb

ROOT = Path(__file__).resolve().parent.parent
FOLDER = bars.folder()

graph = qb.load(ROOT / "tests/tflite_io/data/int8_network.tflite")
print(f"{len(graph.nodes)} nodes; first {graph.nodes[0].op.name}, last {graph.nodes[-1].op.name}")
qb.save(graph, FOLDER / "network.onnx", overwrite=True)
same = qb.load(FOLDER / "network.onnx").digest == graph.digest
print(f"network.onnx: the same digest when it is read again: {same}")

# %% Out: a QDQ file as TFLite, with the same integers
source = ROOT / "models/digits_cnn_s8s8_per_tensor.onnx"
qb.save(qb.load(source), FOLDER / "digits.tflite", extents={"batch": 1}, overwrite=True)
sizes = {path.name: path.stat().st_size for path in (source, FOLDER / "digits.tflite")}
bars.draw(FOLDER / "tflite_and_ethos_u.svg", "the same integers in two formats", sizes, "bytes")

# %% What runs on the NPU, in the words of Arm's compiler
if shutil.which("vela"):
    check = [sys.executable, "-m", "qdqbridge", "export", str(source), "--profile", "ethos-u"]
    check += ["--check", "--extent", "batch=1", "-o", str(FOLDER / "npu.tflite"), "--force"]
    ended = subprocess.run(check, capture_output=True, text=True, timeout=300, check=False)
    print(ended.stdout.strip().splitlines()[-1])
