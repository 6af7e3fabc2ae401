"""Writes the conformance cases of Q and DQ: ``python -m scripts.generators.conformance FOLDER``.

Needs onnx and numpy only. The folder's README says what stands where.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from qdqbridge.targets.conformance.folders import write_cases
from qdqbridge.targets.conformance.situations import cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="an empty folder, or one that is made")
    folder = parser.parse_args().folder
    if folder.is_dir() and any(folder.iterdir()):
        parser.error(f"{folder} is not empty: give a new folder")
    write_cases(folder, cases())
    print(f"wrote {len(cases())} cases to {folder}")


if __name__ == "__main__":
    main()
