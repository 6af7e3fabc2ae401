"""The operator table: one row per operator, in one file per family."""
