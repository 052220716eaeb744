"""How to train: one frozen record."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from sparsebnn.checks import check_choice, check_count, check_number, invalid
from sparsebnn.training.optimizers import Cosine, Schedule, every_step, schedule

_LOGITS = "inclusion_logit"
# A target density is approached from the first to the second of these shares of the epochs with a free
# structure: not before the inclusions mean something, and not so late that nothing can adapt.
_APPROACH = (0.2, 0.8)
_PHASED_APPROACH = 0.6  # the same with phases: the share of the second
# The share of the epochs in which means are learned with noise that is the same for all rows. Of the shares
# and scales (``_NOISE_SCALE`` in likelihoods/real.py) that were tried, validation rows of six tables chose
# these: see docs/studies/defaults.md.
_MEANS_ALONE = 0.7


# Fields that the record of a training without phases leaves out, and the defaults of all added later.
_PHASES = ("free_fraction", "refit_temperature_factor")
_LATER: dict[str, Any] = {
    "shift": 0,
    "optimizer": "adam",
    "momentum": 0.9,
    "weight_decay": 0.0,
    "clip_norm": None,
    "accumulate": 1,
    "average": None,
    "autocast": None,
    "channels_last": False,
}
_DEFAULT: dict[str, Any] = {**_LATER, "free_fraction": None, "refit_temperature_factor": 1.0}


def _finite(value: float) -> bool:
    return 0.0 <= value < math.inf


def _longest(name: str, endings: Iterable[str]) -> str | None:
    """The longest of the endings that a name has."""
    return max((ending for ending in endings if name.endswith(ending)), key=len, default=None)


@dataclass(frozen=True)
class Settings:
    """Epochs, batches, rates and the weight of the KL.

    ``learning_rates`` overrides ``learning_rate`` for parameters whose name ends with a key
    (``inclusion_logit`` for all inclusion logits, ``prior.raw_rate``, …), and ``schedules`` likewise
    overrides ``schedule``.
    ``temperature`` multiplies the KL (1 is the Bayes posterior), reached linearly over the first
    ``warmup`` share of the epochs.

    ``target_density`` is the share of weights to keep, of all layers with inclusions together or, as a
    tuple, of each; training moves the prior's inclusion odds until the density comes down to it. Over the
    last ``refit`` share of the epochs the structure is fixed (the weights of the target density, or those
    with an inclusion probability above one half) and only the posterior of these weights is trained. With
    few weights left the KL counts less against the data, so the refit may have a higher temperature:
    ``refit_temperature_factor`` times the usual one.

    ``free_fraction`` divides training to a target density into three phases: a training without a target
    over this share of the epochs, the approach to the target density over the next epochs, and the refit.
    The learning rate starts again in each phase, and the warm-up is a share of the first. The posterior at
    the end of the first phase is the one to average over; :class:`~sparsebnn.training.BeforeRefit` keeps it.

    ``shift`` moves every image by up to this many pixels up or down, and left or right, drawn again in every
    epoch; the border is filled with 0.

    ``optimizer`` is ``"adam"``, ``"adamw"`` or ``"sgd"`` with ``momentum``. ``weight_decay`` (of the last
    two) applies to parameters outside Bayesian layers; those inside have a prior. ``clip_norm`` limits the
    norm of each replicate's gradient. ``accumulate`` computes a batch in this many parts, one by one,
    with the same result up to rounding and less memory. ``average``, such as 0.999, makes the results those
    of an exponential moving average of the parameters. ``autocast="bfloat16"`` computes means of outputs, and
    ordinary layers, in that precision; variances, logarithms and the KL stay in full precision.
    ``channels_last`` stores images that way (one replicate).

    >>> Settings(epochs=10, warmup=0.5, temperature=0.5).beta(epoch=0)
    0.1
    >>> phased = Settings(epochs=100, free_fraction=0.5, refit=0.2, target_density=0.02)
    >>> phased.free_until, phased.approach, phased.refit_from
    (50, (50, 68.0), 80)
    """

    epochs: int = 100
    batch_size: int = 100
    learning_rate: float = 1e-3
    learning_rates: Mapping[str, float] = field(default_factory=dict)
    schedule: str | Schedule = Cosine()
    schedules: Mapping[str, str | Schedule] = field(default_factory=dict)
    temperature: float = 1.0
    warmup: float = 0.0
    shuffle: bool = True
    target_density: float | tuple[float, ...] | None = None
    refit: float = 0.0
    shift: int = 0
    free_fraction: float | None = None
    refit_temperature_factor: float = 1.0
    optimizer: str = "adam"
    momentum: float = 0.9
    weight_decay: float = 0.0
    clip_norm: float | None = None
    accumulate: int = 1
    average: float | None = None
    autocast: str | None = None
    channels_last: bool = False

    def __post_init__(self) -> None:
        check_count(self.epochs, "epochs", "Settings")
        check_count(self.batch_size, "batch_size", "Settings")
        own: dict[str, Any] = {"learning_rates": self.learning_rates, "schedules": self.schedules}
        for what, given in own.items():
            if not isinstance(given, Mapping):
                advice = "For example {'inclusion_logit': 0.01}." if what == "learning_rates" else ""
                raise invalid(what, "Settings", "a dict by endings of names", repr(given), advice)
        rates = {"learning_rate": self.learning_rate, **self.learning_rates}
        for name, rate in rates.items():
            check_number(rate, name, "Settings", "a finite rate of at least 0", _finite)
        for what, number in (("temperature", self.temperature), ("warmup", self.warmup)):
            check_number(number, what, "Settings", "finite and at least 0", _finite)
        share = "a share of the epochs, from 0 to"
        check_number(self.warmup, "warmup", "Settings", f"{share} 1", lambda value: value <= 1.0)
        check_number(
            self.refit, "refit", "Settings", f"{share} less than 1", lambda value: 0.0 <= value < 1.0
        )
        for target in self.targets:
            expected = "a share of the weights, up to 1"
            check_number(target, "target_density", "Settings", expected, lambda value: 0.0 < value <= 1.0)
        for value in (self.schedule, *self.schedules.values()):
            schedule(value)
        check_count(self.shift, "shift", "Settings", least=0)
        check_number(
            self.refit_temperature_factor,
            "refit_temperature_factor",
            "Settings",
            "greater than 0 and finite",
            lambda value: 0.0 < value < math.inf,
        )
        self._check_steps()
        if self.free_fraction is not None:
            self._check_phases(self.free_fraction)
        self._write_plainly("learning_rate", "temperature", "warmup", "refit", "refit_temperature_factor")

    def _check_steps(self) -> None:
        """What a step does."""
        check_choice(self.optimizer, ("adam", "adamw", "sgd"), "optimizer", "Settings")
        below_1 = "at least 0 and less than 1"
        check_number(self.momentum, "momentum", "Settings", below_1, lambda value: 0.0 <= value < 1.0)
        check_number(self.weight_decay, "weight_decay", "Settings", "finite and at least 0", _finite)
        if self.weight_decay and self.optimizer == "adam":
            advice = "Choose optimizer='adamw'."
            raise invalid("weight_decay", "Settings", "0 with optimizer='adam'", self.weight_decay, advice)
        if self.clip_norm is not None:
            positive = "greater than 0 and finite"
            check_number(self.clip_norm, "clip_norm", "Settings", positive, lambda v: 0.0 < v < math.inf)
        check_count(self.accumulate, "accumulate", "Settings")
        if self.accumulate > self.batch_size:
            raise invalid(
                "accumulate", "Settings", f"at most the batch size, {self.batch_size}", self.accumulate
            )
        if self.average is not None:
            check_number(self.average, "average", "Settings", below_1, lambda value: 0.0 <= value < 1.0)
        if self.autocast is not None:
            check_choice(self.autocast, ("bfloat16",), "autocast", "Settings")
        if not isinstance(self.channels_last, bool):
            raise invalid("channels_last", "Settings", "True or False", repr(self.channels_last))

    @property
    def every_step(self) -> bool:
        """Whether a schedule changes rates with every step instead of every epoch."""
        return any(every_step(one) for one in (self.schedule, *self.schedules.values()))

    def _check_phases(self, share: float) -> None:
        expected = "a share of the epochs that leaves some before the refit"
        check_number(share, "free_fraction", "Settings", expected, lambda value: 0.0 < value < 1.0)
        self._write_plainly("free_fraction")
        if not 0 < self.free_until < self.refit_from:
            raise invalid("free_fraction", "Settings", expected, share)
        if self.target_density is None:
            advice = "Without a target, leave out free_fraction."
            raise invalid("target_density", "Settings", "given with free_fraction", None, advice)

    def _write_plainly(self, *names: str) -> None:
        """Convert scalars of NumPy and PyTorch to Python numbers, which files can store."""
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, int | float | None):
                object.__setattr__(self, name, float(value))

    def named(self) -> dict[str, Any]:
        """The fields by name, without unused ones that files of earlier versions do not have.

        >>> "shift" in Settings().named(), "shift" in Settings(shift=2).named()
        (False, True)
        """
        every = {field.name: getattr(self, field.name) for field in fields(self)}
        later = {*_LATER} if self.free_fraction is not None else {*_LATER, *_PHASES}
        return {name: value for name, value in every.items() if name not in later or value != _DEFAULT[name]}

    @property
    def targets(self) -> tuple[float, ...]:
        """The target densities: none, one for the network, or one per layer."""
        if self.target_density is None:
            return ()
        given = self.target_density
        return tuple(given) if isinstance(given, tuple | list) else (given,)

    @property
    def refit_from(self) -> int:
        """The first epoch with a fixed structure; the number of epochs if there is none."""
        return self.epochs - round(self.refit * self.epochs)

    @property
    def free_until(self) -> int:
        """The end of the phase whose posterior is the one to average over: without phases, the refit."""
        return self.refit_from if self.free_fraction is None else round(self.free_fraction * self.epochs)

    @property
    def noise_from(self) -> int:
        """The first epoch in which heteroscedastic noise weights the rows; until then only means are learned.

        >>> Settings(epochs=100).noise_from, Settings(epochs=1).noise_from
        (70, 0)
        """
        return int(_MEANS_ALONE * self.free_until)

    @property
    def approach(self) -> tuple[float, float]:
        """Between which epochs a target density is approached."""
        if self.free_fraction is not None:
            return self.free_until, self.free_until + _PHASED_APPROACH * (self.refit_from - self.free_until)
        begin, end = _APPROACH
        return begin * self.refit_from, end * self.refit_from

    def warmup_factor(self, epoch: int) -> float:
        """The share of the temperature in an epoch: up to 1; in the refit, times its temperature factor."""
        ramp = self.warmup * (self.epochs if self.free_fraction is None else self.free_until)
        factor = 1.0 if ramp == 0 else min(1.0, (epoch + 1) / ramp)
        return factor if epoch < self.refit_from else factor * self.refit_temperature_factor

    def beta(self, epoch: int) -> float:
        """The weight of the KL in an epoch."""
        return self.temperature * self.warmup_factor(epoch)

    def group_of(self, parameter: str) -> str:
        """The longest ending among the groups that fits a parameter's name; '' for the rest."""
        own = {*self.learning_rates, *self.schedules, *([_LOGITS] if self.refit else [])}
        return _longest(parameter, own) or ""

    def check_endings(self, parameters: Collection[str]) -> None:
        """Reject endings that match no parameter; the one of the inclusion logits may match none."""
        for what, given in (("learning_rates", self.learning_rates), ("schedules", self.schedules)):
            for ending in given:
                if ending != _LOGITS and not any(name.endswith(ending) for name in parameters):
                    known = ", ".join(sorted({repr(name.rsplit(".", 1)[-1]) for name in parameters}))
                    expected = "endings of the names of trained parameters"
                    raise invalid(
                        what, "Settings", expected, repr(ending), f"Last words of names here: {known}."
                    )

    def rate_of(self, group: str) -> str | None:
        """Which of ``learning_rates`` a group has: the longest ending that fits it."""
        return _longest(group, self.learning_rates)

    def base_rate(self, group: str) -> float:
        """The learning rate of a group of parameters before any schedule."""
        own = self.rate_of(group)
        return self.learning_rate if own is None else self.learning_rates[own]

    def schedule_of(self, group: str) -> Schedule:
        """The schedule of a group, likewise."""
        own = _longest(group, self.schedules)
        return schedule(self.schedule if own is None else self.schedules[own])

    def rate_factor(self, group: str, epoch: float) -> float:
        """What a group's schedule makes of its rate in an epoch; every phase starts again."""
        if epoch < self.free_until:
            return self.schedule_of(group).factor(epoch, self.free_until)
        if epoch < self.refit_from:
            return self.schedule_of(group).factor(epoch - self.free_until, self.refit_from - self.free_until)
        if group.endswith(_LOGITS):
            return 0.0
        return Cosine().factor(epoch - self.refit_from, self.epochs - self.refit_from)

    def rate(self, group: str, epoch: float) -> float:
        """The learning rate of a group of parameters in an epoch."""
        return self.base_rate(group) * self.rate_factor(group, epoch)


# Of what the frontier study tried with LBBNN-LRT on fully connected networks, the most accurate on the
# validation rows of MNIST, FMNIST and KMNIST together; LBBNN-FLOW's choices have its temperature too.
RECOMMENDED = Settings(learning_rates={_LOGITS: 1e-2}, temperature=0.03, warmup=0.5)
