"""Operators that look at one element at a time, of codes."""
