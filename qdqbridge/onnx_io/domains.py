"""The domain of ONNX's own operators, which has two names."""

from __future__ import annotations

ONNX_DOMAINS = ("", "ai.onnx")


def plain_domain(domain: str) -> str:
    """Returns the one name that the bridge uses: empty for ONNX's own domain."""
    return "" if domain in ONNX_DOMAINS else domain
