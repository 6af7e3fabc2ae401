"""Code for CPUs as TIR: targets, vectors, loops, and how floats and integers become codes."""
