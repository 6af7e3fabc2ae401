"""``python -m qdqbridge``."""

from __future__ import annotations

from qdqbridge.app.cli import main

if __name__ == "__main__":
    main()
