"""The frontier's cells: how dense they may be, what is tried, and how a trained network is measured.

A cell's density may be at most a third of the paper's LBBNN-FLOW (fully connected) or a fifth (LeNet).
Training has a free phase and a refit with the structure fixed; the density is reached in the free phase or at
once at its end (``cut``). Averaging is over the posterior before the refit or after it (``average_of``); the
median probability model is always the one after it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from sparsebnn.checks import check_choice
from sparsebnn.inference.calibration import Correction, correction
from sparsebnn.training import BeforeRefit, Callback, CutAtRefit, Epoch, Run
from sparsebnn.training.recipes import recipe
from studies.tables import evaluation
from studies.tables.paper import Cell, from_recipe
from studies.tables.published import printed

__all__ = ["AVERAGES", "Candidate", "Lines", "Program", "TARGETS", "cell_of", "measured", "most_density"]

TARGETS = (0.005, 0.01, 0.02, 0.05, 0.10)
AVERAGES = ("free", "refitted")
# Defaults of the command: seeds per candidate, draws per predictor of a choice (in full, quick), whose
# choice serves a data set without one. The draws are the final cells': a correction is for so many.
SEEDS, CHOOSE_DRAWS, CHOSEN_ON = 2, (100, 10), "kmnist"
# The most density a cell may have: this part of the paper's.
_PART = {"fc": 3.0, "lenet": 5.0}
# The digits are ours: no figure of the paper to divide.
_DIGITS_DENSITY = 0.05
# Aim a little below the limit: rounding must not cross it.
_BELOW = 0.99


@dataclass(frozen=True)
class Candidate:
    """What is chosen: temperature, rates, the refit's share, how the density is reached, what is averaged.

    ``cut`` is ``"gradual"`` (``target_density``: the prior's odds are moved while training goes on),
    ``"phased"`` (the same after a first half that is left free) or ``"late"`` (all at once when the refit
    begins). ``heat`` multiplies the temperature in the refit of a phased cut. For a pruned network
    (``temperature`` 0) only the rate and the refit mean something. ``shift`` is that of the settings. Both
    predictors are corrected by the logit_scale and the uniform_mix that the validation rows chose
    (:mod:`sparsebnn.inference.calibration`).
    """

    temperature: float
    rate: float = 1e-3
    logit_rate: float = 1e-2
    refit: float = 0.2
    cut: str = "late"
    heat: float = 1.0
    average_of: str = "free"
    sharpness_average: float = 1.0
    sharpness_median: float = 1.0
    doubt_average: float = 0.0
    doubt_median: float = 0.0
    shift: int = 0

    @property
    def corrections(self) -> dict[str, Correction]:
        """What corrects each predictor."""
        return {
            "average": Correction(self.sharpness_average, self.doubt_average),
            "median": Correction(self.sharpness_median, self.doubt_median),
        }


@dataclass(frozen=True)
class Program:
    """Candidates trained together: they share refit, cut, heat and shift; all else may differ."""

    refit: float
    cut: str
    heat: float
    candidates: tuple[Candidate, ...]


_RATES = (1e-3, 3e-3)
_Pairs = Sequence[tuple[float, float]]


def _grid(temperatures: Sequence[float], rates: Sequence[float]) -> list[tuple[float, float]]:
    return [(temperature, rate) for temperature in temperatures for rate in rates]


def _program(
    refit: float, cut: str, pairs: _Pairs, logit: float = 1e-2, heat: float = 1.0, shift: int = 0
) -> Program:
    each = tuple(Candidate(t, rate, logit, refit, cut, heat, shift=shift) for t, rate in pairs)
    return Program(refit, cut, heat, each)


_WIDE = [*_grid((0.1, 0.03, 0.01), _RATES), (0.3, 3e-3)]
_BOTH = _grid((0.1, 0.03, 0.01), _RATES)
PROGRAMS: dict[tuple[str, str], tuple[Program, ...]] = {
    ("fc", "lrt"): (
        _program(0.2, "phased", _WIDE, heat=10.0),
        _program(0.2, "phased", _WIDE, heat=30.0),
        _program(0.2, "gradual", _WIDE),
    ),
    ("fc", "flow"): (_program(0.2, "phased", _BOTH, heat=10.0),),
    ("lenet", "lrt"): (
        _program(0.2, "phased", _BOTH, heat=10.0),
        _program(0.2, "phased", _grid((0.1, 0.03, 0.01), (3e-3, 6e-3)), heat=10.0, shift=2),
    ),
    ("lenet", "flow"): (_program(0.2, "phased", _grid((0.1, 0.03), _RATES), heat=10.0),),
}
_PRUNED = tuple(_program(refit, "late", _grid((0.0,), _RATES)) for refit in (0.2, 0.4))
# Digits have few steps, so their rates are larger.
_DIGITS = tuple(
    _program(0.2, cut, _grid((0.3, 0.1, 0.03), (1e-2, 2e-2)), 3e-2, heat)
    for cut, heat in (("phased", 10.0), ("phased", 1.0), ("gradual", 1.0))
)
_DIGITS_PRUNED = tuple(_program(refit, "late", _grid((0.0,), (3e-3, 1e-2))) for refit in (0.2, 0.4))
_QUICK = tuple(_program(0.3, cut, _grid((0.1,), (1e-2,)), 3e-2) for cut in ("late", "phased"))
_QUICK_PRUNED = (_program(0.3, "late", _grid((0.0,), (1e-2, 3e-3))),)


def programs_of(architecture: str, method: str, dataset: str, quick: bool = False) -> tuple[Program, ...]:
    """What is tried for a cell, fixed before any of it is run."""
    pruned = method == "pruned"
    if dataset != "digits":
        return _PRUNED if pruned else PROGRAMS[architecture, method]
    if quick:
        return _QUICK_PRUNED if pruned else _QUICK
    return _DIGITS_PRUNED if pruned else _DIGITS


def most_density(architecture: str, dataset: str) -> float:
    """The limit of a cell's density.

    >>> round(most_density("fc", "kmnist"), 3), round(most_density("lenet", "kmnist"), 4)
    (0.032, 0.0702)
    """
    if dataset == "digits":
        return _DIGITS_DENSITY
    return printed(architecture, dataset, "flow").density / _PART[architecture]


def target_of(architecture: str, dataset: str) -> float:
    """The density that a cell is brought to."""
    return _BELOW * most_density(architecture, dataset)


def cell_of(
    architecture: str, method: str, dataset: str, quick: bool = False, epochs: int | None = None
) -> Cell:
    """The recommended recipe as a cell.

    Digits have 1,347 training rows: 1,400 steps where images have 60,000. Their rates are ten and three
    times as large, and the networks smaller.
    """
    made = from_recipe(architecture, recipe("recommended", family=method))
    settings = made.settings
    if dataset == "digits":
        rates = {"inclusion_logit": 3e-2}
        settings = replace(settings, learning_rate=1e-2, learning_rates=rates, epochs=10 if quick else 100)
        options = {"hidden": (20, 20)} if method == "flow" else made.family_options
        sizes = (64, 50, 50, 10) if quick else (64, 100, 100, 10)
        made = replace(made, family_options=options, sizes=sizes)
    return replace(made, settings=replace(settings, epochs=epochs or settings.epochs))


def with_candidate(made: Cell, chosen: Candidate, target: float | tuple[float, ...]) -> Cell:
    """A cell trained as a candidate says, down to ``target``; a late cut needs :func:`watchers` too."""
    check_choice(chosen.cut, ("gradual", "phased", "late"), "cut", "a candidate")
    phased = chosen.cut == "phased"
    settings = replace(
        made.settings,
        temperature=chosen.temperature,
        learning_rate=chosen.rate,
        learning_rates={"inclusion_logit": chosen.logit_rate},
        refit=chosen.refit,
        target_density=None if chosen.cut == "late" else target,
        shift=chosen.shift,
        free_fraction=0.5 if phased else None,
        refit_temperature_factor=chosen.heat if phased else 1.0,
    )
    return replace(made, settings=settings)


def watchers(cut: str, targets: float | Sequence[float], path: Path | None = None) -> list[Any]:
    """What keeps the posterior before the refit, and then cuts, if the cut is a late one."""
    before = BeforeRefit(path)
    return [before, CutAtRefit(targets)] if cut == "late" else [before]


class Lines(Callback):
    """Progress where there is no terminal: a line for every tenth of the epochs."""

    def __init__(self, label: str, quiet: bool = False) -> None:
        self.label, self.quiet = label, quiet

    def on_epoch_end(self, run: Run, epoch: Epoch) -> None:
        done, total = epoch.epoch + 1, run.settings.epochs
        if self.quiet or sys.stderr.isatty() or (done % max(1, total // 10) and done != total):
            return
        nll = statistics.median(epoch.nll) / run.batches.rows
        kept = f"density {min(epoch.density):.4f}–{max(epoch.density):.4f}"
        pace = f"{1000.0 * epoch.seconds / run.batches.per_epoch:.2f} ms a step"
        print(f"{self.label}: epoch {done}/{total}  nll {nll:.4f}  {kept}  {pace}", flush=True)


def train_options(given: argparse.Namespace) -> dict[str, Any]:
    """What the command says about how to run; the same for every stage."""
    live = sys.stderr.isatty() and not given.quiet
    return {"device": given.device, "mode": given.mode, "progress": None if live else False}


@dataclass(frozen=True)
class Outcome:
    """One posterior of a trained replicate, and what its two predictors say of some rows."""

    network: nn.Module
    probs: Mapping[str, Tensor]


def outcomes(run: Run, before: BeforeRefit, k: int, x: Tensor, made: Cell, draws: int) -> dict[str, Outcome]:
    """Replicate k after the refit ("refitted") and, if there was one, before it ("free")."""
    networks: dict[str, nn.Module] = {"refitted": run.replicates.unstack(k).network}
    if before.taken:
        networks["free"] = before.network(k)
    return {
        state: Outcome(network, evaluation.predicted(network, x, made, draws, run.seeds[k]))
        for state, network in networks.items()
    }


def fitted(found: Sequence[Mapping[str, Outcome]], y: Tensor) -> dict[str, dict[str, Correction]]:
    """For each posterior and predictor the correction that these rows choose, all replicates together."""
    labels = y.repeat(len(found))
    return {
        state: {
            model: correction(torch.cat([one[state].probs[model] for one in found]), labels)
            for model in evaluation.MODELS
        }
        for state in found[0]
    }


def measured(
    found: Mapping[str, Outcome],
    y: Tensor,
    corrections: Mapping[str, evaluation.Corrections] = MappingProxyType({}),
) -> dict[str, Any]:
    """A replicate after the refit, and its measures before it under names that end in ``_free``.

    ``corrections`` say for each of the two posteriors what corrects its predictors.
    """
    each = {
        state: evaluation.measures(one.network, one.probs, y, corrections.get(state, {}))
        for state, one in found.items()
    }
    free = each.get("free", {})
    free.pop("density_per_layer", None)
    return {**each["refitted"], **{f"{name}_free": value for name, value in free.items()}}


def of_state(row: dict[str, Any], average_of: str) -> dict[str, Any]:
    """The row with averaging over that posterior; the other's stays as ``…_average_refitted``.

    >>> row = {"nll_average": 0, "nll_average_free": 1, "nll_median": 2, "nll_median_free": 3}
    >>> of_state(row, "free")
    {'nll_average': 1, 'nll_median': 2, 'nll_median_free': 3, 'nll_average_refitted': 0}
    """
    if average_of == "refitted":
        return row
    own = dict(row)
    for name in row:
        if "_average" in name and name.endswith("_free"):
            bare = name.removesuffix("_free")
            if bare in own:
                own[f"{bare}_refitted"] = own[bare]
            own[bare] = own.pop(name)
    return own


def seeds_over(seeds: Sequence[int], blocks: int) -> list[int]:
    """Seeds of so many blocks one after the other, no two the same: each block's are moved by their reach.

    >>> seeds_over([0, 1], 3), seeds_over([2, 5], 2)
    ([0, 1, 2, 3, 4, 5], [2, 5, 6, 9])
    """
    reach = max(seeds) - min(seeds) + 1
    return [seed + block * reach for block in range(blocks) for seed in seeds]


def gone(run: Run) -> set[int]:
    """Replicates that stopped, whose values are not results."""
    return {stopped.replicate for stopped in run.stopped}
