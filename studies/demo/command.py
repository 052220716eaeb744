"""The demonstration behind ``make run``: LBBNN-FLOW on handwritten digits, in about a minute.

Three replicates of a 64-100-100-10 network are trained as one program, and a deterministic network
of the same size. Every inclusion logit starts above 0, so all weights are included at first and the
sparsity is learned.

The temperature is 0.1: the KL counts a tenth, so what is fitted is a *tempered* posterior, not the
Bayes posterior.

The settings were chosen on validation rows only: a stratified quarter of the training part (337
digits, so differences of 0.01 in accuracy are noise), the network trained on the rest, three seeds. About
30 settings were tried; medians of the telling ones:

==============================  =================  =======  ===========  ============
setting                         accuracy           density  NLL          calibration
                                (averaged/median)                        error
==============================  =================  =======  ===========  ============
slab scale learned (**)         .970 / .973        .070     .092 / .084  .025 / .021
slab scale learned, temp. 0.05  .970 / .967        .123     .081 / .074  .027 / .019
rate 2e-2, temperature 0.1 (*)  .976 / .976        .091     .075 / .070  .022 / .014
the same, flow nets 50-50       .976 / .976        .093     .087 / .077  .025 / .020
rate 1e-2, flow nets 50-50      .976 / .970        .082     .102 / .099  .025 / .020
rate 3e-3, flow nets 50-50      .961 / .958        .071     .120 / .148  .024 / .024
logit rate 6e-2                 .970 / .970        .056     .083 / .084  .025 / .020
warm-up 0.8                     .976 / .970        .122     .078 / .072  .027 / .014
temperature 0.3                 .970 / .961        .036     .123 / .114  .044 / .021
temperature 1, nets 50-50       .953 / .950        .013     .188 / .174  .069 / .032
deterministic, rate 1e-3        .967               1        .104         .017
deterministic, rate 3e-3        .964               1        .118         .025
==============================  =================  =======  ===========  ============

(**) is what runs here: the recommended recipe with a temperature of 0.1, rate 2e-2 and logit rate 3e-2,
because there are few steps (warm-up 0.5, 100 epochs, flow nets 20-20). (*) is the same with a slab of
N(0, 1); lines below it change what they name. Between the two lie two digits of 337, a fifth of the weights
and a somewhat higher NLL. ``python -m studies demo --validate`` prints the first line and the
deterministic network's.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sparsebnn
from sparsebnn import metrics
from sparsebnn.app.provenance import commit, rounded
from sparsebnn.checks import InvalidInput, check_count, invalid
from sparsebnn.inference.prediction import ClassPrediction, predict
from sparsebnn.io import saving
from sparsebnn.io.data import Dataset, load
from sparsebnn.likelihoods import Categorical
from sparsebnn.nn.description import PriorValues, density, prior_values
from sparsebnn.training import Callback, Epoch, Run, Settings, train
from sparsebnn.training.devices import one_thread
from sparsebnn.training.recipes import Recipe, recipe
from studies.demo import picture as demo_picture
from studies.runner import write_json

__all__ = ["Result", "Row", "SIZES", "Spec", "main", "network", "run", "show"]

SIZES = (64, 100, 100, 10)
_FLOW = {"hidden": (20, 20)}
_LIKELIHOOD = Categorical(10)


@dataclass(frozen=True)
class Spec:
    """Everything that decides the figures; ``validate`` holds rows of the training part out instead."""

    seed: int = 0
    replicates: int = 3
    epochs: int = 100
    n_draws: int = 100
    validate: bool = False

    def __post_init__(self) -> None:
        check_count(self.seed, "seed", "the demo", least=0)
        check_count(self.replicates, "replicates", "the demo")
        check_count(self.epochs, "epochs", "the demo")
        check_count(self.n_draws, "n_draws", "the demo")

    @property
    def held_out(self) -> str:
        return "validation" if self.validate else "test"

    @property
    def settings(self) -> Settings:
        return _recipe(self.epochs).settings


@dataclass(frozen=True)
class Row:
    """One predictor's figures on the test part, an entry per seed."""

    name: str
    accuracy: list[float]
    density: list[float]
    nll: list[float]
    calibration_error: list[float]


@dataclass(frozen=True)
class Result:
    """What the demo found and where it put things."""

    spec: Spec
    rows: list[Row]
    seconds: float
    model: Path
    picture: Path
    table: Path
    priors: tuple[PriorValues, ...] = ()


def _recipe(epochs: int) -> Recipe:
    """The recommended recipe; with few steps, larger rates, and a temperature of 0.1."""
    rates = {"inclusion_logit": 3e-2}
    return recipe(
        "recommended",
        family="flow",
        epochs=epochs,
        temperature=0.1,
        learning_rate=2e-2,
        learning_rates=rates,
    )


def network() -> nn.Sequential:
    """The sparse network before training: a template, and what the saved model is loaded into."""
    return _recipe(Spec.epochs).mlp(SIZES, family_options=_FLOW)


def run(spec: Spec = Spec(), out: str | Path = "runs/demo", quiet: bool = False) -> Result:
    """Train, evaluate once on the test part, save model, picture and figures under ``out``."""
    began = time.perf_counter()
    folder = _prepare(Path(out))
    data = _validation(load("digits")) if spec.validate else load("digits")
    with one_thread():
        trained = _train(spec, data, quiet)
        networks = trained.networks
        averages = [_predict(each, data.x_test, spec, "average") for each in networks]
        medians = [_predict(each, data.x_test, spec, "median") for each in networks]
        plain = [_deterministic(data, seed, spec.epochs) for seed in trained.seeds]
    kept = [density(each).overall for each in networks]
    rows = [
        _row("full model averaging", [p.probs for p in averages], kept, data.y_test),
        _row("median probability model", [p.probs for p in medians], kept, data.y_test),
        _row("deterministic network", plain, [1.0] * len(plain), data.y_test),
    ]
    model = saving.save(
        networks[0],
        folder / "model.safetensors",
        trained.likelihood,
        sizes=SIZES,
        family="flow",
        family_options=_FLOW,
        data=data.name,
        seed=spec.seed,
        settings=_record(spec.settings),
    )
    note = (
        f"LBBNN-FLOW {'-'.join(map(str, SIZES))}, temperature {spec.settings.temperature:g}, "
        f"seed {spec.seed}. With these weights alone (the median probability model) "
        f"{rows[1].accuracy[0]:.1%} of {len(data.y_test)} {spec.held_out} digits are right."
    )
    picture = demo_picture.draw(networks[0], data, averages[0], note, folder / "picture.png")
    seconds = time.perf_counter() - began
    learned = tuple(prior_values(networks[0]))
    result = Result(spec, rows, seconds, model, picture, folder / "results.json", learned)
    _write(result, trained.seeds)
    return result


def _validation(data: Dataset) -> Dataset:
    """A quarter of the training part in the place of the test part, which stays unseen."""
    from sklearn.model_selection import train_test_split

    kept, held = train_test_split(
        range(len(data.y_train)), test_size=0.25, random_state=1, stratify=data.y_train.numpy()
    )
    return replace(
        data,
        x_train=data.x_train[kept],
        y_train=data.y_train[kept],
        x_test=data.x_train[held],
        y_test=data.y_train[held],
    )


def _train(spec: Spec, data: Dataset, quiet: bool) -> Run:
    # On the CPU also where there is a GPU, which would spend its time on compiling.
    return train(
        network(),
        (data.x_train, data.y_train),
        likelihood=_LIKELIHOOD,
        settings=spec.settings,
        replicates=spec.replicates,
        seed=spec.seed,
        device="cpu",
        callbacks=() if quiet or sys.stderr.isatty() else (_Lines(),),
        progress=False if quiet else None,
    )


def _prepare(folder: Path) -> Path:
    """Complain before training, not after it."""
    for package in ("matplotlib", "safetensors"):
        if importlib.util.find_spec(package) is None:
            raise ImportError(f"The demo needs {package!r}: pip install 'sparsebnn[all]'")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        got = f"{str(folder)!r} ({error.strerror})"
        raise invalid("out", "the demo", "a folder that can be made", got) from error
    return folder


def _predict(trained: nn.Module, x: Tensor, spec: Spec, model: str) -> ClassPrediction:
    prediction = predict(trained, x, _LIKELIHOOD, spec.n_draws, model=model)
    assert isinstance(prediction, ClassPrediction)
    return prediction


def _row(name: str, probs: Sequence[Tensor], kept: list[float], labels: Tensor) -> Row:
    return Row(
        name,
        accuracy=[metrics.accuracy(p, labels) for p in probs],
        density=kept,
        nll=[metrics.nll(p, labels) for p in probs],
        calibration_error=[metrics.calibration_error(p, labels) for p in probs],
    )


def _deterministic(data: Dataset, seed: int, epochs: int) -> Tensor:
    """Test probabilities of a plain network of the same size; its rate too is chosen on validation rows."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for inputs, outputs in zip(SIZES, SIZES[1:]):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        plain = nn.Sequential(*layers[:-1])
        optimiser = torch.optim.Adam(plain.parameters(), lr=1e-3)
        for _ in range(epochs):
            for rows in torch.randperm(len(data.y_train)).split(100):
                optimiser.zero_grad()
                F.cross_entropy(plain(data.x_train[rows]), data.y_train[rows]).backward()
                optimiser.step()
    with torch.no_grad():
        return torch.softmax(plain(data.x_test), dim=-1)


class _Lines(Callback):
    """Progress where there is no terminal: a line for every tenth of the epochs."""

    def on_epoch_end(self, run: Run, epoch: Epoch) -> None:
        done, total = epoch.epoch + 1, run.settings.epochs
        if done % max(1, total // 10) and done != total:
            return
        nll = statistics.median(epoch.nll) / run.batches.rows
        kept = statistics.median(epoch.density)
        print(f"epoch {done}/{total}  nll {nll:.4f}  density {kept:.3f}", file=sys.stderr, flush=True)


# -- what is shown and written ----------------------------------------------------------------------


def _record(settings: Settings) -> dict[str, Any]:
    return {**settings.named(), "schedule": repr(settings.schedule)}


def _write(result: Result, seeds: list[int]) -> None:
    """The figures with what made them; the output folder is left out, it names a machine."""
    spec = result.spec
    command = f"python -m studies demo --seed {spec.seed} --epochs {spec.epochs}"
    command += " --validate" if spec.validate else ""
    record = {
        "experiment": "demo",
        "provenance": {
            "command": command,
            "commit": commit(),
            "versions": {"sparsebnn": sparsebnn.__version__, "torch": torch.__version__},
            "seeds": seeds,
            "device": "cpu",
            "threads": 1,
            "seconds": round(result.seconds, 1),
        },
        "spec": asdict(spec),
        "settings": _record(spec.settings),
        "rows": [asdict(row) for row in result.rows],
        "priors": [prior._asdict() for prior in result.priors],
    }
    write_json(result.table, rounded(record))


def _cell(values: list[float]) -> list[str]:
    """The median and, below it, lowest and highest."""
    if len(values) == 1:
        return [f"{values[0]:.3f}"]
    return [f"{statistics.median(values):.3f}", f"{min(values):.3f}–{max(values):.3f}"]


def _cells(row: Row) -> list[list[str]]:
    # Averaging uses every weight a little, so the density belongs to the median model alone.
    kept = ["–"] if "averaging" in row.name else ["1"] if min(row.density) == 1.0 else _cell(row.density)
    return [[row.name], _cell(row.accuracy), kept, _cell(row.nll), _cell(row.calibration_error)]


def _print_table(rows: list[Row], held_out: str) -> None:
    head = [[f"{held_out} digits"], ["accuracy"], ["density"], ["NLL"], ["calibration", "error"]]
    lines = [_cells(row) for row in rows]
    try:
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        _print_plain([head, *lines])
        return
    table = Table(*("\n".join(cell) for cell in head), box=SIMPLE_HEAD)
    for line in lines:
        table.add_row(*("\n".join(cell) for cell in line))
    Console(highlight=False).print(table)


def _print_plain(lines: list[list[list[str]]]) -> None:
    widths = [max(len(text) for line in lines for text in line[i]) for i in range(len(lines[0]))]
    for line in lines:
        for height in range(max(map(len, line))):
            texts = [cell[height] if height < len(cell) else "" for cell in line]
            print("  " + "  ".join(text.ljust(width) for text, width in zip(texts, widths)).rstrip())
        print("  " + "─" * (sum(widths) + 2 * len(widths) - 2) if line is lines[0] else "")


def show(result: Result) -> None:
    """Print the table, what it means, and where the files are."""
    _print_table(result.rows, result.spec.held_out)
    seeds, temperature = result.spec.replicates, result.spec.settings.temperature
    print("One seed." if seeds == 1 else f"Median of {seeds} seeds; lowest–highest below.")
    print("Density: share of weights with inclusion probability above one half; it started at 1.")
    print(
        f"Temperature {temperature:g}, the factor of the KL: a tempered posterior, not the Bayes posterior."
    )
    if result.priors:
        scales = ", ".join(f"{prior.slab_std:.2f}" for prior in result.priors)
        rate, seed = result.priors[0].inclusion_prob, result.spec.seed
        print(f"Prior: inclusion {rate:.3g}; slab std learned by the layers (seed {seed}): {scales}.")
    print(f"\nModel    {result.model}\nPicture  {result.picture}\nFigures  {result.table}")
    print(f"Done in {result.seconds:.0f} s.")


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m studies demo``"""
    parser = argparse.ArgumentParser(
        prog="python -m studies demo", description="LBBNN-FLOW on handwritten digits."
    )
    parser.add_argument("--out", help="folder for model, picture and figures (runs/demo)")
    parser.add_argument("--seed", type=int, default=Spec.seed, help="seed of the first replicate")
    parser.add_argument("--epochs", type=int, default=Spec.epochs)
    parser.add_argument("--quick", action="store_true", help="five epochs")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--validate", action="store_true", help="hold out training rows, not the test part")
    options = parser.parse_args(argv)
    out = options.out or ("runs/demo-validation" if options.validate else "runs/demo")
    try:
        epochs = 5 if options.quick else options.epochs
        spec = Spec(seed=options.seed, epochs=epochs, validate=options.validate)
        show(run(spec, out, options.quiet))
    except InvalidInput as error:
        parser.exit(2, f"Error: {error}\n")
    return 0
