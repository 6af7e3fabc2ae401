"""Decisions made by trying: bits per layer, presets, fallbacks, choosers, within a budget."""
