"""Steps that make a float graph easier to quantize, or make up for what quantization did."""
