"""likelihoods.py: negative log likelihoods against torch.distributions, and which targets are refused."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributions as D

from contracts.members import generator
from sparsebnn.checks import InvalidInput
from sparsebnn.likelihoods import Bernoulli, Categorical, Gaussian, NoisyCategorical, Ordinal, likelihood
from sparsebnn.nn.networks import mlp
from sparsebnn.nn.passes import forward_with_kl, noise_size
from sparsebnn.random.noise import NoiseBuffer
from sparsebnn.training.batches import Batch
from sparsebnn.training.objective import Objective

G = generator(5)
OUTPUTS = torch.randn(7, 4, generator=G, dtype=torch.float64) * 3.0
LABELS = torch.tensor([0, 1, 2, 3, 0, 1, 2])
TARGETS = torch.randn(7, 2, generator=G, dtype=torch.float64)
ONE = torch.ones((), dtype=torch.float64)


# --- values -----------------------------------------------------------------------------------------


def test_categorical():
    expected = -D.Categorical(logits=OUTPUTS).log_prob(LABELS)
    torch.testing.assert_close(Categorical(4).nll(OUTPUTS, LABELS), expected, rtol=0, atol=1e-12)


def test_bernoulli():
    y = (LABELS > 1).double()
    expected = -D.Bernoulli(logits=OUTPUTS[:, 0]).log_prob(y)
    torch.testing.assert_close(Bernoulli().nll(OUTPUTS[:, :1], y), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rows", [(50,), (3, 50)])
@pytest.mark.parametrize("form", [Categorical(4), Categorical(100), Bernoulli()])
def test_slopes_in_closed_form_are_those_of_automatic_differentiation(form, rows):
    g = generator(3)
    classes = getattr(form, "n_classes", 1)
    outputs = 5.0 * torch.randn(*rows, classes, generator=g, dtype=torch.float64)
    weight = torch.rand(rows, generator=g, dtype=torch.float64)
    y = torch.randint(max(2, classes), rows, generator=g)
    y = y if classes > 1 else y.double()
    terms, slope = form.weighted_slope(outputs, y, weight)
    outputs.requires_grad_()
    expected = form.weighted_nll(outputs, y, weight)
    (by_outputs,) = torch.autograd.grad(expected.sum(), outputs)
    torch.testing.assert_close(terms, expected.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(slope, by_outputs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "form", [NoisyCategorical(4), Ordinal(4), Gaussian(1), type("Mine", (Bernoulli,), {})()]
)
def test_other_likelihoods_have_no_slope_in_closed_form(form):
    """A subclass does not take over a gradient that need not be its own."""
    assert form.weighted_slope(OUTPUTS, LABELS, OUTPUTS[:, 0]) is None


@pytest.mark.parametrize("noise", ["fixed", "learned"])
def test_gaussian_with_one_std(noise):
    form = Gaussian(2, noise=noise, std=0.7).double()
    expected = -D.Normal(OUTPUTS[:, :2], 0.7).log_prob(TARGETS).sum(-1)
    # The raw std is kept in float32 until .double().
    torch.testing.assert_close(form.nll(OUTPUTS[:, :2], TARGETS), expected, rtol=1e-6, atol=0)


def test_gaussian_whose_noise_the_network_gives():
    form = Gaussian(2, noise="heteroscedastic", std=1.3).double()
    std = torch.nn.functional.softplus(form.raw_std + 0.2 * OUTPUTS[:, 2:])
    expected = -D.Normal(OUTPUTS[:, :2], std).log_prob(TARGETS).sum(-1)
    torch.testing.assert_close(form.nll(OUTPUTS, TARGETS), expected, rtol=1e-12, atol=0)
    form.noise_switch.fill_(0.0)
    torch.testing.assert_close(form.mean_and_std(OUTPUTS)[1], torch.full((7, 2), 1.3).double())
    flat = torch.cat([OUTPUTS[:, :2], torch.zeros(7, 2, dtype=torch.float64)], dim=1)
    torch.testing.assert_close(form.mean_and_std(flat)[1], torch.full((7, 2), 1.3).double())


def test_a_tiny_noise_stays_finite():
    """Raw stds of about −200 underflow to 0, which the likelihood does not divide by."""
    form = Gaussian(1, noise="heteroscedastic").double()
    outputs = torch.tensor([[0.0, -2000.0]], dtype=torch.float64, requires_grad=True)
    nll = form.nll(outputs, torch.zeros(1, 1, dtype=torch.float64))
    nll.sum().backward()
    assert torch.isfinite(nll).all()
    assert torch.isfinite(outputs.grad).all()


def test_the_gradient_reaches_the_learned_noise():
    """d nll / d std = 1/std − (y−m)²/std³, through the softplus; a fixed std is no parameter."""
    form = Gaussian(2, noise="learned", std=0.7).double()
    form.nll(OUTPUTS[:, :2], TARGETS).sum().backward()
    std = torch.nn.functional.softplus(form.raw_std.detach())
    by_std = (1.0 / std - (TARGETS - OUTPUTS[:, :2]) ** 2 / std**3).sum(0)
    torch.testing.assert_close(form.raw_std.grad, by_std * torch.sigmoid(form.raw_std.detach()))
    assert list(Gaussian(noise="fixed").parameters()) == []
    assert [n for n, _ in Gaussian(noise="heteroscedastic").named_parameters()] == ["raw_std"]


def test_likelihoods_by_name():
    assert likelihood("categorical", torch.tensor([0, 4, 1])).n_classes == 5
    assert likelihood("categorical", torch.tensor([0, 0])).n_classes == 2
    assert isinstance(likelihood("bernoulli", LABELS), Bernoulli)
    assert likelihood("gaussian", torch.zeros(3)).n_targets == 1
    assert likelihood("gaussian", torch.zeros(3, 2)).n_targets == 2


def test_how_many_outputs_targets_need():
    assert Categorical(4).n_outputs(LABELS) == 4
    assert Bernoulli().n_outputs(LABELS) == 1
    assert Gaussian(2).n_outputs(TARGETS) == 2
    assert Gaussian(2, noise="heteroscedastic").n_outputs(TARGETS) == 4


def test_prepared_targets():
    assert Categorical(4).prepare(LABELS.to(torch.uint8)).dtype == torch.int64
    assert Bernoulli().prepare(torch.tensor([True, False])).tolist() == [1.0, 0.0]
    assert Gaussian().prepare(torch.zeros(3)).shape == (3, 1)
    assert Gaussian(2).prepare(TARGETS).shape == (7, 2)


# --- bad input --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "named"),
    [
        (lambda: Categorical(4).prepare(torch.tensor([0, 4])), "'y' of Categorical"),
        (lambda: Categorical(4).prepare(torch.tensor([-1, 2])), "'y' of Categorical"),
        (lambda: Categorical(4).prepare(torch.tensor([0.0, 1.0])), "'y' of Categorical"),
        (lambda: Categorical(4).prepare(torch.zeros(2, 4, dtype=torch.int64)), "'y' of Categorical"),
        (lambda: Categorical(1), "'n_classes' of Categorical"),
        (lambda: Bernoulli().prepare(torch.tensor([0, 2])), "'y' of Bernoulli"),
        (lambda: Bernoulli().prepare(torch.tensor([0.0, float("nan")])), "'y' of Bernoulli"),
        (lambda: Bernoulli().prepare(torch.zeros(2, 1)), "'y' of Bernoulli"),
        (lambda: Gaussian().prepare(torch.tensor([0.0, float("nan"), float("inf")])), "'y' of Gaussian"),
        (lambda: Gaussian(2).prepare(torch.zeros(3)), "'y' of Gaussian"),
        (lambda: Gaussian(2).prepare(torch.zeros(3, 1, 2)), "'y' of Gaussian"),
        (lambda: Gaussian(std=-1.0), "'std' of Gaussian"),
        (lambda: Gaussian(noise="learnt"), "'noise' of Gaussian"),
        (lambda: likelihood("categoric", LABELS), "'likelihood' of train"),
    ],
)
def test_messages(act, named):
    with pytest.raises(InvalidInput, match=re.escape(f"The {named} must be ")):
        act()


# --- weights and batches: the objective's sum over an epoch -------------------------------------------


class Plain(torch.nn.Module):
    """Outputs without noise per example, so that batches of any size see the same weights."""

    def __init__(self, outputs):
        super().__init__()
        self.layer = mlp([3, outputs], family="concrete", family_options={"relaxation": 0.5}).double()

    def forward(self, x):
        return self.layer(x)


FORMS = {
    "categorical": (Categorical(3), 3, lambda rows, g: torch.randint(3, (rows,), generator=g)),
    "bernoulli": (Bernoulli(), 1, lambda rows, g: torch.randint(2, (rows,), generator=g).double()),
    "gaussian": (Gaussian(2).double(), 2, lambda rows, g: torch.randn(rows, 2, generator=g).double()),
    "heteroscedastic": (
        Gaussian(1, noise="heteroscedastic").double(),
        2,
        lambda rows, g: torch.randn(rows, 1, generator=g).double(),
    ),
}


def problem(form, rows, seed=0):
    kind, outputs, targets = FORMS[form]
    g = generator(seed)
    x = torch.randn(rows, 3, generator=g, dtype=torch.float64)
    network = Plain(outputs)
    size = noise_size(network, x)
    normal = torch.randn(size.normal, generator=g, dtype=torch.float64)
    logistic = torch.randn(size.logistic, generator=g, dtype=torch.float64)
    return Objective(network, kind, rows), x, targets(rows, g), lambda: NoiseBuffer(normal, logistic)


@settings(max_examples=40, deadline=None)
@given(
    form=st.sampled_from(sorted(FORMS)),
    rows=st.integers(1, 23),
    size=st.integers(1, 30),
    beta=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    weighted=st.booleans(),
)
@torch.no_grad()
def test_the_batches_of_an_epoch_add_up_to_the_whole(form, rows, size, beta, weighted):
    """Any batch size; the last batch filled up with rows of weight 0, whatever these rows hold."""
    objective, x, y, tape = problem(form, rows, seed=rows)
    weight = torch.rand(rows, generator=generator(1), dtype=torch.float64) if weighted else x.new_ones(rows)
    scale = torch.tensor(beta, dtype=torch.float64)
    whole = objective(Batch(x, y, weight, torch.tensor(float(rows), dtype=torch.float64)), scale, tape())
    outputs = forward_with_kl(objective.network, x, noise=tape())[0]
    nll = (weight * objective.likelihood.nll(outputs, y)).sum()
    assert float(whole.loss) == pytest.approx(float(nll + beta * whole.kl), rel=1e-10)
    losses, nlls = 0.0, 0.0
    for start in range(0, rows, size):
        index = torch.arange(start, start + size)
        real = (index < rows).double()
        index = index.clamp_max(rows - 1)
        part = objective(Batch(x[index], y[index], real * weight[index], real.sum()), scale, tape())
        losses, nlls = losses + float(part.loss), nlls + float(part.nll)
    assert nlls == pytest.approx(float(whole.nll), rel=1e-10, abs=1e-10)
    assert losses == pytest.approx(float(whole.loss), rel=1e-10, abs=1e-10)
