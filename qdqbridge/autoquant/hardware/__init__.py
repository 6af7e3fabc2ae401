"""Arithmetic that is not the contract's: narrow accumulators, other roundings."""
