"""Sums of products in registers: the tile, the loops around it, and operands as it reads them."""
