"""QOperator, QONNX, packed and fused encodings, as rules that read them as Q, DQ and ONNX's own."""
