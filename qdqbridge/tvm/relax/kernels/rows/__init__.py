"""Operators that look at a row or an axis at once: Softmax, norms, reductions."""
