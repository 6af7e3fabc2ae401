"""Profile ``qnn``: what Hexagon's backend takes, or gets wrong; how files are written."""
