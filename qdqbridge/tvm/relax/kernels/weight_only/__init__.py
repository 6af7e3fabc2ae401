"""Products of float32 with weights of 4 or 8 bits."""
