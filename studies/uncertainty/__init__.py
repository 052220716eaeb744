"""Predictive uncertainty on five clusters: the study, how its settings were chosen, its figures."""
