"""Profile ``ort``: what onnxruntime's optimizations fuse, and what they change."""
