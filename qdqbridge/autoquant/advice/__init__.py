"""What is reported of data and networks that quantize badly, and what mends it."""
