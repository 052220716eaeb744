"""arguments.py: networks that draw random numbers are refused, those that could and do not are run."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sparsebnn
from sparsebnn.checks import InvalidInput
from sparsebnn.training import arguments
from sparsebnn.training.arguments import outputs_without_noise

X = torch.linspace(-0.4, 0.6, 24).reshape(2, 3, 4)


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Once(nn.Module):
    """Draws when it is called for the first time."""

    features = None

    def forward(self, x):
        if self.features is None:
            self.features = torch.randn(4, 5)
        return x @ self.features


@pytest.mark.parametrize(
    ("network", "name"),
    [
        (nn.Dropout(0.5), "bernoulli"),
        (nn.RReLU(), "rrelu_with_noise"),
        (nn.LSTM(4, 5, 2, dropout=0.5), "bernoulli"),
        (Once(), "randn"),
        (Calls(torch.randn_like), "randn_like"),
        (Calls(lambda x: x.clone().uniform_()), "uniform"),
        (Calls(lambda x: torch.bernoulli(x.sigmoid())), "bernoulli"),
        (Calls(lambda x: x.clone().bernoulli_(torch.full_like(x, 0.5))), "bernoulli"),
        (Calls(F.gumbel_softmax), "exponential"),
        (Calls(lambda x: x[torch.randperm(2)]), "randperm"),
    ],
)
def test_what_draws_is_named(network, name):
    for _ in range(2):
        with pytest.raises(InvalidInput, match=f"Got a call of {name} instead"):
            outputs_without_noise(network, X)


@pytest.mark.parametrize(
    "network",
    [
        nn.Dropout(0.0),
        nn.Dropout(0.5).eval(),
        nn.RReLU().eval(),
        nn.LSTM(4, 5),
        nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0),
        Calls(lambda x: F.scaled_dot_product_attention(x, x, x)),
        Calls(lambda x: x + torch.randn(4, generator=torch.Generator().manual_seed(0))),
        Calls(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))),
    ],
)
def test_what_draws_nothing_passes(network):
    with torch.no_grad():
        (found, _), wanted = outputs_without_noise(network, X), network(X)
    pairs = zip(found, wanted) if isinstance(found, tuple) else [(found, wanted)]
    assert all(torch.equal(*pair) for pair in pairs if torch.is_tensor(pair[0]))


def test_what_cannot_be_watched_is_refused_without_a_name():
    def noisy(x):
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)) + torch.rand(1)

    with pytest.raises(InvalidInput, match="Got random draws in its forward instead"):
        outputs_without_noise(Calls(noisy), X)


def test_another_thread_may_draw(monkeypatch):
    """The generator moves, but no operation of the network moves it."""
    real = arguments._refuse_what_draws
    asked = []
    monkeypatch.setattr(arguments, "_refuse_what_draws", lambda *given: asked.append(real(*given)))
    moved = arguments._Generators.have_moved
    first = iter([True])
    monkeypatch.setattr(arguments._Generators, "have_moved", lambda self: next(first, False) or moved(self))
    assert torch.equal(outputs_without_noise(Calls(torch.sin), X)[0], torch.sin(X))
    assert asked == [None]


def test_a_thread_that_draws_does_not_make_train_refuse():
    done = threading.Event()

    def draw():
        while not done.is_set():
            torch.rand(10)

    other = threading.Thread(target=draw)
    other.start()
    try:
        for _ in range(5):
            settings = sparsebnn.Settings(epochs=1)
            sparsebnn.train(sparsebnn.mlp([12, 8, 8, 2]), (X.flatten(1), torch.arange(2)), settings=settings)
    finally:
        done.set()
        other.join()
