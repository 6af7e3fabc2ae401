"""Comparisons of engines, and tables of what was found."""
