"""Kernels for CPUs: generators of PrimFuncs, and the plan that joins them into one module."""
