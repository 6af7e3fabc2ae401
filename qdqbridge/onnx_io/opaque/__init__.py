"""Operators without a row in the operator table: carried, computed, expanded."""
