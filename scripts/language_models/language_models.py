"""Language models of onnxruntime-genai's model builder, through everything, into one CSV file.

``check FOLDER -o RESULTS.csv`` takes every ``*.onnx`` below a folder: load, print, explain; save,
and compare all results of the saved file with the original's in onnxruntime, bit for bit, for a
prompt, a step and a chunk, as many of these as onnxruntime runs itself, without its optimizations
(status) and with all of them (optimized); read the saved file back (digest, diff). ``decode``
compiles each file and compares a prompt and 32 tokens with the cache on TVM with onnxruntime: the
largest difference of the logits, and of hidden states that are results, relative to the largest of
them, and the tokens. Both take up where they were stopped: what is in the CSV file is not done
again.

``scripts/language_models/language_model_files.py`` makes such files (in an environment of its own).
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

import qdqbridge as qb
from qdqbridge.app.pipeline import diff

FIELDS = (
    "file", "step", "status", "nodes", "digest", "steps", "optimized", "difference", "tokens",
    "seconds",
)  # fmt: skip
TOKENS, PROMPT, CAPACITY = 32, 9, 64
STEPS = ((0, 7), (7, 1), (5, 3))
"""Tokens in the cache, and new ones."""
CLOSE = 1e-4
"""How far results may be apart, relative to the largest: sums of float32 in another order."""
HIDDEN = -1e30
"""Below that are the logits of tokens that a mask hides."""
_TYPES = {
    "tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64,
    "tensor(int32)": np.int32, "tensor(uint8)": np.uint8, "tensor(int8)": np.int8,
    "tensor(bool)": np.bool_,
}  # fmt: skip
Feeds = dict[str, np.ndarray]
Run = Callable[[Feeds], Mapping[str, np.ndarray]]


class Decoder:
    """A file with a cache, as onnxruntime sees it."""

    def __init__(self, path: Path, *, optimized: bool = False) -> None:
        options = ort.SessionOptions()
        levels = ort.GraphOptimizationLevel
        options.graph_optimization_level = (
            levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
        )
        options.log_severity_level, options.intra_op_num_threads = 4, 1
        self.session = ort.InferenceSession(str(path), options)
        self.inputs = {each.name: each for each in self.session.get_inputs()}
        self.outputs = [each.name for each in self.session.get_outputs()]
        proto = onnx.load(path, load_external_data=False)
        names = {a.name for node in proto.graph.node for a in node.attribute if a.i}
        kinds = {node.op_type for node in proto.graph.node}
        self.in_place = {
            node.output[i - 2]: node.input[i]
            for node in proto.graph.node if node.op_type == "SparseAttention"
            for i in (3, 4)
        }  # fmt: skip
        whole = {"SparseAttention", "GroupQueryAttention"} <= kinds
        self.windowed = whole or "sliding_window_cache" in names
        config = path.with_name("genai_config.json")
        told = json.loads(config.read_text()) if config.exists() else {}
        self.head = told.get("model", {}).get("decoder", {}).get("head_size", 16)

    def shape(self, name: str, past: int, length: int) -> list[int]:
        """Returns the shape of an input at a step."""
        filled = name in self.in_place.values()
        past = CAPACITY if self.windowed or filled else past
        said = {"batch": 1, "cache_dim": self.head, "head": self.head, "total": past + length,
                " + ": past + length, "past": past, "encoder": 32, "frames": 128,
                "sequence": length}  # fmt: skip
        return [
            extent if isinstance(extent, int)
            else next((n for word, n in said.items() if word in str(extent)), 32)
            for extent in self.inputs[name].shape
        ]  # fmt: skip

    @property
    def cached(self) -> list[str]:
        """The inputs that are the cache; those of an encoder's results stay as they are."""
        return [name for name in self.inputs if name.startswith("past")]

    def feeds(self, tokens: np.ndarray, past: int, state: Mapping[str, np.ndarray]) -> Feeds:
        """Returns what a step is given; inputs that are neither tokens nor cache are random."""
        length, rng = tokens.shape[1], np.random.default_rng(past)
        given: Feeds = {}
        for name, each in self.inputs.items():
            kind = _TYPES[each.type]
            if name in ("input_ids", "decoder_input_ids"):
                given[name] = tokens.astype(kind)
            elif name.endswith("attention_mask"):
                shape = self.shape(name, past, length)
                if name == "attention_mask":  # of what it is given and, behind a cache, that too
                    shape = [1, past + length if self.cached else length]
                given[name] = np.ones(shape, kind)
            elif name == "use_cache_branch":
                given[name] = np.array([past > 0])
            elif name == "position_ids":  # of pictures and sounds three, which text has alike
                places = np.arange(past, past + length, dtype=kind)
                given[name] = np.broadcast_to(places, self.shape(name, past, length)).copy()
            elif name in state:
                given[name] = state[name]
            elif kind is not np.float32 and kind is not np.float16:
                given[name] = rng.integers(0, 2, self.shape(name, past, length)).astype(kind)
            else:
                shape = self.shape(name, past, length)
                given[name] = (rng.standard_normal(shape) * 0.1).astype(kind)
        return given

    def decoded(self, run: Run) -> Iterator[Feeds]:
        """Yields a step's results but for the cache: of a prompt, then of 32 greatest tokens."""
        rng, state = np.random.default_rng(0), Feeds()
        for name in self.cached:
            crossed = "cross" in name or "encoder" in name
            made = rng.standard_normal(self.shape(name, 0, 0)) * (0.1 if crossed else 0)
            state[name] = made.astype(_TYPES[self.inputs[name].type])
        tokens, past = np.random.default_rng(0).integers(3, 250, (1, PROMPT)), 0
        for _ in range(TOKENS + 1):
            results = run(self.feeds(tokens, past, state))
            past += tokens.shape[1]
            for name in self.cached:
                names = (
                    name.replace("past_key_values", "present"),
                    name.replace("past", "present"),
                )
                later = next((each for each in names if each in results), None)
                if later is not None and results[later].size:  # a merged decoder's are empty
                    state[name] = results[later]
            tokens = results["logits"][:, -1].argmax(-1)[:, None]
            yield {name: x for name, x in results.items() if not name.startswith("present")}

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Returns onnxruntime's results by name."""
        if self.in_place:
            return self._in_place(feeds)
        results = self.session.run(None, feeds)
        return {n: np.asarray(r) for n, r in zip(self.outputs, results, strict=True)}

    def _in_place(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Returns the results of a model that writes into its cache."""
        binding = self.session.io_binding()
        given = {n: ort.OrtValue.ortvalue_from_numpy(x.copy()) for n, x in feeds.items()}
        for name, value in given.items():
            binding.bind_ortvalue_input(name, value)
        for name in self.outputs:
            if name in self.in_place:
                binding.bind_ortvalue_output(name, given[self.in_place[name]])
            else:
                binding.bind_output(name)
        self.session.run_with_iobinding(binding)
        results = binding.get_outputs()
        return {n: np.array(each.numpy()) for n, each in zip(self.outputs, results, strict=True)}


def check(path: Path) -> dict[str, Any]:
    """Returns the row of a file that is read, saved and read back."""
    graph = qb.load(path)
    assert graph.text()
    list(qb.explain(graph))
    with tempfile.TemporaryDirectory() as scratch:
        saved = Path(scratch) / "model.onnx"
        qb.save(graph, saved)
        again = qb.load(saved)
        row = {"nodes": len(graph.nodes), "digest": graph.digest[:16], "steps": 0}
        if again.digest != graph.digest or diff(graph, again):
            return row | {"status": "other digest"}
        try:
            Decoder(path)
        except Exception as error:  # files for other processors than the CPU
            return row | {"status": _refused(error)}
        differ, ran, refused = _differing(path, saved, optimized=False)
        optimized, _, _ = _differing(path, saved, optimized=True)
    status = "ok" if not differ else f"other bits: {sorted(differ)[:3]}"
    return row | {"status": status if ran else refused, "steps": ran,
                  "optimized": "ok" if not optimized else f"other bits: {sorted(optimized)[:3]}",
                  }  # fmt: skip


def _refused(error: Exception) -> str:
    """Returns the status of a file that onnxruntime does not run."""
    return f"onnxruntime: {' '.join(str(error).split())[:200]}"


def _differing(path: Path, saved: Path, *, optimized: bool) -> tuple[set[str], int, str]:
    """Returns results with other bits, how many steps ran, and why others did not."""
    original, copy = Decoder(path, optimized=optimized), Decoder(saved, optimized=optimized)
    copy.head, differ, ran, refused = original.head, set[str](), 0, ""
    for past, length in STEPS:
        tokens = np.random.default_rng(past).integers(3, 250, (1, length))
        feeds = original.feeds(tokens, past, {})
        try:
            wanted = original.run(feeds)
        except Exception as error:  # files of half floats have masks that fit prompts alone
            refused = _refused(error)
            continue
        found, ran = copy.run(feeds), ran + 1
        unsaid = "present" if original.windowed else "\0"  # rows behind a window's last
        differ |= {
            name for name, array in wanted.items()
            if not name.startswith(unsaid) and array.tobytes() != found[name].tobytes()
        }  # fmt: skip
    return differ, ran, refused


def decode(path: Path, reference: Path) -> dict[str, Any]:
    """Returns the row of a file that decodes on TVM.

    Args:
        path: The file.
        reference: What runs in onnxruntime: the same file, or one that means the same.
    """
    decoder, graph = Decoder(reference), qb.load(path)
    executable, names = qb.compile(graph), {value.name for value in graph.inputs}

    def run(feeds: Feeds) -> Mapping[str, np.ndarray]:
        return executable.run({name: x for name, x in feeds.items() if name in names})

    if not decoder.cached or "logits" not in decoder.outputs:
        return _run(decoder, run)
    wanted = list(decoder.decoded(decoder.run))
    found = list(decoder.decoded(run))
    pairs = list(zip(wanted, found, strict=True))
    worst = max(_apart(array, b[name]) for a, b in pairs for name, array in a.items())
    tokens = [[x["logits"][:, -1].argmax(-1) for x in pair] for pair in pairs]
    same = all(np.array_equal(a, b) for a, b in tokens)
    status = "ok" if same and worst < CLOSE else "same tokens" if same else "other tokens"
    return {"status": status, "difference": f"{worst:.1e}",
            "tokens": len(pairs) - 1}  # fmt: skip


def _run(decoder: Decoder, run: Run) -> dict[str, Any]:
    """Returns the row of a file that nothing is decoded with: all results, for two lengths."""
    worst = 0.0
    for length in (PROMPT, 5):
        tokens = np.random.default_rng(length).integers(3, 250, (1, length))
        feeds = decoder.feeds(tokens, 0, {})
        wanted, found = decoder.run(feeds), run(feeds)
        unsaid = "present" if decoder.windowed else "\0"  # as in check
        said = [name for name in wanted if not name.startswith(unsaid)]
        worst = max(worst, *(_apart(wanted[name], found[name]) for name in said))
    return {"status": "ok" if worst < CLOSE else "other results", "difference": f"{worst:.1e}"}


def _apart(wanted: np.ndarray, found: np.ndarray) -> float:
    """Returns the largest difference, relative to the largest number.

    Logits of tokens that a mask hides are no numbers to be compared with: they have to be equal.
    """
    hidden = wanted < HIDDEN if np.issubdtype(wanted.dtype, np.floating) else np.zeros(1, bool)
    if hidden.any():
        if not np.array_equal(wanted[hidden], found[hidden]):
            return np.inf
        wanted, found = wanted[~hidden], found[~hidden]
    wanted, found = wanted.astype(np.float64), found.astype(np.float64)
    if not wanted.size:
        return 0.0
    return float(np.abs(wanted - found).max() / (np.abs(wanted).max() or 1))


def main() -> int:
    """Runs the script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=("check", "decode"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--only", default="", help="files whose path contains this")
    parser.add_argument(
        "--reference", type=Path, help="run the files of the same names of this folder in "
        "onnxruntime, where it has no kernels for what decodes"
    )  # fmt: skip
    options = parser.parse_args()
    done: set[tuple[str, str]] = set()
    if options.output.exists():
        with options.output.open(newline="") as file:
            done = {(row["file"], row["step"]) for row in csv.DictReader(file)}
    with options.output.open("a", newline="") as file:
        rows = csv.DictWriter(file, FIELDS)
        if not done:
            rows.writeheader()
        for path in sorted(options.folder.rglob("*.onnx")):
            name = str(path.relative_to(options.folder))
            if options.only not in name or (name, options.step) in done:
                continue
            start = time.perf_counter()
            row: dict[Any, Any] = {"file": name, "step": options.step}
            try:
                beside = (options.reference or path.parent) / path.name
                row |= check(path) if options.step == "check" else decode(path, beside)
            except Exception as error:  # whatever a library raises is this file's row
                row["status"] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
            row["seconds"] = f"{time.perf_counter() - start:.1f}"
            rows.writerow(row)
            file.flush()
            print(*row.values(), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
