"""Studies: one module per table, figure or question, run by a command."""
