"""The training plan of an estimator: sizes, rates and epochs, by default chosen by the size of the data.

docs/studies/defaults.md explains the numbers; ``python -m studies defaults --validate`` repeats their choice.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import itertools
import math
import numbers
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sparsebnn.checks import check_count, invalid
from sparsebnn.nn.layers import Linear
from sparsebnn.nn.networks import InputSkip, bayesian_layers, generator_kept, mlp
from sparsebnn.posteriors import family_name
from sparsebnn.posteriors.learned_priors import EmpiricalPrior
from sparsebnn.posteriors.priors import GaussianPrior, SpikeSlabPrior
from sparsebnn.training import Settings
from sparsebnn.training.devices import one_thread

__all__ = ["FAMILIES", "Plan", "missed_density", "network", "planned", "positive", "prior_as_given", "share"]

# What the estimators offer.
FAMILIES = ("spike_slab", "flow", "concrete", "gaussian")
_STEPS = {"classification": 800, "regression": 1200}  # for little data
_TEMPERATURE = {"classification": 0.15, "regression": 0.05}
# At a low temperature, classifiers that train for long overfit, and regressions that do not underfit.
_TEMPERED_RATE = {"classification": 0.125, "regression": 1.0}
_TEMPERED_ROWS = 2000
_HARDLY_TEMPERED = 0.5  # from here on, tempered replicates are not worth their time
_LEAST_TO_COMPARE = 30  # rows
_MOST_STEPS = 4000
_MOST_TIMES = 4  # so many times the planned epochs, if training does not converge before
_MOST_WORK = 4e10  # multiplications of a training that goes on beyond the planned epochs
_UNITS = ((50,), (50, 50))
# With fewer rows, a second hidden layer is not worth its time.
_ROWS_FOR_TWO_LAYERS = {"classification": 2000, "regression": 5000}
# Classifiers of fewer rows train for a fixed number of steps, in which the Bayes posterior converges;
# tempered networks that converge would overfit.
_ROWS_TO_CONVERGE = 2000
_RATE, _RATE_OTHER = 4e-2, 1e-2  # of the default network, and of other families or a target density
_RATE_NOISE = 2e-2  # where the noise depends on the row
# Where outputs are far off, the gradients of their exponential are so large that Adam, which remembers them,
# hardly moves afterwards.
_RATE_EXPONENTIAL = 1e-2
_EXPONENTIAL = ("poisson", "negative_binomial", "zero_inflated_poisson", "zero_inflated_negative_binomial",
                "piecewise_exponential")  # fmt: skip
_TEMPERATURE_OTHER = {"classification": 0.15, "regression": 0.75}
# Of the KL. Not a share of the training: the longer networks train with little of it, the more weights
# they fit to noise and keep, and the density would depend on the number of epochs.
_WARMUP_STEPS, _MOST_WARMUP = 250, 0.5
_LOGIT_FACTOR = 3.0  # inclusion logits move so much faster
_PRIOR_WEIGHTS = 10.0  # the learned inclusion rate starts from so many weights at the prior's
_REFIT_HEAT = 10.0  # as in recipe("recommended", target_density=...)
_WORK_FOR_GPU = 5e9  # multiplications of a training: about 10 seconds on a CPU
_SMALL_WORK = 2e7  # multiplications of a step
_SLACK = 0.1  # a density this close to its target, relatively, needs no note
LEAST_PHASED = 4  # epochs: two of free training, one on the way down, one of refit


@dataclass(frozen=True)
class Plan:
    """Everything that determines a training run, except data and seed: network, settings, replicates."""

    hidden: tuple[int, ...]
    family: str
    prior_inclusion: float
    settings: Settings
    replicates: int
    # Whether every layer sees the inputs, and the inclusion rate of every layer is learned.
    input_skip: bool = False
    # The temperature of a second set of as many replicates, which rows left out may prefer.
    tempered: float | None = None
    tempered_rate: float = 1.0  # their learning rates, relative to those of the first set
    # If training goes on until it converges: the most epochs. The rates decay over half of ``epochs``.
    most_epochs: int | None = None
    # If a time budget shortened the training: the epochs planned without it, and the rows it uses.
    full_epochs: int | None = None
    train_rows: int | None = None

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Plan:
        """The plan that :meth:`record` wrote."""
        own = {name: record[name] for name in _RECORDED}
        rest = {name: value for name, value in record.items() if name not in own}
        return cls(**{**rest, "hidden": tuple(record["hidden"])}, settings=_settings(**own))

    def record(self) -> dict[str, Any]:
        """As JSON values; the fields of convergence and of a time budget only where they apply."""
        rates = {"logit_rate": self.settings.learning_rates["inclusion_logit"]}
        every = {**vars(self), **vars(self.settings), **rates, "hidden": list(self.hidden)}
        names = ("hidden", "family", "prior_inclusion", *_RECORDED, "replicates", "input_skip", "tempered")
        names = (*names, "tempered_rate")
        others = [n for n in ("most_epochs", "full_epochs", "train_rows") if every[n] is not None]
        return {name: every[name] for name in (*names, *others)}

    def with_settings(self, **settings: Any) -> Plan:
        """The plan with other settings, such as ``epochs``."""
        return dataclasses.replace(self, settings=dataclasses.replace(self.settings, **settings))

    @property
    def temperatures(self) -> list[float]:
        """The temperature of every network that is trained."""
        own = [self.settings.temperature] * self.replicates
        if self.tempered is None:
            return own
        return own + [self.tempered * self.settings.temperature] * self.replicates

    def per_replicate(self) -> dict[str, list[float]]:
        """What differs between the networks."""
        if self.tempered is None:
            return {}
        found = {"temperature": self.temperatures}
        if self.tempered_rate != 1.0:
            factors = [1.0] * self.replicates + [self.tempered_rate] * self.replicates
            rates = {"learning_rate": self.settings.learning_rate}
            rates |= {f"learning_rates.{name}": rate for name, rate in self.settings.learning_rates.items()}
            found |= {name: [factor * rate for factor in factors] for name, rate in rates.items()}
        return found

    @property
    def least_epochs(self) -> int:
        """The fewest epochs that give each phase at least one."""
        return 1 if self.settings.target_density is None else LEAST_PHASED

    @property
    def planned_epochs(self) -> int:
        """The epochs of a training without a time budget."""
        return self.settings.epochs if self.full_epochs is None else self.full_epochs

    def device(self, rows: int, inputs: int) -> str:
        """A GPU if there is one and enough work: to start on it takes longer than a small training."""
        work = self.settings.epochs * self._work(rows, inputs)
        return "cuda" if torch.cuda.is_available() and work > _WORK_FOR_GPU else "cpu"

    def _work(self, rows: int, inputs: int) -> float:
        """Multiplications of an epoch, roughly."""
        return float(rows * inputs * max(self.hidden, default=1) * len(self.temperatures))

    def within_reason(self, rows: int, inputs: int) -> Plan:
        """The plan with fewer epochs at most, if it would take long to converge."""
        if self.most_epochs is None:
            return self
        most = int(min(self.most_epochs, _MOST_WORK / max(1.0, self._work(rows, inputs))))
        return dataclasses.replace(self, most_epochs=max(self.settings.epochs, most))

    def threads(self, inputs: int, device: str) -> contextlib.AbstractContextManager[None]:
        """One thread for small networks on the CPU, where a second one costs more than it saves."""
        sizes = (inputs, *self.hidden)
        work = (
            self.settings.batch_size * sum(a * b for a, b in zip(sizes, sizes[1:])) * len(self.temperatures)
        )
        return one_thread() if device == "cpu" and work < _SMALL_WORK else contextlib.nullcontext()


def _settings(
    epochs: int,
    batch_size: int,
    learning_rate: float,
    logit_rate: float,
    temperature: float,
    warmup: float,
    target_density: float | None,
) -> Settings:
    """With a target density there are three phases: free training, pruning, and a refit.

    As in the recommended recipe, the refit has a higher temperature, up to that of the Bayes posterior.
    """
    plain = Settings(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        learning_rates={"inclusion_logit": logit_rate},
        temperature=temperature,
        warmup=warmup,
    )
    if target_density is None:
        return plain
    return dataclasses.replace(
        plain,
        target_density=target_density,
        free_fraction=0.5,
        refit=0.2,
        refit_temperature_factor=max(1.0, min(_REFIT_HEAT, 1.0 / temperature)),
    )


# What a record says of the settings, by the names of these parameters.
_RECORDED = tuple(inspect.signature(_settings).parameters)


def _batch_size(rows: int) -> int:
    """About 10 batches an epoch, from 128 rows to 1024."""
    return min(rows, int(min(1024, max(128, 2 ** round(math.log2(max(1, rows) / 10))))))


def _tempered(rows: int, least: float) -> float:
    """Constant up to 2000 rows, then proportional to the rows, at most 1 (the Bayes posterior).

    >>> [_tempered(rows, 0.15) for rows in (100, 4000, 100_000)]
    [0.15, 0.3, 1.0]
    """
    return min(1.0, least * max(1.0, rows / _TEMPERED_ROWS))


def _epochs(rows: int, batch_size: int, task: str) -> int:
    """Hundreds of steps for small data, growing with the square root of the number of rows."""
    steps = min(_MOST_STEPS, _STEPS[task] * max(1.0, math.sqrt(rows / 1000.0)))
    return max(3, math.ceil(steps / math.ceil(rows / batch_size)))


def planned(given: dict[str, Any], rows: int, task: str, owner: str) -> Plan:
    """The plan for a number of rows; ``given`` are the parameters of the estimator."""
    hidden = given["hidden"]
    sizes = _UNITS[rows >= _ROWS_FOR_TWO_LAYERS[task]] if _auto(hidden) else _sizes(hidden, owner)
    batch_size = given["batch_size"]
    batch_size = _batch_size(rows) if _auto(batch_size) else check_count(batch_size, "batch_size", owner)
    epochs = given["epochs"]
    if _auto(epochs):
        epochs = _epochs(rows, min(rows, batch_size), task)
    epochs = check_count(epochs, "epochs", owner)
    family = family_name(given["family"], owner, FAMILIES)
    inclusion = share(given["prior_inclusion"], "prior_inclusion", owner)
    target = given["target_density"]
    if target is not None:
        target, epochs = _density(target, epochs, given, owner)
    replicates = check_count(given["replicates"], "replicates", owner)
    free = family == "spike_slab" and target is None
    rate = given["learning_rate"]
    if _auto(rate):
        rate = _RATE if free else _RATE_OTHER
        if given.get("noise") == "heteroscedastic":
            rate = min(rate, _RATE_NOISE)
        if given.get("likelihood") in _EXPONENTIAL:
            rate = min(rate, _RATE_EXPONENTIAL)
    rate = positive(rate, "learning_rate", owner, "'auto' or a positive number")
    temperature, tempered = given["temperature"], None
    if not _auto(temperature):
        temperature = positive(temperature, "temperature", owner, "'auto' or a positive number")
    elif free:
        temperature = 1.0
        compared = replicates > 1 and not given["early_stopping"] and rows >= _LEAST_TO_COMPARE
        tempered = _tempered(rows, _TEMPERATURE[task])
        if not compared or tempered > _HARDLY_TEMPERED:
            tempered = None
    else:
        temperature = _tempered(rows, _TEMPERATURE_OTHER[task])
    warmup = _MOST_WARMUP
    if free:
        warmup = min(_MOST_WARMUP, _WARMUP_STEPS / (epochs * math.ceil(rows / min(rows, batch_size))))
    settings = _settings(epochs, batch_size, rate, _LOGIT_FACTOR * rate, temperature, warmup, target)
    slower = _TEMPERED_RATE[task] if tempered is not None else 1.0
    # Noise that depends on the row is learned in a given share of the epochs.
    fixed = not _auto(given["epochs"]) or given["early_stopping"] or given.get("noise") == "heteroscedastic"
    small = task == "classification" and rows < _ROWS_TO_CONVERGE
    most = _MOST_TIMES * epochs if free and not fixed and not small else None
    return Plan(sizes, family, inclusion, settings, replicates, free, tempered, slower, most)


def _density(target: Any, epochs: int, given: dict[str, Any], owner: str) -> tuple[float, int]:
    """The target density and the epochs for it."""
    target = share(target, "target_density", owner)
    if family_name(given["family"], owner, FAMILIES) == "gaussian":
        advice = "Choose the family 'spike_slab', 'flow' or 'concrete'."
        raise invalid("target_density", owner, "None for the family 'gaussian'", target, advice)
    if _auto(given["epochs"]):
        epochs = max(epochs, LEAST_PHASED)
    if epochs < LEAST_PHASED:
        raise invalid("epochs", owner, f"at least {LEAST_PHASED} with a target density", epochs)
    return target, epochs


def _sizes(hidden: Any, owner: str) -> tuple[int, ...]:
    single = not isinstance(hidden, bool) and isinstance(hidden, numbers.Integral)
    listed = (hidden,) if single else hidden
    if isinstance(listed, str) or not hasattr(listed, "__iter__"):
        raise invalid("hidden", owner, "'auto' or a tuple of layer sizes", repr(hidden))
    return tuple(check_count(size, "hidden", owner) for size in listed)


def _auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def positive(value: Any, what: str, owner: str, expected: str) -> float:
    """A number above 0, of Python's or NumPy's."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0.0 < float(value) < math.inf:
        raise invalid(what, owner, expected, repr(value))
    return float(value)


def share(value: Any, what: str, owner: str) -> float:
    """A number strictly between 0 and 1, of Python's or NumPy's."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0.0 < float(value) < 1.0:
        raise invalid(what, owner, "strictly between 0 and 1", repr(value))
    return float(value)


@torch.no_grad()
def prior_as_given(trained: nn.Module, plan: Plan) -> None:
    """Restore the prior inclusion probability, which training to a target density changes.

    The cost of columns is computed under the given prior. Predictions do not depend on it.
    """
    for module in trained.modules():
        if isinstance(module, SpikeSlabPrior):
            module.inclusion_prob.fill_(plan.prior_inclusion)


@generator_kept()  # layers draw their first values, which a start by seed replaces
def network(plan: Plan, inputs: int, outputs: int) -> nn.Module:
    """The network of a plan, before training."""
    sizes = (inputs, *plan.hidden, outputs)
    if plan.input_skip:
        return InputSkip([_layer(plan, *size) for size in _skip_sizes(sizes)], nn.ReLU())
    prior = GaussianPrior() if plan.family == "gaussian" else SpikeSlabPrior(plan.prior_inclusion)
    return mlp(
        sizes,
        family=plan.family,
        prior=prior,
        bias_prior=GaussianPrior(),
        family_options={"hidden": (20, 20)} if plan.family == "flow" else None,
    )


def _skip_sizes(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Inputs and outputs of the layers of an input-skip network.

    >>> _skip_sizes((5, 50, 1))
    [(5, 50), (55, 1)]
    """
    pairs = itertools.pairwise(sizes)
    return [(n + (sizes[0] if place else 0), out) for place, (n, out) in enumerate(pairs)]


def _layer(plan: Plan, inputs: int, outputs: int) -> Linear:
    """A layer that learns its inclusion rate: of a thousand columns, a hundred need not be expected."""
    prior = EmpiricalPrior(
        plan.prior_inclusion,
        learn_std=False,
        learn_inclusion=True,
        inclusion_strength=_PRIOR_WEIGHTS / (inputs * outputs),
        max_inclusion=plan.prior_inclusion,
    )
    return Linear(inputs, outputs, family=plan.family, prior=prior, bias_prior=GaussianPrior())


def missed_density(networks: Sequence[nn.Module], density: float, plan: Plan) -> list[str]:
    """A note if the density misses its target, because a small network cannot have every density."""
    if not plan.settings.targets or abs(density / plan.settings.targets[0] - 1.0) <= _SLACK:
        return []
    count = sum(layer.weights.inclusion_prob().numel() for _, layer in bayesian_layers(networks[0]))
    note = f"The density is {density:.3g}, not {plan.settings.targets[0]:g}: the network has {count} weights."
    warnings.warn(note, UserWarning, stacklevel=4)
    return [note]
