"""Relax modules as files that anybody may have written: read without running what is in them."""

from __future__ import annotations

from qdqbridge.tvm.relax.saved.reading import SUFFIXES, read_module, summary

__all__ = ["SUFFIXES", "read_module", "summary"]
