"""Two engines beside each other: every value, how far apart, and why."""
