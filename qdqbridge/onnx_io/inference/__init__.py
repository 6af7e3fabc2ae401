"""Element types and shapes, by ONNX's own inference where it can be trusted."""
