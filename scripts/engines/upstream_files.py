"""Writes minimal files of faults that engines have, with a table of them: ``docs/upstream/``.

Run as ``python scripts/engines/upstream_files.py``.
``tests/targets/engines/test_real_upstream.py`` runs each file on its engine, at the versions of
the ``engines`` extra, and says when a fault is gone.
"""

from __future__ import annotations

import csv
from pathlib import Path

import faults_onnxruntime
import faults_openvino
import faults_qnn_htp
import onnx

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "upstream"
COLUMNS = ("file", "engine", "fault", "what")
FAULTS = (*faults_qnn_htp.FAULTS, *faults_openvino.FAULTS, *faults_onnxruntime.FAULTS)


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "faults.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for fault in FAULTS:
            onnx.save(fault.build(), FOLDER / fault.file)
            table.writerow([fault.file, fault.engine, fault.fault, fault.what])


if __name__ == "__main__":
    main()
