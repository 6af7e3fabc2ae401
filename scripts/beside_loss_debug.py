"""Puts ``blame`` beside onnxruntime's own debugging of quantization, on spoiled files.

Run as ``python -m scripts.beside_loss_debug [COUNT [FOLDER]]``: files of onnxruntime's quantizer
with one tensor spoiled (:mod:`scripts.blame_sabotage`). ``onnxruntime.quantization.qdq_loss_debug``
gives each tensor an error against the float model, matched by names; the tensor of the largest one
is what it names, of activations and weights together. It has no causes and no repairs. What is
spoiled is kept in the folder, where ``scripts/beside_quant_analyzer.py`` finds it.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnxruntime.quantization import CalibrationDataReader, qdq_loss_debug

import qdqbridge as qb
from scripts.blame_sabotage import MODELS, OWN, Quantized, own
from tests.autoquant.attribution.sabotage import KINDS, Sabotage, named, spoil

debug: Any = qdq_loss_debug
_STEP = 5
"""Of the cases, every fifth: each kind and each network is among twenty."""


def worst_of_loss_debug(file: Quantized, model: Path, spoiled: Path, folder: Path) -> str:
    """Returns the tensor with the largest error, by its name in the float model."""
    shown = [folder / "float_shown.onnx", folder / "spoiled_shown.onnx"]
    for source, target in zip((model, spoiled), shown, strict=True):
        debug.modify_model_output_intermediate_tensors(str(source), str(target))
    feeds = [{name: array} for name, array in file.data.items()]
    recorded = [
        debug.collect_activations(
            str(path), _Feeds(feeds), execution_providers=["CPUExecutionProvider"]
        )
        for path in shown
    ]
    matched = debug.create_activation_matching(recorded[1], recorded[0])
    errors: dict[str, float] = {}
    for name, error in debug.compute_activation_error(matched).items():
        errors[name] = error.get("xmodel_err", error["qdq_err"])
    try:
        weights = debug.compute_weight_error(debug.create_weight_matching(str(model), str(spoiled)))
    except (ValueError, KeyError) as error:  # it refuses some weights, and says which
        print("  weights not compared:", error)
        weights = {}
    errors |= weights
    return min(errors, key=errors.__getitem__)


class _Feeds(CalibrationDataReader):
    """Feeds samples."""

    def __init__(self, feeds: list[dict[str, np.ndarray]]) -> None:
        self.rows = iter(feeds)

    def get_next(self) -> Any:
        return next(self.rows, None)


def is_named(name: str, made: Sabotage) -> bool:
    return name in made.tensors or any(t.startswith(f"{name}_") for t in made.tensors)


def keep(
    folder: Path, case: int, file: Quantized, spoiled: Path, model: Path, made: Sabotage
) -> None:
    """Writes a spoiled file, its samples, and what is known of it."""
    shutil.copy(spoiled, folder / f"{case}.onnx")
    arrays: dict[str, Any] = dict(file.fed)
    np.savez(folder / f"{case}.npz", **arrays)
    known = {"float": str(model), "label": file.label, "kind": made.kind, "tensors": made.tensors}
    (folder / f"{case}.json").write_text(json.dumps(known))


def main(count: int, kept: Path | None = None) -> int:
    logging.disable(logging.WARNING)
    ort.set_default_logger_severity(3)
    ours = theirs = done = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain = [each for each in OWN if not each[3]]
        files = [own(folder, *each) for each in plain]
        for case in range(count):
            seed = case * _STEP
            index = seed // KINDS % len(files)
            file, model = files[index], MODELS / f"digits_{plain[index][0]}_float.onnx"
            made = spoil(file.path, folder / "spoiled.onnx", seed, file.fed)
            if kept is not None:
                keep(kept, case, file, folder / "spoiled.onnx", model, made)
            found = qb.blame(
                file.original, folder / "spoiled.onnx", file.data, repairs=0, nodes=False
            )
            tensor = worst_of_loss_debug(file, model, folder / "spoiled.onnx", folder)
            pair = named(found.tensors[0], made), is_named(tensor, made)
            ours, theirs, done = ours + pair[0], theirs + pair[1], done + 1
            said = ["right" if right else worst for right, worst in zip(
                pair, (found.tensors[0].name, tensor), strict=True)]  # fmt: skip
            print(f"{seed} {file.label}: {made.kind} of {made.tensors[0]}: blame {said[0]},",
                  f"qdq_loss_debug {said[1]}", flush=True)  # fmt: skip
    print(f"{done} files: blame names the tensor first in {ours}, qdq_loss_debug in {theirs}")
    return 0


if __name__ == "__main__":
    given = sys.argv[1:]
    sys.exit(main(int(given[0]) if given else 20, Path(given[1]) if given[1:] else None))
