"""initial.py: parameters start where the record says, each kind from its own distribution."""

import math

import pytest
import torch

from sparsebnn.init import He, Initial, Normal, Uniform, fill
from sparsebnn.nn.image_networks import lenet
from sparsebnn.nn.layers import Linear
from sparsebnn.nn.networks import initialize


@pytest.mark.parametrize(
    ("start", "mean", "std"),
    [
        (Uniform(-15.0, 10.0), -2.5, 25 / math.sqrt(12)),
        (Normal(-9.0, 0.1), -9.0, 0.1),
        (He(), 0.0, math.sqrt(2 / 100)),
        (He(gain=0.5), 0.0, 0.5 * math.sqrt(2 / 100)),
    ],
)
@pytest.mark.parametrize("size", [(400, 100), (400, 25, 2, 2)])
def test_starts_have_their_moments(start, mean, std, size):
    """Mean and standard deviation within 4 standard errors (kurtosis at most 3 bounds the second).

    The fan-in of a convolution is channels times kernel.
    """
    parameter = torch.empty(size)
    fill(parameter, start)
    n = parameter.numel()
    assert abs(float(parameter.mean()) - mean) < 4 * std / n**0.5
    assert abs(float(parameter.std()) - std) < 4 * std / (2 * n) ** 0.5


def test_each_parameter_has_its_own_start():
    """A layer's parameters are drawn from the entries of the record that bear their names."""
    initial = Initial(
        mean=Uniform(1.0, 2.0),
        raw_std=Uniform(3.0, 4.0),
        inclusion_logit=Uniform(5.0, 6.0),
        bias_mean=Uniform(7.0, 8.0),
        bias_raw_std=Uniform(9.0, 10.0),
        z0_mean=Uniform(11.0, 12.0),
        z0_log_var=Uniform(13.0, 14.0),
        auxiliary=Uniform(15.0, 16.0),
    )
    layer = Linear(5, 4, family="flow", initial=initial, family_options={"hidden": (3,)})
    expected = {
        "weights.conditional.mean": 1,
        "weights.conditional.raw_std": 3,
        "weights.conditional.inclusion_logit": 5,
        "biases.mean": 7,
        "biases.raw_std": 9,
        "weights.z0_mean": 11,
        "weights.z0_log_var": 13,
        "weights.auxiliary_direction": 15,
        "weights.auxiliary_mean": 15,
        "weights.auxiliary_log_var": 15,
    }
    values = dict(layer.named_parameters())
    for name, low in expected.items():
        assert bool(((values[name] >= low) & (values[name] <= low + 1)).all()), name
    left = {name for name in values if name not in expected}
    assert all("_flow." in name for name in left)


@pytest.mark.parametrize("start", [Uniform(-1.0, 1.0), Normal(0.0, 1.0), He()])
@pytest.mark.parametrize("shape", [(6, 5, 3, 3), (2, 3, 1, 2)])
def test_values_do_not_depend_on_the_memory_format(start, shape):
    plain = torch.empty(shape)
    others = [plain.to(memory_format=torch.channels_last), torch.empty(shape[::-1]).permute(3, 2, 1, 0)]
    for parameter in (plain, *others):
        torch.manual_seed(3)
        fill(parameter, start)
    assert not any(other.is_contiguous() for other in others)
    assert all(torch.equal(other, plain) for other in others)


def test_a_channels_last_network_starts_from_the_same_values():
    plain, other = lenet(), lenet().to(memory_format=torch.channels_last)
    for network in (plain, other):
        initialize(network, 5)
    assert not other[3].weights.mean.is_contiguous()
    for mine, theirs in zip(plain.parameters(), other.parameters()):
        assert torch.equal(mine, theirs)
