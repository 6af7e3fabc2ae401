"""Conformance to ONNX's text: small models, their inputs, and what must come out, bit for bit."""
