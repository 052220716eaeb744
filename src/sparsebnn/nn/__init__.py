"""Layers and networks: a layer is a family of weight distributions combined with an op.

``passes`` runs a network: which draw of the weights, from what noise, at what KL.
"""

from sparsebnn.nn.compaction import compact
from sparsebnn.nn.conversion import convert
from sparsebnn.nn.convolutions import Conv1d, Conv2d
from sparsebnn.nn.description import density
from sparsebnn.nn.image_networks import lenet, resnet
from sparsebnn.nn.layers import BayesianLayer, Linear
from sparsebnn.nn.networks import InputSkip, bayesian_layers, initialize, mlp
from sparsebnn.nn.passes import collect_kl, forward_with_kl
from sparsebnn.nn.quantization import quantize
from sparsebnn.nn.sparse import SparseNetwork

__all__ = [
    "BayesianLayer",
    "Conv1d",
    "Conv2d",
    "InputSkip",
    "Linear",
    "SparseNetwork",
    "bayesian_layers",
    "collect_kl",
    "compact",
    "convert",
    "density",
    "forward_with_kl",
    "initialize",
    "lenet",
    "mlp",
    "quantize",
    "resnet",
]
