"""If, Loop and Scan: their bodies as graphs, unrolled where the steps are known."""
