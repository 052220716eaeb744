"""Randomness as an argument: counter-based numbers, the noise of a forward pass, where training starts."""
