"""Reading the text form of a graph."""
