"""Operators over windows of channels-last images: pools and Resize."""
