"""Flows: log-determinants against the autograd Jacobian, triangularity, the gate, the way back."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.autograd.functional import jacobian

from contracts.members import FLOWS, generator, randomise
from sparsebnn.posteriors.flows import AutoregressiveStep, CouplingStep

POINTS = 5


def make(name, seed=0):
    return randomise(FLOWS[name]().double(), seed).requires_grad_(False)


def dim_of(chain, default=3):
    return len(chain.steps[0].ordering) if len(chain.steps) else default


def points(dim, seed=0, count=POINTS):
    return 1.5 * torch.randn(count, dim, generator=generator(seed), dtype=torch.float64)


def jacobian_of(part, z):
    """∂z'/∂z of a step or a chain, by autograd."""
    return jacobian(lambda v: part(v)[0], z)


def by_place(matrix, ordering):
    """Rows and columns in the order in which the step sees the variables."""
    at = torch.argsort(torch.tensor(ordering))
    return matrix[at][:, at]


@pytest.mark.parametrize("name", FLOWS)
def test_log_det_of_a_chain_is_that_of_its_jacobian(name):
    """log |det ∂z'/∂z| returned by a chain = log |det| of the Jacobian by autograd, at 1e-8."""
    for seed in range(3):
        chain = make(name, seed)
        for z in points(dim_of(chain), seed):
            _, log_det = chain(z)
            exact = torch.linalg.slogdet(jacobian_of(chain, z))
            assert exact.sign == 1
            assert abs(float(log_det - exact.logabsdet)) < 1e-8


@pytest.mark.parametrize("name", FLOWS)
def test_log_det_of_every_step(name):
    """The same for each step alone, and a chain's log-determinant is the sum of its steps'."""
    chain = make(name)
    for z in points(dim_of(chain)):
        total, at = 0.0, z
        for step in chain.steps:
            after, log_det = step(at)
            exact = torch.linalg.slogdet(jacobian_of(step, at)).logabsdet
            assert abs(float(log_det - exact)) < 1e-8
            total, at = total + log_det, after
        out, log_det = chain(z)
        assert float((out - at).abs().max()) < 1e-10
        assert abs(float(log_det - total)) < 1e-10


@pytest.mark.parametrize("name", FLOWS)
def test_rows_are_independent(name):
    """A batch of any leading shape is the same map row by row, with one log-determinant per row."""
    chain = make(name)
    z = points(dim_of(chain), count=6).reshape(2, 3, -1)
    out, log_det = chain(z)
    assert log_det.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            one, one_det = chain(z[i, j])
            assert float((out[i, j] - one).abs().max()) < 1e-10
            assert abs(float(log_det[i, j] - one_det)) < 1e-10


def gate_of(step, z):
    """sigmoid(s) from the step's matrices (tests/test_masked.py holds them against the degrees)."""
    h = z
    for i, layer in enumerate(step.layers):
        last = i == len(step.layers) - 1
        h = layer.matrix() @ h + layer.bias
        if not last:
            h = F.leaky_relu(h, 0.001)
    return torch.sigmoid(h[len(z) :])


@pytest.mark.parametrize("name", [n for n in FLOWS if n.startswith("autoregressive")])
def test_autoregressive_jacobian_is_triangular_with_the_gate_on_its_diagonal(name):
    """Sorted by place, ∂z'/∂z is lower triangular and its diagonal is κ = sigmoid(s)."""
    chain = make(name)
    for step in chain.steps:
        for z in points(len(step.ordering)):
            jac = jacobian_of(step, z)
            sorted_jac = by_place(jac, step.ordering)
            assert float(sorted_jac.triu(1).abs().max()) == 0.0
            assert float((jac.diagonal() - gate_of(step, z)).abs().max()) < 1e-10


@pytest.mark.parametrize("hidden", [(), (7,), (7, 9)])
def test_autoregressive_step_uses_every_earlier_variable(hidden):
    """The triangle is full: with enough hidden units no earlier variable is left out."""
    step = AutoregressiveStep(4, tuple(8 * h for h in hidden), ordering=(2, 0, 3, 1)).double()
    randomise(step, 3)
    lower = sum(by_place(jacobian_of(step, z), step.ordering).tril(-1).abs() for z in points(4))
    expected = torch.ones(4, 4).tril(-1).bool()
    assert torch.equal(lower > 0, expected)


@pytest.mark.parametrize("dim", [1, 2, 3, 5, 8])
@torch.no_grad()
def test_coupling_step_runs_backwards(dim):
    """inverse(forward(z)) = z and forward(inverse(z)) = z, with opposite log-determinants."""
    for seed in range(5):
        step = randomise(CouplingStep(dim, (6,), seed=seed).double(), seed)
        z = points(dim, seed)
        there, log_det = step(z)
        back, log_det_back = step.inverse(there)
        assert float((back - z).abs().max()) < 1e-10
        assert float((log_det + log_det_back).abs().max()) < 1e-10
        again, _ = step(step.inverse(z)[0])
        assert float((again - z).abs().max()) < 1e-10
        assert float((there - z).abs().max()) > 1e-3


@pytest.mark.parametrize("dim", [2, 3, 5])
def test_coupling_step_keeps_the_first_half(dim):
    """A stays where it is; B is scaled and shifted by functions of A alone, by at most e."""
    step = randomise(CouplingStep(dim, (6,), seed=4).double(), 4)
    kept = torch.tensor(step.ordering) < dim // 2
    for z in points(dim):
        jac = jacobian_of(step, z)
        assert torch.equal(step(z)[0][kept], z[kept])
        assert torch.equal(jac[kept][:, kept], torch.eye(int(kept.sum())).double())
        b = jac[~kept][:, ~kept]
        assert float((b - b.diagonal().diag()).abs().max()) == 0.0
        assert bool(((b.diagonal() > math.exp(-1)) & (b.diagonal() < math.e)).all())
        assert float(jac[~kept][:, kept].abs().max()) > 0.0


def test_one_variable_sees_nothing():
    """dim = 1: the gate and the shift are constants, so the step is affine."""
    for step in (AutoregressiveStep(1, (5,)), CouplingStep(1, (5,))):
        randomise(step.double(), 2)
        slopes = torch.stack([jacobian_of(step, z)[0, 0] for z in points(1)])
        assert float((slopes - slopes[0]).abs().max()) < 1e-12
