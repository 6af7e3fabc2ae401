"""What users call: the flow, the command line, reports, pages."""
