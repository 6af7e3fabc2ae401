"""From an ONNX file to a raw graph: header, structure, quantization, nodes, results."""
