"""Which values are quantized, in which format, and who decides their parameters."""
