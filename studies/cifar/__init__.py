"""Sparse Bayesian ResNets on a copy of CIFAR-10."""
