"""Kernels for what compilers leave slow, each with an eager twin it is tested against."""
