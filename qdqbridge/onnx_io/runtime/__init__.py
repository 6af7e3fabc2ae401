"""onnxruntime as reference, and models made ready for it and for other engines."""
