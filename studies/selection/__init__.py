"""Variable selection: table 3, power, exact inclusion probabilities, false discovery rates."""
