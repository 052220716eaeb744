"""Sparse Bayesian neural networks: every weight with its posterior inclusion probability."""

from sparsebnn.conversion import convert
from sparsebnn.initial import He, Initial, Normal, Uniform
from sparsebnn.layers import Conv1d, Conv2d, Linear
from sparsebnn.networks import density, initialise, lenet, mlp
from sparsebnn.passes import collect_kl, forward_with_kl
from sparsebnn.priors import GaussianPrior, HierarchicalPrior, SpikeSlabPrior

__version__ = "0.1.0"
