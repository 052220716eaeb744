"""own_noise.py: operations that draw random numbers are errors, those that could and do not are none."""

import pytest
import torch
import torch.nn.functional as F

from sparsebnn.checks import InvalidInput
from sparsebnn.training.own_noise import _DROPPED, NoOwnNoise, _draws_nothing

X, LSTM = torch.rand(2, 3, 4), torch.nn.LSTM(4, 5)


@pytest.mark.parametrize(
    ("draw", "name"),
    [
        (lambda: F.dropout(X, 0.5), "bernoulli"),
        (lambda: torch.randn_like(X), "randn_like"),
        (lambda: X.clone().uniform_(), "uniform"),
        (lambda: torch.bernoulli(X), "bernoulli"),
        (lambda: F.gumbel_softmax(X), "exponential"),
        (lambda: torch.randperm(3), "randperm"),
        (lambda: F.rrelu(X, training=True), "rrelu_with_noise"),
    ],
)
def test_what_draws_is_named(draw, name):
    with pytest.raises(InvalidInput, match=f"Got a call of {name} instead"), NoOwnNoise():
        draw()


@pytest.mark.parametrize(
    "call",
    [
        lambda: F.dropout(X, 0.0),
        lambda: F.dropout(X, 0.5, training=False),
        lambda: F.scaled_dot_product_attention(X, X, X),
        lambda: F.rrelu(X),
        lambda: LSTM(X),
        lambda: X.sort(),
    ],
)
def test_what_draws_nothing_passes(call):
    with NoOwnNoise():
        call()


def _tagged():
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads() if hasattr(packet, "overloads") else ():
            op = getattr(packet, overload)
            if torch.Tag.nondeterministic_seeded in op.tags:
                yield op


def test_every_operation_that_may_drop_units_is_known():
    """Also those of other devices: cuDNN's recurrent networks say 'dropout'."""
    found = set()
    for op in _tagged():
        names = [one.name for one in op._schema.arguments if "drop" in one.name and str(one.type) == "float"]
        assert set(names) <= set(_DROPPED), op
        for name in names:
            assert _draws_nothing(op, (), {name: 0.0})
            assert not _draws_nothing(op, (), {name: 0.5})
            found.add(op._schema.name)
    assert {"aten::_cudnn_rnn", "aten::_scaled_dot_product_flash_attention"} <= found
