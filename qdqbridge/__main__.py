"""``python -m qdqbridge``."""

from __future__ import annotations

from qdqbridge.cli import main

if __name__ == "__main__":
    main()
