"""The graph, operators, rules, interpreter and text form: NumPy and ml_dtypes only."""
