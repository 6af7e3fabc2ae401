"""Operators without a row in the operator table: kept, computed, expanded."""
