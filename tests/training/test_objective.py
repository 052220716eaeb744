"""objective.py: parts that add up, and a layer that was not called."""

import pytest
import torch
from torch import nn

import sparsebnn
from sparsebnn.checks import InvalidInput
from sparsebnn.likelihoods import Categorical
from sparsebnn.nn.passes import forward_with_kl
from sparsebnn.training.batches import Batch
from sparsebnn.training.objective import Objective
from training.runs import FAMILIES, make_data, make_network

X, Y = make_data(rows=7)
ONE = torch.ones((), dtype=torch.float64)


def batch(rows=7):
    return Batch(X, Y, torch.ones(7, dtype=torch.float64), torch.tensor(float(rows), dtype=torch.float64))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("beta", "rows"), [(0.5, 7), (0.0, 7), (7.0, 2)])
def test_parts(family, beta, rows):
    """Loss = nll + (rows/n)·β·kl over real rows; kl = Σ over layers, unscaled, as the network gives it."""
    network = make_network(family=family)
    objective = Objective(network, Categorical(3), n_data=70)
    torch.manual_seed(3)
    parts = objective(batch(rows), beta * ONE)
    assert objective.layer_names == ("0", "2")
    torch.testing.assert_close(parts.kl_by_layer.sum(), parts.kl, rtol=1e-12, atol=0)
    torch.testing.assert_close(parts.loss, parts.nll + rows / 70 * beta * parts.kl, rtol=1e-12, atol=0)
    torch.manual_seed(3)
    outputs, kl = forward_with_kl(network, X)
    torch.testing.assert_close(parts.kl, kl, rtol=1e-12, atol=0)
    torch.testing.assert_close(
        parts.nll, nn.functional.cross_entropy(outputs, Y, reduction="sum"), rtol=1e-12, atol=0
    )


def test_a_layer_used_twice_is_one_term():
    objective = Objective(make_network("converted"), Categorical(3), n_data=5)
    x, y = make_data("converted", rows=5)
    parts = objective(Batch(x, y, torch.ones(5).double(), torch.tensor(5.0).double()), ONE)
    assert objective.layer_names == ("stem", "shared", "head")
    assert parts.kl_by_layer.shape == (3,)


class Lazy(nn.Module):
    """Holds a layer that its forward does not reach."""

    def __init__(self):
        super().__init__()
        self.used = sparsebnn.Linear(4, 3, dtype=torch.float64)
        self.unused = sparsebnn.Linear(2, 2, dtype=torch.float64)

    def forward(self, x):
        return self.used(x)


def test_a_layer_that_is_not_called_is_named():
    network = Lazy()
    with pytest.raises(RuntimeError) as error:
        Objective(network, Categorical(3), n_data=7)(batch(), ONE)
    assert f"The layer {network.unused} was not called" in str(error.value)
    with pytest.raises(InvalidInput, match="'n_data' of Objective"):
        Objective(network, Categorical(3), n_data=0)
