"""Paths through any graph: reach, active weights and lengths against the graph of single units."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

import sparsebnn
from contracts.members import generator
from sparsebnn.checks import InvalidInput
from sparsebnn.selection import active_paths, median_reach, path_probability


def spread_out(network, seed, low=-1.5, high=1.2):
    g = generator(seed)
    with torch.no_grad():
        for name, p in network.named_parameters():
            if name.endswith("inclusion_logit"):
                p.copy_(low + (high - low) * torch.rand(p.shape, generator=g))
    return network.double()


def skip_network(sizes, seed, **options):
    return spread_out(sparsebnn.mlp(sizes, input_skip=True, **options), seed)


class Residual(nn.Module):
    """x → h = a(Wx + x), then V[h; x] with a second branch added."""

    def __init__(self, inputs=2, outputs=1):
        super().__init__()
        self.first, self.side = sparsebnn.Linear(inputs, inputs), sparsebnn.Linear(inputs, outputs)
        self.last = sparsebnn.Linear(2 * inputs, outputs)
        self.register_buffer("shift", torch.ones(inputs))

    def forward(self, x):
        h = torch.relu(self.first(x) + x) * self.shift
        return self.last(torch.cat([h, x], dim=-1)) + self.side(torch.tanh(h))


def edges(network):
    """Weights as (layer, index, from unit, to unit); identities; inputs and outputs; the number of units."""
    found, fixed, count = [], [], itertools.count()

    def units(n):
        return [next(count) for _ in range(n)]

    def connect(name, layer, sources):
        targets = units(layer.out_features)
        for o, i in itertools.product(range(layer.out_features), range(layer.in_features)):
            found.append((name, (o, i), sources[i], targets[o]))
        return targets

    if isinstance(network, Residual):
        x = units(network.first.in_features)
        h = connect("first", network.first, x)
        fixed += list(zip(x, h))
        outputs = connect("last", network.last, h + x)
        side = connect("side", network.side, h)
        return found, fixed + list(zip(side, outputs)), x, outputs, next(count)
    x = units(network.in_features)
    h = []
    for place, layer in enumerate(network.layers):
        h = connect(f"layers.{place}", layer, h + x)
    return found, fixed, x, h, next(count)


def closure(adjacency):
    """(structures, from, to): whether a path of any length, also none, leads there."""
    reach = adjacency | np.eye(adjacency.shape[-1], dtype=bool)
    for _ in range(4):
        reach = (reach.astype(np.float32) @ reach.astype(np.float32)) > 0
    return reach


def inclusions(network):
    return {name: layer.weights for name, layer in sparsebnn.nn.bayesian_layers(network)}


def enumerated(network):
    """P(an input reaches an output), over all structures of single weights or groups."""
    weights, fixed, x, outputs, n = edges(network)
    families = inclusions(network)
    groups = {name: f.group_prob().detach().numpy() for name, f in families.items()}
    keys = [(name, at) for name, g in groups.items() for at in np.ndindex(g.shape)]
    probs = np.array([groups[name][at] for name, at in keys])
    structures = np.array(list(itertools.product((False, True), repeat=len(keys))))
    place = {key: i for i, key in enumerate(keys)}
    adjacency = np.zeros((len(structures), n, n), dtype=bool)
    for name, (o, i), source, target in weights:
        shape = groups[name].shape
        key = (name, (o if shape[0] > 1 else 0, i if shape[1] > 1 else 0))
        adjacency[:, source, target] |= structures[:, place[key]]
    for source, target in fixed:
        adjacency[:, source, target] = True
    mass = np.where(structures, probs, 1 - probs).prod(1)
    reach = closure(adjacency)[:, x][:, :, outputs].any(2)
    return torch.from_numpy(mass @ reach)


SIZES = [[2, 1], [2, 2, 1], [1, 2, 2], [3, 1, 1], [1, 1, 1, 2], [1, 2, 1, 1], [2, 1, 1, 1], [1, 1, 2, 1]]


def test_probabilities_of_skip_networks_are_those_of_enumeration():
    """Among them shared inclusions, whose layers are two."""
    for seed in range(104):
        sizes = SIZES[seed % len(SIZES)]
        options = {"group_by": ("weight", "input", "output")[seed // len(SIZES) % 3]}
        network = skip_network(sizes, seed, family_options=options)
        reach = path_probability(network)
        torch.testing.assert_close(reach.prob, enumerated(network), rtol=0, atol=1e-10)
        assert (reach.error == 0).all()


def test_wide_skip_networks_are_drawn(monkeypatch):
    network = skip_network([4, 5, 3, 4, 2], 3, family_options={})
    spread_out(network, 3, -3.5, 0.0)
    exact = path_probability(network).prob
    monkeypatch.setattr("sparsebnn.selection.paths._EXACT_UNITS", 1)
    drawn = path_probability(network, n_draws=3000, seed=1)
    assert (drawn.error > 0).all()
    assert ((drawn.prob - exact).abs() < 4 * drawn.error).all()


def test_residual_modules():
    """Enumerated if structures are few, else drawn: 10 weights are 1,024 structures."""
    network = spread_out(Residual(), 0)
    exact = enumerated(network)
    torch.testing.assert_close(path_probability(network, n_draws=1024).prob, exact, rtol=0, atol=1e-10)
    drawn = path_probability(network, n_draws=400)
    assert ((drawn.prob - exact).abs() < 4 * (exact * (1 - exact) / 400).sqrt()).all()
    assert (drawn.error > 0).all()


@pytest.mark.parametrize("kind", ["skip", "residual"])
def test_active_weights_and_lengths(kind):
    """The oracle looks at the units that an input reaches and that reach an output, and walks every path."""
    for seed in range(50):
        if kind == "skip":
            sizes = [4, 5, 2] if seed % 2 else [3, 4, 3, 2]
            network = spread_out(sparsebnn.mlp(sizes, input_skip=True), seed, -2.0, 1.0)
        else:
            network = spread_out(Residual(4, 2), seed, -2.0, 1.0)
        weights, fixed, x, outputs, n = edges(network)
        kept = {name: (f.inclusion_prob() > 0.5) for name, f in inclusions(network).items()}
        present = [edge for edge in weights if kept[edge[0]][edge[1]]]
        steps = [[] for _ in range(n)]
        adjacency = np.zeros((n, n), dtype=bool)
        for weight, source, target in [(1, s, t) for _, _, s, t in present] + [(0, s, t) for s, t in fixed]:
            adjacency[source, target] = True
            steps[source].append((target, weight))
        reach = closure(adjacency[None])[0]
        found = active_paths(network)
        live = [[e for e in present if reach[x, e[2]].any() and reach[e[3], o]] for o in outputs]
        assert found.by_output == tuple(map(len, live))
        every = set().union(*live)
        assert found.n_weights == len(every) == sparsebnn.density(network, active=True).count
        masks = {name: torch.zeros_like(mask) for name, mask in kept.items()}
        for name, at, _, _ in every:
            masks[name][at] = True
        assert all(torch.equal(found.weights[name], mask) for name, mask in masks.items())
        walked, waiting = Counter(), [(unit, 0) for unit in x]
        while waiting:
            unit, length = waiting.pop()
            walked[length] += unit in outputs
            waiting += [(target, length + weight) for target, weight in steps[unit]]
        assert [walked[length] for length in range(len(found.lengths))] == list(found.lengths)
        assert torch.equal(found.inputs, torch.from_numpy(reach[x][:, outputs].any(1)))
        assert torch.equal(median_reach(network) > 0, found.inputs)


def test_images():
    """A LeNet with input-skip: all weights are active in a full network, and few in a sparse one."""
    full = active_paths(sparsebnn.lenet(family="gaussian", input_skip=True), (1, 28, 28))
    assert full.n_weights == full.n_all == 800 + 38_400 + 256 * 768 + 84 * (256 + 768) + 10 * (84 + 768)
    network = spread_out(sparsebnn.lenet(input_skip=True), 0, -3.0, 0.1)
    small = active_paths(network, (1, 28, 28))
    assert 0 < small.n_weights < sparsebnn.density(network).count
    assert small.n_weights == sparsebnn.density(network, active=True, shape=(1, 28, 28)).count


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = sparsebnn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else -self.layer(x)


class Sorting(Branching):
    def forward(self, x):
        return torch.sort(self.layer(x)).values


@pytest.mark.parametrize(("kind", "name"), [(Branching, "Branching"), (Sorting, "sort")])
def test_what_is_not_known_is_refused_by_name(kind, name):
    with pytest.raises(InvalidInput, match=rf"'network' of active_paths.*{name}"):
        active_paths(kind())
