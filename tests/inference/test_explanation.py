"""Contributions and what-if curves against finite differences and networks whose weights are known."""

import numpy as np
import pytest
import torch
from torch import nn

import sparsebnn
from contracts.members import generator
from sparsebnn.checks import InvalidInput
from sparsebnn.inference import explain, what_if
from sparsebnn.likelihoods import Categorical
from sparsebnn.nn.compaction import compact


def certain(network, seed=0, std=-40.0):
    """Random means and inclusions; with a std of almost 0 every draw of the median model is the same."""
    g = generator(seed)
    with torch.no_grad():
        for name, p in network.named_parameters():
            if name.endswith("inclusion_logit"):
                p.copy_(torch.where(torch.rand(p.shape, generator=g) < 0.6, 40.0, -40.0))
            elif name.endswith("raw_std"):
                p.fill_(std)
            else:
                p.copy_(torch.randn(p.shape, generator=g))
    return network.double().eval()


def images():
    return nn.Sequential(
        sparsebnn.nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), sparsebnn.Linear(12, 2)
    )


def differences(function, x, h=1e-6):
    """∂f/∂x by central differences, (rows, inputs, outputs)."""
    flat = x.flatten(1)
    found = []
    for j in range(flat.shape[1]):
        step = torch.zeros_like(flat)
        step[:, j] = h
        up, down = ((flat + s * step).reshape(x.shape) for s in (1, -1))
        found.append((function(up) - function(down)) / (2 * h))
    return torch.stack(found, 1).detach()


CASES = {
    "mlp": (lambda: sparsebnn.mlp([4, 6, 3]), (4,)),
    "skip": (lambda: sparsebnn.mlp([4, 6, 5, 3], input_skip=True), (4,)),
    "tanh": (lambda: sparsebnn.mlp([4, 6, 3], activation="tanh"), (4,)),
    "images": (images, (1, 6, 6)),
}


@pytest.mark.parametrize("model", ["average", "median"])
@pytest.mark.parametrize("kind", CASES)
def test_finite_differences(kind, model):
    make, shape = CASES[kind]
    network = certain(make())
    x = torch.randn(5, *shape, generator=generator(1), dtype=torch.float64)
    small = compact(network).network
    found = explain(network, x, n_draws=3, model=model)
    wanted = differences(small, x) * x.flatten(1).unsqueeze(-1)
    np.testing.assert_allclose(found.contributions, wanted, atol=1e-6)
    np.testing.assert_allclose(found.value, small(x).detach(), atol=1e-10)
    np.testing.assert_allclose(found.low, found.high, atol=1e-9)
    one = explain(network, x, n_draws=3, model=model, output=1)
    np.testing.assert_allclose(one.contributions[..., 0], found.contributions[..., 1], atol=1e-12)
    assert one.outputs == ("output 1",)


def test_without_biases_a_relu_network_has_no_base():
    """It is homogeneous, so its linear pieces go through 0; from another reference f(x) = base + Σ too."""
    network = certain(sparsebnn.mlp([4, 6, 5, 3], input_skip=True, bias=False))
    x = torch.randn(6, 4, generator=generator(2), dtype=torch.float64)
    found = explain(network, x, n_draws=2)
    np.testing.assert_allclose(found.base, 0.0, atol=1e-10)
    moved = explain(network, x, n_draws=2, reference=[0.1, 0.2, -0.3, 0.4])
    np.testing.assert_allclose(moved.value, found.value, atol=1e-10)
    assert not np.allclose(moved.base, 0.0)


def test_intervals_are_those_of_the_draws():
    """A linear network: a contribution is x_j · w_j, so its quantiles are those of the weight's Gaussian."""
    network = sparsebnn.mlp([2, 1], family="gaussian").double()
    layer = network[0]
    with torch.no_grad():
        layer.weights.mean.copy_(torch.tensor([[1.0, -2.0]]))
    std = layer.weights.std.detach()[0].numpy()
    found = explain(network, [[2.0, 1.0], [1.0, 3.0]], n_draws=4000, level=0.9)
    x = np.array([[2.0, 1.0], [1.0, 3.0]])
    # Four standard errors of a quantile, where the density is .103 / std.
    error = 4 * std * x * np.sqrt(0.05 * 0.95 / 4000) / 0.103
    assert (np.abs(found.low[..., 0] - x * (np.array([1.0, -2.0]) - 1.6449 * std)) < error).all()
    assert (np.abs(found.high[..., 0] - x * (np.array([1.0, -2.0]) + 1.6449 * std)) < error).all()


def test_curves_are_the_networks():
    network = certain(sparsebnn.mlp([3, 5, 4], input_skip=True), seed=3)
    x = torch.randn(7, 3, generator=generator(4), dtype=torch.float64)
    small = compact(network).network

    def expected(**values):
        changed = x.clone()
        for j, value in values.items():
            changed[:, int(j[1:])] = value
        return torch.softmax(small(changed), 1).mean(0).detach().numpy()

    curve = what_if(network, x, 1, points=4, n_draws=2, likelihood=Categorical(4), names=["a", "b", "c"])
    assert curve.names == ("b",)
    np.testing.assert_allclose(curve.grid[0], np.linspace(float(x[:, 1].min()), float(x[:, 1].max()), 4))
    np.testing.assert_allclose(curve.mean, [expected(x1=v) for v in curve.grid[0]], atol=1e-8)
    form = Categorical(4)
    both = what_if(network, x, [2, 0], grid=[[0.5, 1.0], [0.0, 1.0, 2.0]], n_draws=2, likelihood=form)
    wanted = [[expected(x2=a, x0=b) for b in (0.0, 1.0, 2.0)] for a in (0.5, 1.0)]
    np.testing.assert_allclose(both.mean, wanted, atol=1e-8)
    frame = both.frame()
    line = frame[(frame.x2 == 1.0) & (frame.x0 == 2.0) & (frame.output == "output 3")]
    np.testing.assert_allclose(line["mean"], [wanted[1][2][3]], atol=1e-8)


def test_frames_plots_and_replicates(tmp_path):
    torch.manual_seed(0)
    x, y = torch.randn(40, 3), torch.arange(40) % 2
    settings = sparsebnn.Settings(epochs=2)
    run = sparsebnn.train(sparsebnn.mlp([3, 4, 2]), (x, y), settings=settings, replicates=2, progress=False)
    found = explain(run, x[:3], n_draws=5)
    frame = found.frame()
    assert len(frame) == 3 * 3 * 2
    sums = frame.groupby(["row", "output"]).contribution.sum().to_numpy().reshape(3, 2)
    np.testing.assert_allclose(sums + found.base, found.value)
    assert found.summary().splitlines()[1].startswith(found.names[int(found.importance.argmax())])
    for name, drawn in (
        ("row", found.plot(0, path=tmp_path / "row.png")),
        ("global", found.plot(path=tmp_path / "global.png")),
        ("curve", what_if(run, x, 0, n_draws=4, points=3).plot(path=tmp_path / "curve.png")),
        ("map", what_if(run, x, [0, 1], n_draws=4, points=3).plot(path=tmp_path / "map.png")),
    ):
        assert drawn.get_xlabel()
        assert (tmp_path / f"{name}.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda n, x: explain(n, x, level=1.0), "level"),
        (lambda n, x: explain(n, x, output=3), "output"),
        (lambda n, x: explain(n, x, names=["a"]), "names"),
        (lambda n, x: explain(n, x[0]), "x"),
        (lambda n, x: explain(n, x, reference=[1.0]), "reference"),
        (lambda n, x: explain(3, x), "network"),
        (lambda n, x: what_if(n, x, 3), "inputs"),
        (lambda n, x: what_if(n, x[:1], 0), "grid"),
        (lambda n, x: what_if(n, x, [0, 1], grid=[1.0]), "grid"),
    ],
)
def test_bad_arguments(call, name):
    with pytest.raises(InvalidInput, match=f"'{name}' of "):
        call(sparsebnn.mlp([3, 4, 2]), torch.randn(4, 3))
