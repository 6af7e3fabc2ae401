"""The QNN dialect on Relax, today's TVM."""
