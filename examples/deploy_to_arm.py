"""A model for 64-bit Arm and for Cortex-M: ``python examples/deploy_to_arm.py [FOLDER]``."""

# %% For a board with Linux: one shared library; it needs TVM's runtime there
from __future__ import annotations

import re
from pathlib import Path

import bars

import qdqbridge as qb

MODELS = Path(__file__).resolve().parent.parent / "models"
FOLDER = bars.folder()

graph = qb.load(MODELS / "digits_cnn_u8s8_per_channel.onnx")
library = FOLDER / "digits-arm.so"
try:
    qb.compile(graph, target="aarch64-linux-gnu/cortex-a76", threads=4).save(library)
    print(f"{library.name}: {library.stat().st_size:,} bytes")
except (
    qb.QdqBridgeError
) as error:  # no compiler for aarch64 here: the message says which to install
    print(error)

# %% For a microcontroller: C99 without a runtime
qb.save(graph, FOLDER / "digits", target="c/cortex-m4", extents={"batch": 1}, overwrite=True)
header = (FOLDER / "digits" / "digits.h").read_text("utf-8")
sizes = {
    name.lower().replace("_", " "): int(number)
    for name, number in re.findall(r"#define DIGITS_(\w+_BYTES) (\d+)", header)
}
print(sizes)
bars.draw(FOLDER / "deploy_to_arm.svg", "memory on a Cortex-M4", sizes, "bytes")
