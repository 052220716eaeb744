r"""The bound is a bound: trained ELBOs against exact evidence, inclusions against exact inclusions.

.. math::
    \mathrm{ELBO}(q) = \mathbb E_q[\log p(y \mid W, \Gamma)] - \mathrm{KL}[q \,\|\, p] \;\le\; \log p(y)

On linear-Gaussian regression the right-hand side is a sum over all structures
(:mod:`~studies.bounds.exact_regression`). Every family is trained on it, under the same priors,
several times; its ELBO is then estimated from fresh draws, with a standard error. The Gaussian
likelihood's expectation depends only on mean and variance of the output, so the local
reparametrization and drawn weights have the same expected bound here.

For the flow the bound splits,

.. math::
    \mathrm{ELBO} = \mathbb E_{q(z)}\big[\mathrm{ELBO}(q(\cdot \mid z))\big]
    + \mathbb E\big[\log r(z \mid W, \Gamma) - \log q(z)\big]

and given z the posterior is mean field. So the first term is at most the best mean-field bound, and
all that z can add is the second, ``information``: at most the mutual information between z and the one
number :math:`\bar s` through which r sees the weights.

Run: ``python -m studies bound``.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import sparsebnn
from sparsebnn.init import Initial, Normal, Uniform
from sparsebnn.likelihoods import Gaussian
from sparsebnn.posteriors import FlowFamily
from sparsebnn.random.noise import NoiseBuffer
from sparsebnn.training import Batch, Cosine, Objective, Settings
from sparsebnn.training.objective import Replicates
from studies.bounds.bound_report import draw, summary, table
from studies.bounds.estimates import elbo, information, layer_of, marginal_bounds, noise_blocks
from studies.bounds.exact_regression import (
    Posterior,
    Regression,
    exact_posterior,
    gaussian_optimum,
    independent_inclusions_optimum,
    spike_slab_optimum,
)
from studies.runner import Study, arguments

__all__ = ["Design", "Method", "Spec", "run"]

_DTYPE = torch.float64


@dataclass(frozen=True)
class Design:
    """Inputs with one correlation between every two of them, and the coefficients behind the targets."""

    name: str
    correlation: float
    coefficients: tuple[float, ...]


@dataclass(frozen=True)
class Method:
    """A family, how it starts and how it is trained.

    ``draws`` is the number of draws a gradient step averages over. 1 is how :func:`sparsebnn.train`
    trains; more gives the flow gradients quiet enough to find its optimum.
    """

    name: str
    family: str
    options: Mapping[str, Any] = field(default_factory=dict)
    start: Initial = Initial()
    draws: int = 1

    @property
    def dense(self) -> bool:
        """Whether every weight is included, so that the evidence of the Gaussian prior applies."""
        return self.family in ("gaussian", "mnf")


_FLOW = {"auxiliary": "drawn", "hidden": (16, 16)}
_BOTH_ORDERS = {**_FLOW, "ordering": "alternate"}
# r is a unit normal around a contraction of z by default: only a z that varies much more than
# that, with means as much smaller, can be found again in the weights.
_WIDE = Initial(
    mean=Normal(0.0, 0.05),
    raw_std=Normal(-1.0, 0.1),
    inclusion_logit=Uniform(4.0, 6.0),
    bias_raw_std=Normal(-1.0, 0.1),
    z0_mean=Normal(0.0, 10.0),
    z0_log_var=Normal(5.0, 0.1),
    auxiliary=Normal(0.0, 1.0),
)
METHODS = (
    Method("spike_slab", "spike_slab"),
    Method("concrete", "concrete", {"relaxation": 0.5}),
    Method("concrete, T = 0.001", "concrete", {"relaxation": 0.001}),
    Method("flow", "flow", _FLOW),
    Method("flow, wide start", "flow", _BOTH_ORDERS, _WIDE, draws=32),
    Method("gaussian", "gaussian"),
    Method("mnf", "mnf", _FLOW),
    Method("mnf, wide start", "mnf", _BOTH_ORDERS, _WIDE, draws=32),
)


@dataclass(frozen=True)
class Spec:
    """The whole study. ``restarts`` are seeds of one method on one data set."""

    designs: tuple[Design, ...] = (
        Design("independent", 0.0, (1.0, 0.5, 0.25, 0.0, 0.0, 0.0)),
        Design("which one", 0.95, (0.5, 0.5, 0.0, 0.0, 0.0, 0.0)),
        Design("both", 0.9, (1.5, 1.5, 0.0, 0.0, 0.0, 0.0)),
    )
    data_sets: int = 3
    rows: int = 50
    noise_std: float = 1.0
    inclusion_prob: float = 0.3
    slab_std: float = 1.0
    bias_std: float = 1.0
    restarts: int = 4
    epochs: int = 1500
    rate: float = 0.03
    quiet_rate: float = 0.02
    quiet_steps: int = 2000
    screening_draws: int = 4000
    draws: int = 20000
    mixture_draws: int = 1500
    seed: int = 0

    @classmethod
    def quick(cls, seed: int = 0) -> Spec:
        """Two data sets, few steps: the bound must hold wherever training stopped."""
        designs = (
            Design("independent", 0.0, (1.0, 0.5, 0.0, 0.0)),
            Design("which one", 0.95, (0.5, 0.5, 0.0, 0.0)),
        )
        short = {"epochs": 120, "rate": 0.1, "quiet_steps": 30}
        few = {"screening_draws": 1000, "draws": 4000, "mixture_draws": 200}
        return cls(designs=designs, data_sets=1, restarts=2, seed=seed, **short, **few)  # type: ignore[arg-type]


# --- data and networks -------------------------------------------------------------------------------


def simulate(design: Design, spec: Spec, number: int) -> Regression:
    """Data set ``number`` of a design; its noise is its own."""
    name = sum(map(ord, design.name))
    generator = torch.Generator().manual_seed(spec.seed + 1000 * number + name)
    rho, beta = design.correlation, torch.tensor(design.coefficients, dtype=_DTYPE)
    shared = torch.randn(spec.rows, 1, generator=generator, dtype=_DTYPE)
    own = torch.randn(spec.rows, len(beta), generator=generator, dtype=_DTYPE)
    x = math.sqrt(rho) * shared + math.sqrt(1.0 - rho) * own
    noise = torch.randn(spec.rows, generator=generator, dtype=_DTYPE)
    # The likelihood keeps its std in single precision; the evidence is taken at the std it has.
    std = float(_likelihood(spec).mean_and_std(torch.zeros(1, 1))[1])
    y = 0.3 + x @ beta + std * noise
    return Regression(x, y, std, spec.inclusion_prob, spec.slab_std, spec.bias_std)


def _likelihood(spec: Spec) -> Gaussian:
    return Gaussian(noise="fixed", std=spec.noise_std)


class Residuals(nn.Module):
    """``layer(inputs) − targets`` for its own data set; the input is ignored.

    The data are buffers, and buffers may differ between replicates: so all data sets and all restarts
    train as one program, on targets of 0.
    """

    inputs: Tensor
    targets: Tensor

    def __init__(self, layer: sparsebnn.Linear, problem: Regression) -> None:
        super().__init__()
        self.layer = layer
        self.register_buffer("inputs", problem.x)
        self.register_buffer("targets", problem.y.unsqueeze(-1))

    def forward(self, _: Tensor) -> Tensor:
        return self.layer(self.inputs) - self.targets


def network(method: Method, problem: Regression) -> Residuals:
    """An untrained network of a method, with the problem's own priors."""
    prior: sparsebnn.posteriors.GaussianPrior | sparsebnn.posteriors.SpikeSlabPrior
    if method.dense:
        prior = sparsebnn.posteriors.GaussianPrior(std=problem.slab_std)
    else:
        prior = sparsebnn.posteriors.SpikeSlabPrior(problem.inclusion_prob, std=problem.slab_std)
    layer = sparsebnn.Linear(
        problem.x.shape[1],
        1,
        family=method.family,
        prior=prior,
        bias_prior=sparsebnn.posteriors.GaussianPrior(std=problem.bias_std),
        initial=method.start,
        family_options=method.options,
        dtype=_DTYPE,
    )
    return Residuals(layer, problem)


# --- training ----------------------------------------------------------------------------------------


def fit(method: Method, problems: Sequence[Regression], spec: Spec) -> Replicates:
    """All restarts on all data sets, trained as one program; data set d holds restarts d·R … d·R+R−1."""
    each = [problem for problem in problems for _ in range(spec.restarts)]
    per_replicate = {
        "inputs": torch.stack([problem.x for problem in each]),
        "targets": torch.stack([problem.y.unsqueeze(-1) for problem in each]),
    }
    seeds = range(spec.seed, spec.seed + len(each))
    template = network(method, problems[0])
    if method.draws > 1:
        return _fit_quietly(method, template, seeds, per_replicate, spec)
    settings = Settings(
        epochs=spec.epochs,
        batch_size=spec.rows,
        learning_rate=spec.rate,
        schedule=Cosine(1e-3),
        shuffle=False,
    )
    trained = sparsebnn.train(
        template,
        (torch.zeros(spec.rows, 1), torch.zeros(spec.rows)),
        likelihood=_likelihood(spec),
        settings=settings,
        replicates=list(seeds),
        per_replicate=per_replicate,
        device="cpu",
        mode="eager",
        progress=False,
    )
    return trained.replicates


def _fit_quietly(
    method: Method, template: Residuals, seeds: Sequence[int], per_replicate: Mapping[str, Tensor], spec: Spec
) -> Replicates:
    """As :func:`sparsebnn.train` on the full batch, every gradient averaged over several draws."""
    objective = Objective(template, _likelihood(spec), spec.rows)
    replicates = Replicates(objective, seeds, torch.device("cpu"), per_replicate)
    nothing = torch.zeros(spec.rows, 1, dtype=_DTYPE)
    batch = Batch(nothing, nothing, torch.ones(spec.rows, dtype=_DTYPE), torch.tensor(float(spec.rows)))
    beta = torch.ones((), dtype=_DTYPE)
    size = replicates.measure(nothing)

    def loss(
        parameters: dict[str, Tensor], varied: dict[str, Tensor], normal: Tensor, logistic: Tensor
    ) -> Tensor:
        def one(normal: Tensor, logistic: Tensor) -> Tensor:
            state = {**parameters, **replicates.shared, **varied}
            given = (batch, beta, NoiseBuffer(normal, logistic))
            return functional_call(replicates.objective, state, given, tie_weights=False).loss

        return vmap(one)(normal, logistic).mean()

    gradients = vmap(grad(loss))
    parameters = replicates.parameters
    adam = torch.optim.Adam(list(parameters.values()), lr=spec.quiet_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, spec.quiet_steps, 1e-3 * spec.quiet_rate)
    generator = torch.Generator().manual_seed(spec.seed)
    for _ in range(spec.quiet_steps):
        normal, logistic = noise_blocks(size, (len(replicates), method.draws), generator)
        for name, gradient in gradients(parameters, replicates.varied, normal, logistic).items():
            parameters[name].grad = gradient
        adam.step()
        schedule.step()
    return replicates


# --- rows --------------------------------------------------------------------------------------------


def run(spec: Spec, methods: Sequence[Method] = METHODS) -> list[dict[str, Any]]:
    """One row per data set and method, after those of the best bounds that exist; sparse priors first."""
    cells = [(design, number) for design in spec.designs for number in range(spec.data_sets)]
    problems = [simulate(design, spec, number) for design, number in cells]
    truths = [exact_posterior(problem) for problem in problems]
    rows = []
    for (design, number), problem, truth in zip(cells, problems, truths):
        limits = (
            ("independent inclusions, optimum", False, independent_inclusions_optimum(truth)),
            ("spike_slab, optimum", False, spike_slab_optimum(problem)),
            ("gaussian, optimum", True, gaussian_optimum(problem)),
        )
        for name, dense, (bound, inclusion) in limits:
            where = {"design": design.name, "data_set": number, "method": name}
            rows.append({**where, **_against(truth, dense, [bound], [0.0], [inclusion], 0)})
    for method in methods:
        replicates = fit(method, problems, spec)
        for d, ((design, number), problem, truth) in enumerate(zip(cells, problems, truths)):
            trained = [replicates.unstack(d * spec.restarts + k) for k in range(spec.restarts)]
            where = {"design": design.name, "data_set": number, "method": method.name}
            rows.append({**where, **_judge(method, trained, problem, truth, spec)})
    return sorted(rows, key=lambda row: row["prior"] == "gaussian")


def _judge(
    method: Method, trained: Sequence[Objective], problem: Regression, truth: Posterior, spec: Spec
) -> dict[str, Any]:
    """A method's restarts on one data set; the best is chosen on some draws and reported on others."""
    screened = [elbo(one, spec.screening_draws, spec.seed + k) for k, one in enumerate(trained)]
    best = max(range(len(trained)), key=lambda k: screened[k][0])
    screened[best] = elbo(trained[best], spec.draws, spec.seed + 7919)
    inclusions = [layer_of(one).weights.inclusion_prob()[0].detach() for one in trained]
    bounds, errors = [list(column) for column in zip(*screened)]
    row = _against(truth, method.dense, bounds, errors, inclusions, best)
    weights = layer_of(trained[best]).weights
    if isinstance(weights, FlowFamily):
        row["information"], row["information_se"] = information(weights, spec.draws, spec.seed)
        low, high, error = marginal_bounds(trained[best], problem, spec.mixture_draws, spec.seed)
        row["without_auxiliary"] = {"low": low, "high": high, "se": error}
    return row


def _against(
    truth: Posterior,
    dense: bool,
    bounds: Sequence[float],
    errors: Sequence[float],
    inclusions: Sequence[Tensor],
    best: int,
) -> dict[str, Any]:
    """Bounds and inclusion probabilities of all restarts, and the exact ones."""
    evidence = truth.log_evidence_dense if dense else truth.log_evidence
    row: dict[str, Any] = {
        "prior": "gaussian" if dense else "spike_slab",
        "log_evidence": evidence,
        "elbo": bounds[best],
        "elbo_se": errors[best],
        "gap": evidence - bounds[best],
        "gap_median": evidence - statistics.median(bounds),
        "elbo_restarts": list(bounds),
        "elbo_se_restarts": list(errors),
        "above_evidence": sum(b > evidence + 3.0 * e + 1e-9 for b, e in zip(bounds, errors)),
    }
    if dense:
        return row
    off = torch.stack([(inclusion - truth.inclusion).abs() for inclusion in inclusions])
    chosen = inclusions[best]
    return {
        **row,
        "inclusion_exact": truth.inclusion.tolist(),
        "inclusion": chosen.tolist(),
        "inclusion_error": float(off[best].mean()),
        "inclusion_error_worst": float(off[best].max()),
        "inclusion_error_median": statistics.median(off.mean(1).tolist()),
        "exactly_one_exact": truth.exactly_one,
        "exactly_one": _exactly_one(chosen),
    }


def _exactly_one(inclusion: Tensor) -> float:
    """Probability that exactly one of the independent inclusions is on."""
    alone = torch.where(torch.eye(len(inclusion), dtype=torch.bool), inclusion, 1.0 - inclusion)
    return float(alone.prod(1).sum())


# --- the command -------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> None:
    """Run the study, print its table, write its result file and its figure."""
    study = Study("bound", arguments("bound", "Trained ELBOs against exact evidence.", argv))
    spec = Spec.quick(study.given.seed) if study.given.quick else Spec(seed=study.given.seed)
    # Every matrix here is tiny: a second thread costs more than it brings.
    torch.set_num_threads(1)
    rows = run(spec)
    lines = summary(rows)
    print(table(lines))
    trained = sum(len(row["elbo_restarts"]) for row in rows if not row["method"].endswith("optimum"))
    above = sum(row["above_evidence"] for row in rows)
    print(f"{trained} trained bounds; {above} above the evidence by more than 3 standard errors.")
    replicates = len(spec.designs) * spec.data_sets * spec.restarts
    seeds = range(spec.seed, spec.seed + replicates)
    methods = [dataclasses.asdict(method) for method in METHODS]
    path = study.save(spec, seeds, methods=methods, summary=lines, rows=rows)
    draw(rows, study.figure)
    print(f"Wrote {path} and {study.figure}.")
