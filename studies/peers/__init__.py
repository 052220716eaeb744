"""Benchmarks of the field, with other libraries in the same program."""
