"""Operators that only move codes."""
