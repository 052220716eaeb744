"""MNIST with a few hundred to a few thousand weights, next to published sparse networks.

    python -m studies few_weights --data data --device cuda --validate    # candidates on validation rows
    python -m studies few_weights --data data --device cuda               # ten seeds on the test rows

Accuracy of the median model at its posterior means. A weight counts if it is active, that is, on a path
from an input to an output. ``--validate`` trains on 50,000 rows and scores candidates on the other 10,000
training rows; candidates that differ in rates and temperatures train as replicates of one program. The most
accurate candidate of each case is then trained for more epochs with ten seeds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import sparsebnn
from sparsebnn.nn import compact
from sparsebnn.nn.convolutions import Conv2d
from sparsebnn.posteriors import EmpiricalPrior
from sparsebnn.selection import active_paths
from sparsebnn.training.devices import device_of
from studies.runner import Study, arguments, count, fill_page, read_rows

__all__ = ["CANDIDATES", "CASES", "How", "choices", "chosen", "main", "table", "trained"]

_IMAGE = (1, 28, 28)
_SCORED = 10_000  # validation rows


@dataclass(frozen=True)
class Case:
    """A network, how many weights it may have, and what is published with as many."""

    title: str
    weights: int
    published: str
    aim: float


CASES = {
    "skip": Case("784-600-600-10 with input skip", 887, "ISLaB: 96.48% / 1,158, 96.71% / 887", 0.972),
    "conv": Case(
        "LeNet-5 with input skip", 451, "ISLaB, LRT 98.31% / 451, FLOW 98.23% / 1,014", 0.985
    ),
    "lenet300": Case("LeNet-300-100", 3_914, "sparse variational dropout 98.08% / 3,914 (68×)", 0.983),
    "caffe": Case("LeNet-5-Caffe", 1_537, "sparse variational dropout 99.25% / 1,537 (280×)", 0.9925),
}  # fmt: skip


@dataclass(frozen=True)
class How:
    """How to train. The first three may differ between the replicates of a program."""

    temperature: float = 0.1
    learning_rate: float = 0.01
    inclusion_rate: float = 0.03
    epochs: int = 100
    batch_size: int = 200
    free: float = 0.2
    refit: float = 0.2
    refit_factor: float = 3.0
    shift: int = 0

    @property
    def name(self) -> str:
        extra = f", shift {self.shift}" * bool(self.shift)
        rates = f"rates {self.learning_rate:g} and {self.inclusion_rate:g}"
        phases = f"free {self.free:g}, refit {self.refit:g} × {self.refit_factor:g}"
        batches = f"{self.epochs} epochs of {self.batch_size}"
        return f"temperature {self.temperature:g}, {rates}, {batches}, {phases}{extra}"

    @property
    def program(self) -> How:
        """What all replicates of a program share."""
        return replace(self, temperature=1.0, learning_rate=1.0, inclusion_rate=1.0)


def _grid(program: How, *triples: tuple[float, float, float]) -> tuple[How, ...]:
    return tuple(
        replace(program, temperature=t, learning_rate=rate, inclusion_rate=logits)
        for t, rate, logits in triples
    )


_RATES = (*((t, rate, 0.03) for t in (0.03, 0.1, 0.3) for rate in (0.003, 0.01, 0.03)), (0.03, 0.01, 0.1))
CANDIDATES: dict[str, tuple[How, ...]] = {
    "skip": _grid(How(epochs=80), *_RATES),
    "lenet300": (*_grid(How(epochs=50), *_RATES), *_grid(How(epochs=50, shift=1), *_RATES)),
    "conv": _grid(How(epochs=25, shift=1), *_RATES),
    "caffe": _grid(How(epochs=25, shift=1), *_RATES),
}
# Epochs of the final networks.
EPOCHS = {"skip": 200, "lenet300": 150, "conv": 80, "caffe": 80}


def chosen(case: str, rows: Sequence[dict[str, Any]]) -> How:
    """The candidate that is most accurate on validation rows, with the epochs of the final networks."""
    own = [row for row in rows if row["case"] == case and row["validate"]]
    if not own:
        return replace(CANDIDATES[case][0], epochs=EPOCHS[case])
    best = max(own, key=lambda row: row["accuracy"])
    return replace(How(**{name: best[name] for name in asdict(How())}), epochs=EPOCHS[case])


def network(case: str, recipe: Any) -> nn.Module:
    """The network of a case, with the start and the prior of a recipe."""
    if case == "skip":
        return nn.Sequential(nn.Flatten(), recipe.mlp((784, 600, 600, 10), input_skip=True))
    if case == "lenet300":
        return nn.Sequential(nn.Flatten(), *recipe.mlp((784, 300, 100, 10)))
    if case == "conv":
        return recipe.lenet(input_skip=True)
    own: dict[str, Any] = {"family": recipe.family, "initial": recipe.initial}
    first, second = (Conv2d(*size, prior=EmpiricalPrior(), **own) for size in ((1, 20, 5), (20, 50, 5)))
    pooled = nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(first, *pooled, second, *pooled, nn.Flatten(), *recipe.mlp((800, 500, 10)))


def trained(
    case: str,
    how: Sequence[How],
    seeds: Sequence[int],
    rows: tuple[Tensor, Tensor, Tensor, Tensor],
    device: str,
    mode: str,
    weights: int | None = None,
) -> list[dict[str, Any]]:
    """Train one program, a replicate for each of ``how`` and ``seeds``, and score its median models.

    ``rows`` are training images and labels and those to score.
    """
    x, y, scored, truth = rows
    one = how[0]
    wanted = CASES[case].weights if weights is None else weights
    total = sparsebnn.density(network(case, sparsebnn.recipe())).total
    made = sparsebnn.recipe(
        "recommended",
        target_density=(wanted + 0.01) / total,
        epochs=one.epochs,
        batch_size=one.batch_size,
        shift=one.shift,
        free_fraction=one.free,
        refit=one.refit,
        refit_temperature_factor=one.refit_factor,
    )
    began = time.perf_counter()
    run = sparsebnn.train(
        network(case, made),
        (x, y),
        settings=made.settings,
        replicates=list(seeds),
        per_replicate={
            "temperature": [each.temperature for each in how],
            "learning_rate": [each.learning_rate for each in how],
            "learning_rates.inclusion_logit": [each.inclusion_rate for each in how],
        },
        device=device,
        mode=mode,
        progress=False,
    )
    seconds = time.perf_counter() - began
    pixels, found = scored.float() / 255.0, []
    for net, each, seed in zip(run.networks, how, seeds):
        paths = active_paths(net.cpu(), _IMAGE)
        with torch.no_grad():
            outputs = compact(net).network(pixels)
        found.append(
            {
                "case": case,
                "settings": each.name,
                "seed": seed,
                **asdict(each),
                "accuracy": float((outputs.argmax(1) == truth).float().mean()),
                "nll": float(nn.functional.cross_entropy(outputs, truth)),
                "active": paths.n_weights,
                "inputs": int(paths.inputs.sum()),
                "mode": run.mode,
                "seconds": seconds,
            }
        )
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Medians over seeds, with the smallest and largest accuracy."""
    lines = [
        "| network | seeds | accuracy | aim | active weights | inputs | published |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, case in CASES.items():
        own = [row for row in rows if row["case"] == name and not row["validate"]]
        if own:
            scores = [row["accuracy"] for row in own]
            middle = f"{median(scores):.2%} ({min(scores):.2%} to {max(scores):.2%})"
            counts = [f"{median(row[key] for row in own):g}" for key in ("active", "inputs")]
            cells = [case.title, str(len(own)), middle, f"{case.aim:.2%}", *counts, case.published]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def choices(rows: Sequence[dict[str, Any]], most: int = 6) -> str:
    """The best candidates of each case on validation rows, and the worst."""
    lines = ["| network | settings | accuracy on validation rows | active weights |", "|---|---|---|---|"]
    for name, case in CASES.items():
        own = [row for row in rows if row["case"] == name and row["validate"]]
        own.sort(key=lambda row: -row["accuracy"])
        for row in own[:most] + own[max(most, len(own) - 1) :]:
            lines.append(f"| {case.title} | {row['settings']} | {row['accuracy']:.2%} | {row['active']} |")
    return "\n".join(lines)


def _images(data: Path | None, validate: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images (uint8) and labels, and those that are scored."""
    mnist = sparsebnn.data.load("mnist", data)
    every = mnist.x_train.reshape(-1, *_IMAGE)  # bytes
    if validate:
        return every[:-_SCORED], mnist.y_train[:-_SCORED], every[-_SCORED:], mnist.y_train[-_SCORED:]
    return every, mnist.y_train, mnist.x_test.reshape(-1, *_IMAGE), mnist.y_test


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing, append its rows, and renew the page."""
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--data", type=Path, help="folder with mnist.npz")
    options.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    options.add_argument("--seeds", type=count, default=10, help="replicates (default 10)")
    options.add_argument("--validate", action="store_true", help="score the candidates on validation rows")
    options.add_argument("--programs", type=int, nargs="+", help="with --validate: only these, from 0")
    options.add_argument("--device", default="auto")
    options.add_argument("--mode", default="auto", help="how a step runs")
    study = Study("few_weights", arguments("few_weights", __doc__.split("\n")[0], argv, [options]))
    given = study.given
    rows = _images(given.data, given.validate)
    if given.quick:
        rows = tuple(each[:200] for each in rows)  # type: ignore[assignment]
    path = study.folder / "rows.jsonl"
    known = {(row["case"], row["settings"], row["seed"], row["validate"]) for row in read_rows(path)}
    for case in given.cases:
        every = CANDIDATES[case] if given.validate else (chosen(case, read_rows(path)),)
        if given.quick:
            every = tuple(replace(how, epochs=5, batch_size=100) for how in every)
        programs = list(dict.fromkeys(how.program for how in every))
        for number, program in enumerate(programs):
            if given.programs is not None and number not in given.programs:
                continue
            hows = [how for how in every if how.program == program]
            if not given.validate:
                hows *= 1 if given.quick else given.seeds
            jobs = [(how, given.seed + k) for k, how in enumerate(hows)]
            jobs = [(how, seed) for how, seed in jobs if (case, how.name, seed, given.validate) not in known]
            if not jobs:
                continue
            chosen_ones, seeds = zip(*jobs)
            found = trained(case, chosen_ones, seeds, rows, given.device, given.mode)
            study.append(
                [{**row, "validate": given.validate} for row in found], device_of(given.device, "few_weights")
            )
    found = read_rows(path)
    print(choices(found) if given.validate else table(found))
    page = Path(given.out) / "docs" / "studies" / "few_weights.md"
    if page.exists():
        fill_page(page, table(found))
        fill_page(page, choices(found), "choices")


if __name__ == "__main__":
    main()
