"""Randomly generated modules: train for two steps, predict, and compare with draws made by hand.

The oracle knows only each layer's parameters and the plain structure of the module. It samples whole weight
tensors with NumPy and evaluates the module with ordinary operations.
"""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import sparsebnn
from sparsebnn.checks import InvalidInput
from sparsebnn.inference.sampling import draw_outputs
from sparsebnn.nn.networks import bayesian_layers

ROWS, INPUTS, OUTPUTS = 3, 4, 2
FAMILIES = ("gaussian", "spike_slab", "concrete", "flow", "mnf")


class Block(nn.Module):
    """A random tree of operations on ``(rows, width)`` or ``(rows, positions, width)`` tensors.

    ``recipe`` is a list of steps; layers live in a shared list, so a step may use a layer that another step
    has used (the same module), or one whose family is tied to another's.
    """

    def __init__(self, layers, recipe, head):
        super().__init__()
        self.layers, self.recipe, self.head = nn.ModuleList(layers), recipe, head
        self.frozen = nn.Linear(INPUTS, INPUTS)
        self.frozen.requires_grad_(False)
        self.register_buffer("shift", torch.linspace(-0.2, 0.2, INPUTS))
        self.norm = nn.BatchNorm1d(INPUTS, affine=False).eval()
        with torch.no_grad():
            self.norm.running_mean.copy_(torch.tensor([0.3, -0.2, 0.1, 0.0]))
            self.norm.running_var.copy_(torch.tensor([1.5, 0.8, 1.2, 0.9]))

    def forward(self, x):
        for step, *given in self.recipe:
            x = getattr(self, f"_{step}")(x, *given)
        return self.head(x)

    def _layer(self, x, i):
        return self.layers[i](x)

    def _tanh(self, x):
        return torch.tanh(x)

    def _residual(self, x, i):
        return x + 0.5 * torch.tanh(self.layers[i](x))

    def _twice(self, x, i):
        return torch.tanh(self.layers[i](torch.tanh(self.layers[i](x))))

    def _branches(self, x, i, j):
        return self.layers[i](x) - self.layers[j](torch.flip(x, [-1]))

    def _positions(self, x, i):
        stacked = torch.stack([x, 0.5 * x, -x], dim=1)
        return self.layers[i](stacked).mean(1)

    def _flat_positions(self, x, i):
        stacked = torch.stack([x, 0.7 * x], dim=1)
        return self.layers[i](stacked.reshape(-1, x.shape[-1])).reshape(len(x), 2, -1).sum(1)

    def _frozen(self, x):
        return self.frozen(x)

    def _buffer(self, x):
        return x + self.shift

    def _standardize(self, x):
        return self.norm(x)


def generate(seed):
    """A random module, and whether it applies a layer over positions."""
    random = np.random.default_rng(seed)
    mixed = random.random() < 0.5
    families = [str(random.choice(FAMILIES)) for _ in range(4)]
    if not mixed:
        families = families[:1] * 4

    def linear(outputs, family):
        options = {"hidden": (5,)} if family in ("flow", "mnf") else {}
        start = sparsebnn.init.Initial(
            raw_std=sparsebnn.init.Normal(-1.0, 0.3), inclusion_logit=sparsebnn.init.Uniform(-2.0, 2.0)
        )
        share = {"group_by": "input"} if family == "spike_slab" and random.random() < 0.3 else {}
        return sparsebnn.Linear(
            INPUTS,
            outputs,
            bool(random.random() < 0.7),
            family=family,
            initial=start,
            family_options={**options, **share},
            sampling=str(random.choice(["local", "weights"], p=[0.8, 0.2])),
            dtype=torch.float64,
        )

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = [linear(INPUTS, family) for family in families[:3]]
        if random.random() < 0.3:
            layers[1].weights = layers[0].weights  # tied distribution
        if random.random() < 0.2:
            layers[2] = layers[0]  # one module under two names
        kinds = ["layer", "tanh", "residual", "twice", "branches", "positions", "flat_positions"]
        kinds += ["frozen", "buffer", "standardize"]
        recipe = []
        for kind in random.choice(kinds, size=int(random.integers(2, 5))):
            count = {"branches": 2, "tanh": 0, "frozen": 0, "buffer": 0, "standardize": 0}.get(str(kind), 1)
            recipe.append((str(kind), *(int(i) for i in random.integers(0, 3, count))))
        used = {i for step in recipe for i in step[1:]}
        # Every layer must be called.
        recipe += [("residual", i) for i in range(3) if i not in used]
        module = Block(layers, recipe, linear(OUTPUTS, families[3])).double()
    return module


# --- the oracle ------------------------------------------------------------------------------------


def draw_family(family, n_draws, random):
    """Exact draws of a weight tensor, ``(draws, …)``, with NumPy."""
    inner = getattr(family, "conditional", family)
    mean, std = (t.detach().numpy() for t in (inner.mean, nn.functional.softplus(inner.raw_std)))
    mean = np.broadcast_to(mean, (n_draws, *mean.shape))
    if hasattr(family, "z0_mean"):
        noise = torch.from_numpy(random.standard_normal((n_draws, family.dim)))
        z0 = family.z0_mean + torch.exp(0.5 * family.z0_log_var) * noise
        mean = mean * family.q_flow(z0)[0].detach().numpy()[:, None, :]
    weight = mean + std * random.standard_normal(mean.shape)
    if hasattr(inner, "inclusion_logit"):
        prob = 1.0 / (1.0 + np.exp(-inner.inclusion_logit.detach().numpy()))
        weight = weight * (random.random((n_draws, *prob.shape)) < prob)
    return torch.from_numpy(weight)


@torch.no_grad()
def explicit(module, x, n_draws, seed):
    """Outputs ``(draws, rows, outputs)`` of plain modules whose weights are drawn, one family one draw."""
    random = np.random.default_rng(seed)
    plain = copy.deepcopy(module)
    made, drawn = {}, {}
    for _, layer in bayesian_layers(plain):
        linear = nn.Linear(layer.in_features, layer.out_features, layer.biases is not None).double()
        made[id(layer)] = linear, layer
        for family in (layer.weights, layer.biases):
            if family is not None and id(family) not in drawn:
                drawn[id(family)] = draw_family(family, n_draws, random)
    plain.layers = nn.ModuleList([made[id(layer)][0] for layer in plain.layers])
    plain.head = made[id(plain.head)][0]
    state = {}
    names = {id(part): name for name, part in plain.named_modules()}
    for linear, layer in made.values():
        state[f"{names[id(linear)]}.weight"] = drawn[id(layer.weights)]
        if layer.biases is not None:
            state[f"{names[id(linear)]}.bias"] = drawn[id(layer.biases)]

    def one(weights):
        return torch.func.functional_call(plain, weights, (x,), tie_weights=False)

    return torch.func.vmap(one)(state)


def largest_score(ours, theirs):
    """The largest difference of first and second moments, in standard errors."""
    scores = []
    for power in (1, 2):
        a, b = ours**power, theirs**power
        error = (a.var(0) / len(a) + b.var(0) / len(b)).sqrt() + 1e-9
        scores.append(float(((a.mean(0) - b.mean(0)) / error).abs().max()))
    return max(scores)


def check(seed, n_draws):
    """Train for two steps, predict, and compare the outputs' moments with those of explicit draws."""
    module = generate(seed)
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(20, INPUTS, generator=random, dtype=torch.float64)
    y = torch.arange(20) % OUTPUTS
    before = {name: value.clone() for name, value in module.state_dict().items()}
    settings = sparsebnn.Settings(epochs=1, batch_size=10, learning_rate=0.01)
    try:
        run = sparsebnn.train(module, (x, y), settings=settings, replicates=1 + seed % 2, progress=False)
    except InvalidInput:
        return "refused"
    trained, rows = run.networks[-1], x[:ROWS]
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), f"{name} of the template changed"
    for name in ("frozen.weight", "shift", "norm.running_mean", "norm.running_var"):
        assert torch.equal(trained.state_dict()[name], before[name]), f"{name} was lost"
    kl_once = sparsebnn.forward_with_kl(trained, rows)[1]
    assert bool(torch.isfinite(kl_once))

    def score(n, seed):
        theirs, ways = explicit(trained, rows, n, seed + 1), ["weights"]
        # Sampled outputs have exactly these moments where weights are Gaussian and meet no other position.
        gaussian = all(layer.family in ("gaussian", "mnf") for _, layer in bayesian_layers(trained))
        if gaussian and not any("positions" in step for step, *_ in trained.recipe):
            ways.append("local")
        scores = []
        for draws in ways:
            pieces = draw_outputs(trained, rows, n, draws=draws, seed=seed)
            scores.append(largest_score(torch.cat([outputs for _, outputs in pieces], dim=1), theirs))
        return max(scores)

    # One of some thousand comparisons may exceed four standard errors by luck, but not twice.
    found = score(n_draws, seed)
    assert found < 4.0 or score(8 * n_draws, seed + 12345) < 4.0, f"{found:.1f} standard errors"
    return "trained"


@pytest.mark.parametrize("seed", range(12))
def test_generated_networks_predict_what_explicit_draws_give(seed):
    check(seed, 500)


@pytest.mark.slow
def test_three_hundred_generated_networks():
    found = [check(seed, 4000) for seed in range(100, 400)]
    assert found.count("trained") > 250
