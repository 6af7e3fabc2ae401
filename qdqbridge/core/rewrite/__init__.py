"""The rewriter: what a rule is, and how a set of rules is applied. Rooms have sets of their own."""
