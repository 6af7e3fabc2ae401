"""Coverage-guided fuzzing: ``python -m tests.fuzzing.guided CORPUS -max_total_time=600``.

Needs ``pip install atheris`` and takes libFuzzer's options. Without a corpus it begins with our own
models; every case is damaged by :mod:`tests.fuzzing.mutations`, and kept where it reaches new code.
"""

from __future__ import annotations

import atexit
import sys
import tempfile
from collections import Counter
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

atheris: Any = import_module("atheris")

with atheris.instrument_imports(include=["qdqbridge"]):
    from tests.fuzzing.measured import run
    from tests.fuzzing.mutations import mutated
    from tests.fuzzing.target import put_through, seeds

FOLDER = Path(tempfile.mkdtemp())
RESULTS: Counter[str] = Counter()
FINDINGS = Path("guided_findings")


def one(data: bytes) -> None:
    """Runs one case and keeps what is wrong with it."""
    found = run(data, FOLDER)
    RESULTS[found["result"] or "FINDING"] += 1
    if found["finding"]:
        FINDINGS.mkdir(exist_ok=True)
        path = FINDINGS / f"{RESULTS['FINDING']:04}"
        path.with_suffix(".onnx").write_bytes(data)
        path.with_suffix(".txt").write_text(found["finding"])


def damaged(data: bytes, most: int, seed: int) -> bytes:
    """Returns another case made of one of the corpus."""
    return mutated(data, Random(seed))[:most]


def main() -> None:
    """Runs libFuzzer."""
    corpus = next((Path(text) for text in sys.argv[1:] if not text.startswith("-")), None)
    if corpus is not None and not list(corpus.glob("*")):
        corpus.mkdir(parents=True, exist_ok=True)
        for number, data in enumerate(seeds([])):
            (corpus / f"seed_{number}").write_bytes(data)
    put_through(seeds([])[0], FOLDER)
    atexit.register(lambda: print(dict(RESULTS), flush=True))
    atheris.Setup([*sys.argv, "-max_len=80000", "-rss_limit_mb=4000", "-timeout=60"], one,
                  custom_mutator=damaged)  # fmt: skip
    atheris.Fuzz()


if __name__ == "__main__":
    main()
