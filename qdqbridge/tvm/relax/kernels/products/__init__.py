"""Which products have a kernel, and what its operands are: a file per kind of product."""
