"""The noise kernel gives the counter's numbers."""

import pytest
import torch

from sparsebnn.kernels.dispatch import tracing
from sparsebnn.random import noise

KINDS = {"normal": noise.normals, "logistic": noise.logistics}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [0, 1, 100, 101, 12345])
def test_numbers_are_the_counters(kind, count, device):
    """Recorded for the compiler or not, on any device: the numbers of the counter on the CPU."""
    make = KINDS[kind]
    seeds = noise.seed_tensor([3, 5, 9])
    with tracing():
        made = make(seeds.to(device), 7, torch.tensor(4, device=device), count, torch.float32)
    assert torch.allclose(made.cpu(), make(seeds, 7, 4, count), atol=1e-6)
