"""ONNX files in and out; the only place that imports onnx."""
