"""The typed graph and its meaning; NumPy only."""
