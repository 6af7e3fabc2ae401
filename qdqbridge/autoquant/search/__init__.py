"""Decisions made by trying: bits per layer, operators, fallbacks, choosers, within a budget."""
