"""What is told of data and networks that quantize badly, and what mends it."""
