"""A decoder in 4-bit weights writes on TVM: ``python examples/decode_language_model.py``.

The model takes and gives a key-value cache, as files of onnxruntime-genai's model builder do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]

import qdqbridge as qb

MODEL = Path(__file__).resolve().parent.parent / "models" / "decoder" / "float.onnx"
SAVED = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("decoder_int4.onnx")
PROMPT, TOKENS = "The digest ", 120

Arrays = dict[str, Any]


def feeds(ids: np.ndarray, past: int, cache: Arrays) -> Arrays:
    """What a step is given: the new tokens, a mask over all, and what it said of the past."""
    mask = np.ones((1, past + ids.shape[1]), np.int64)
    return {"input_ids": ids, "attention_mask": mask, **cache}


def decode(run: Callable[[Arrays], Arrays], cache: Arrays) -> str:
    """Returns the text of the likeliest bytes, one after the other."""
    ids, past, text = np.array([[*PROMPT.encode()]]), 0, PROMPT
    for _ in range(TOKENS):
        results = run(feeds(ids, past, cache))
        past += ids.shape[1]
        cache = {name: results[name.replace("past_key_values", "present")] for name in cache}
        ids = results["logits"][:, -1].argmax(axis=-1)[:, None]
        text += chr(ids.item())
    return text


# Weights in 4 bits, a scale for every 32 of them: MatMulNBits in the file. Extents stay open.
empty = {f"past_key_values.{i}.{k}": np.zeros((1, 2, 0, 16), np.float32)
         for i in range(2) for k in ("key", "value")}  # fmt: skip
sample = feeds(np.array([[*b"what a model computes is said by its types"]]), 0, empty)
graph = qb.quantize(MODEL, sample, target="weight-only", weights="int4", block=32)
qb.save(graph, SAVED, overwrite=True)
print(f"{SAVED.name}: {SAVED.stat().st_size} bytes for {MODEL.stat().st_size}")

# One executable for prompts and single tokens, and any length of the cache.
executable = qb.compile(graph)
text = decode(executable.run, empty)
print(text)

session: Any = onnxruntime.InferenceSession(SAVED, providers=["CPUExecutionProvider"])
names = [output.name for output in session.get_outputs()]
theirs = decode(lambda given: dict(zip(names, session.run(None, given), strict=True)), empty)
print(f"onnxruntime writes the same: {theirs == text}")
