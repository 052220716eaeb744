"""Tables 1 and 2 of the paper and what belongs to them: its settings, its figures, ablations, densities."""
