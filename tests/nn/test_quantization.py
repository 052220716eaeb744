"""quantization.py: the kernel computes the reference's integers, and little is lost."""

import numpy as np
import pytest
import torch
from torch import nn

from contracts.members import generator
from nn.test_sparse import ACTIVATIONS, images, needs_compiler, pruned
from sparsebnn.checks import InvalidInput
from sparsebnn.kernels.compiler import Kernel, kernel
from sparsebnn.nn import quantization
from sparsebnn.nn.compaction import Take
from sparsebnn.nn.networks import InputSkip
from sparsebnn.nn.quantization import quantize

ROWS = (1, 2, 16, 17, 35)
NETWORKS = {
    "dense": (lambda: nn.Sequential(nn.Linear(40, 33), nn.ReLU(), nn.Linear(33, 5)), (40,)),
    "images": (lambda: images(padding=1), (2, 12, 12)),
    "strides": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=(2, 1), padding=(2, 1), dilation=(1, 2)),
            nn.LeakyReLU(0.2),
            nn.AvgPool2d(2),
            nn.SiLU(),
            nn.Flatten(),
            nn.Linear(4 * 2 * 3, 3),
        ),
        (2, 8, 9),
    ),
    "reflect": (lambda: nn.Sequential(nn.Conv1d(2, 3, 3, padding=2, padding_mode="reflect")), (2, 9)),
    "taken": (lambda: nn.Sequential(Take(torch.tensor([1, 4])), nn.Linear(2, 3)), (5,)),
    "empty": (lambda: nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), (5,)),
    "skip": (
        lambda: InputSkip([nn.Linear(30, 20), nn.Linear(20 + 30, 18), nn.Linear(18 + 30, 4)], nn.ReLU()),
        (30,),
    ),
    "images, then skip": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1),
            nn.Tanh(),
            nn.MaxPool2d(3),
            nn.Flatten(),
            InputSkip([nn.Linear(16, 9), nn.Linear(9 + 16, 3)], nn.SiLU()),
        ),
        (2, 6, 6),
    ),
    "wide": (lambda: nn.Sequential(nn.Linear(66_000, 2)), (66_000,)),
}


def made(kind):
    build, shape = NETWORKS[kind]
    network = pruned(build(), 0.4)
    if kind == "empty":
        with torch.no_grad():
            network[0].weight.zero_()
    return network, shape


def close_to_reference(quantized, x):
    """Where a value lies between two levels, rounding may go either way; elsewhere they are the same."""
    found, expected = quantized(x), quantized.reference(x)
    spread = float(expected.max() - expected.min()) or 1.0
    off = (found - expected).abs()
    assert float(off.max()) < 0.02 * spread
    assert float(off.mean()) < 1e-4 * spread


@needs_compiler
@pytest.mark.parametrize("kind", NETWORKS)
def test_the_kernel_computes_the_reference(kind):
    network, shape = made(kind)
    quantized = quantize(network, torch.randn(100, *shape, generator=generator(0)))
    for rows in ROWS:
        close_to_reference(quantized, torch.randn(rows, *shape, generator=generator(rows)))


@needs_compiler
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
def test_activations(activation):
    chain = nn.Sequential(nn.Linear(9, 20), activation, nn.Linear(20, 4), activation)
    skip = nn.Sequential(InputSkip([nn.Linear(9, 20), nn.Linear(20 + 9, 4)], activation), activation)
    for network in (chain, skip):
        quantized = quantize(pruned(network, 0.5), torch.randn(300, 9, generator=generator(0)))
        close_to_reference(quantized, torch.randn(33, 9, generator=generator(1)))


def by_integers(network, rows, x):
    """An input-skip network of two layers, by its definition: Python's integers, and single precision."""
    one = np.float32

    def scale_of(values):
        low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
        scale = float(one((high - low) / 255))
        return scale, round(-low / scale)

    def levels(value, scale, zero):
        at = one(value) * one(1.0 / scale) + one(zero)
        return int(np.floor(min(max(at, one(0)), one(255)) + one(0.5)))

    first, last = network.layers
    scale_x, zero_x = scale_of(rows)
    scale_h, zero_h = scale_of(torch.relu(first(rows)).detach())
    results = []
    for row in x.tolist():
        inputs = [(levels(value, scale_x, zero_x), zero_x, scale_x) for value in row]
        values = inputs
        for layer in (first, last):
            sums = []
            for weights, bias in zip(layer.weight.tolist(), layer.bias.tolist()):
                parts = [w * scale for w, (_, _, scale) in zip(weights, values)]
                unit = max(max(map(abs, parts)) / 127, abs(bias) / 2**22) or 1.0
                whole = sum(round(part / unit) * (q - zero) for part, (q, zero, _) in zip(parts, values))
                sums.append(one(whole + round(bias / unit)) * one(unit))
            units = [(levels(max(value, one(0)), scale_h, zero_h), zero_h, scale_h) for value in sums]
            values = units + inputs
        results.append(sums)
    return torch.tensor(np.array(results))


def test_inputs_that_are_passed_on_by_hand():
    """Inputs of another scale than the units: exactly the integers of the definition."""
    network = pruned(InputSkip([nn.Linear(7, 11), nn.Linear(11 + 7, 3)], nn.ReLU()), 0.6)
    with torch.no_grad():
        network.layers[0].weight.mul_(30.0)
    rows, x = (torch.randn(n, 7, generator=generator(n)) for n in (200, 40))
    quantized = quantize(network, rows)
    expected = by_integers(network, rows, x)
    assert torch.equal(quantized.reference(x), expected)
    if kernel().run is not None:
        close_to_reference(quantized, x)
    exact = network(x).detach()
    assert float((expected - exact).abs().max()) < 0.05 * float(exact.max() - exact.min())


@pytest.mark.parametrize(
    "kind", ["dense", "images", "strides", "taken", "empty", "skip", "images, then skip"]
)
def test_little_is_lost(kind):
    """The reference, which is not ours to trust either, beside the network itself."""
    network, shape = made(kind)
    x = torch.randn(400, *shape, generator=generator(0))
    expected = network(x).detach()
    off = (quantize(network, x).reference(x) - expected).abs()
    assert float(off.max()) < 0.05 * float(expected.max() - expected.min()) + 1e-6


def test_values_by_hand():
    """Inputs 0 to 255 at scale 1, one weight of 127 levels, a bias."""
    network = nn.Sequential(nn.Linear(1, 1))
    with torch.no_grad():
        network[0].weight.fill_(12.7)
        network[0].bias.fill_(-5.08)
    quantized = quantize(network, torch.tensor([[0.0], [255.0]]))
    op = quantized.program.ops[0]
    assert op.level.tolist() == [127]
    assert op.bias_level.tolist() == [-51]  # -5.08 / 0.1 = -50.8
    x = torch.tensor([[0.0], [1.4], [3.0], [255.0], [300.0], [-4.0]])
    expected = (127.0 * torch.tensor([[0.0], [1.0], [3.0], [255.0], [255.0], [0.0]]) - 51.0) * 0.1
    torch.testing.assert_close(quantized(x), expected)
    torch.testing.assert_close(quantized.reference(x), expected)


def test_without_a_compiler(monkeypatch):
    network, shape = made("dense")
    x = torch.randn(20, *shape, generator=generator(0))
    quantized = quantize(network, x)
    expected = quantized.reference(x)
    monkeypatch.setattr(quantization, "kernel", lambda: Kernel(None, "no C compiler was found"))
    assert torch.equal(quantized(x), expected)


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: quantize(nn.Sequential(nn.Linear(2, 2)), torch.zeros(0, 2)), "an empty batch"),
        (
            lambda: quantize(nn.Sequential(nn.Linear(2, 2)), torch.full((1, 2), torch.nan)),
            "'rows' of quantize",
        ),
        (
            lambda: quantize(nn.Sequential(nn.Conv1d(1, 1, 1), nn.MaxPool1d(2)), torch.zeros(2, 1, 4)),
            "weights",
        ),
        (
            lambda: quantize(nn.Sequential(nn.Linear(2, 2)), torch.ones(3, 2))(torch.ones(3, 4)),
            "rows of shape",
        ),
    ],
)
def test_messages(build, match):
    with pytest.raises(InvalidInput, match=match):
        build()
