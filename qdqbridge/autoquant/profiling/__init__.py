"""What a float model does on data: statistics of every tensor, by many processes."""
