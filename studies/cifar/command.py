"""Sparse Bayesian ResNets on a JPEG copy of CIFAR-10, next to plain, pruned and dense Bayesian ones.

    python -m studies cifar --data cifar10_jpeg.npz --device cuda              # rows and page
    python -m studies cifar --data cifar10_jpeg.npz --device cuda --validate   # candidates for the settings

One row per method, density and seed: accuracy, NLL, calibration error, the same on corrupted images, seconds
per epoch. The images are a copy at JPEG quality 75: compare methods, not with published figures. All methods
have the same epochs, batches and augmentation. The settings of Bayesian networks are chosen on 5,000 training
rows that no candidate is trained on; test rows choose nothing.

A row is written as soon as it is measured, and rows that are there are not made again.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparsebnn import predict
from sparsebnn.inference import metrics
from sparsebnn.init import Initial, Normal
from sparsebnn.likelihoods import Categorical
from sparsebnn.nn import convert, density, resnet
from sparsebnn.nn.image_networks import PlainResNet
from sparsebnn.nn.networks import bayesian_layers
from sparsebnn.posteriors import GaussianPrior, SpikeSlabPrior
from sparsebnn.training import Cosine, CutAtRefit, Run, Settings, Warmup, train
from sparsebnn.training.augmentation import Crop, Flip
from studies.baselines.deterministic import Deterministic
from studies.baselines.pruned import refit_pruned
from studies.cifar.images import CORRUPTIONS, corrupted, load
from studies.cifar.page import candidate_table, table
from studies.runner import Study, append_rows, arguments, fill_page, read_rows

__all__ = ["CANDIDATES", "CHOSEN", "Posterior", "Spec", "main", "rows_of"]

METHODS = ("plain", "pruned", "lrt from plain", "dense", "lrt")
HELD_OUT, VALIDATION_SEED = 5000, 100
_SHUFFLE = 17  # which training rows are held out
_AUGMENT = (Crop(4), Flip())
_REST = 0.5  # the share of the epochs from the free posterior to the sparse network
_MORE = 0.4  # so many more epochs from the plain network on, pruned or Bayesian
_REFIT = 0.4  # the share of these with a fixed structure, if the density comes down step by step
# All weights begin alike: in short trainings a spread of starts would choose among them.
_START = Initial(inclusion_logit=Normal(3.0, 0.1))


@dataclass(frozen=True)
class Posterior:
    """What validation rows choose: prior, temperature and rates of Bayesian networks, and how they are cut.

    ``gradual``: the density comes down epoch by epoch, as ``Settings(target_density=…)`` has it. Otherwise
    the free posterior is cut at once (``CutAtRefit``), and the rest of the epochs trains what is left.
    """

    temperature: float = 1e-2
    slab_std: float = 0.1
    rate: float = 3e-3
    logit_rate: float = 3e-2
    refit_factor: float = 1.0
    gradual: bool = False
    # From the weights of a plain network: rates of means and of raw standard deviations, and the share of the
    # epochs before the cut.
    tuned_rate: float = 1e-3
    tuned_std_rate: float = 1e-3
    tuned_free: float = 0.12


CANDIDATES = {
    18: (
        Posterior(),
        Posterior(gradual=True),
        Posterior(temperature=1e-3),
        Posterior(rate=1e-2),
        Posterior(rate=1e-3),
        Posterior(temperature=3e-2),
        Posterior(logit_rate=1e-1),
        Posterior(refit_factor=0.1),
        Posterior(temperature=1e-3, gradual=True),
        Posterior(slab_std=1.0),
    ),
    20: (
        Posterior(temperature=3e-2),
        Posterior(temperature=3e-2, gradual=True),
        Posterior(temperature=1e-1),
        Posterior(temperature=3e-3),
        Posterior(temperature=3e-2, rate=1e-2),
    ),
}
# A slab of 0.011 at a temperature of 0.003 pulls on weights as the plain network's weight decay does.
TUNED = (
    Posterior(temperature=3e-3),
    Posterior(temperature=3e-3, slab_std=0.011),
    Posterior(temperature=3e-3, slab_std=0.011, tuned_rate=3e-3),
    Posterior(temperature=1e-3, slab_std=0.0065),
    Posterior(temperature=1e-2, slab_std=0.02),
    Posterior(temperature=3e-3, slab_std=0.011, tuned_std_rate=1e-2),
    Posterior(temperature=3e-3, slab_std=0.011, tuned_free=0.3),
    Posterior(temperature=3e-2, slab_std=0.035, tuned_std_rate=1e-2),
    Posterior(temperature=1e-1, slab_std=0.063, tuned_std_rate=1e-2),
    Posterior(temperature=3e-1, slab_std=0.11, tuned_std_rate=1e-2),
    Posterior(temperature=1.0, slab_std=0.2, tuned_std_rate=1e-2),
)
# By depth. For 18, validation rows gave 1e-2 the lower calibration error and 1e-3 the lower NLL.
CHOSEN = {18: Posterior(temperature=3e-3), 20: Posterior(temperature=3e-2)}
# From plain weights: of the highest accuracies on validation rows the one with the lowest NLL.
CHOSEN_TUNED = Posterior(temperature=3e-3, slab_std=0.011, tuned_std_rate=1e-2)


@dataclass(frozen=True)
class Spec:
    """What is trained."""

    depth: int = 18
    densities: tuple[float, ...] = (0.1, 0.05)
    methods: tuple[str, ...] = METHODS
    epochs: int = 30
    batch_size: int = 512
    n_draws: int = 20
    autocast: str | None = "bfloat16"
    corruptions: tuple[str, ...] = CORRUPTIONS
    posterior: Posterior = field(default_factory=Posterior)
    tuned: Posterior = CHOSEN_TUNED


QUICK = Spec(8, (0.5,), epochs=4, batch_size=32, n_draws=2, autocast=None)


@dataclass
class Bench:
    """Images to train on and to be measured on, where and how, and until when."""

    spec: Spec
    rows: tuple[Tensor, Tensor]
    held: tuple[Tensor, Tensor]
    device: str
    mode: str
    until: float = float("inf")
    spent: dict[str, float] = field(default_factory=dict)

    def settings(self, epochs: int, **more: Any) -> Settings:
        return Settings(
            epochs=epochs,
            batch_size=self.spec.batch_size,
            schedule=Warmup(0.2, Cosine(0.0)),
            autocast=self.spec.autocast,
            channels_last=True,
            **more,
        )

    def momentum(self, epochs: int) -> Settings:
        """For plain networks, a rate of 0.1 at 128 rows a batch; the loss is a sum over the batch."""
        return self.settings(epochs, learning_rate=0.1 / 128, optimizer="sgd")

    def adam(self, epochs: int, chosen: Posterior | None = None, **more: Any) -> Settings:
        """For Bayesian networks, with a higher rate for inclusions."""
        chosen = chosen or self.spec.posterior
        more = {"learning_rates": {"inclusion_logit": chosen.logit_rate}, **more}
        return self.settings(epochs, learning_rate=chosen.rate, temperature=chosen.temperature, **more)

    def options(self, seed: int) -> dict[str, Any]:
        where = {"device": self.device, "mode": self.mode, "progress": False}
        return {**where, "likelihood": Categorical(10), "augment": _AUGMENT, "seed": seed}

    def measured(self, network: Any, model: str, draws: int) -> dict[str, float]:
        """Accuracy, NLL and calibration error, as they are and on each kind of corrupted images."""
        found: dict[str, float] = {}
        x, y = self.held
        where = next(network.parameters()).device
        pixels = x.to(where).float() / 255.0
        for kind in ("", *self.spec.corruptions):
            rows = pixels if not kind else corrupted(pixels, kind)
            with _rounding(where.type, self.spec.autocast):
                probs = predict(network, rows, Categorical(10), n_draws=draws, model=model).probs
            probs, tag = probs.float().cpu(), f"_{kind}" if kind else ""
            found[f"accuracy{tag}"] = float(metrics.accuracy(probs, y))
            found[f"nll{tag}"] = float(metrics.nll(probs, y))
            found[f"ece{tag}"] = float(metrics.calibration_error(probs, y))
        return found

    def timed(self, kind: str, make: Callable[[], Run]) -> Run:
        """A training, if the time that is left is what the last one of its kind took."""
        began = time.monotonic()
        if began + self.spent.get(kind, 0.0) > self.until:
            raise TimeoutError(f"No time is left for {kind}.")
        made = make()
        self.spent[kind] = 1.1 * (time.monotonic() - began)
        return made


def _rounding(device: str, autocast: str | None) -> Any:
    return (
        torch.autocast(device, torch.bfloat16) if autocast and device == "cuda" else contextlib.nullcontext()
    )


def rows_of(
    bench: Bench, seed: int, done: Callable[[str, float | None], bool], plain: Run | None = None
) -> Iterator[dict[str, Any]]:
    """The rows of one seed that are not done yet, as they come; a row is known by method and density.

    ``plain`` is the plain network of this seed, if it is trained already.
    """
    spec, options = bench.spec, bench.options(seed)

    def wanted(method: str, target: float | None = None) -> bool:
        return method in spec.methods and not done(method, target)

    def row(method: str, run: Run, target: float | None, model: str, draws: int) -> dict[str, Any]:
        made = {"method": method, "target": target, "seed": seed, "depth": spec.depth, "epochs": spec.epochs}
        began = time.monotonic()
        made |= bench.measured(run.network, model, draws)
        made |= {"model": model, "density": density(run.network).overall, "mode": run.mode}
        made |= {"train_seconds": run.train_seconds, "prepare_seconds": run.compile_seconds}
        made |= {"predict_seconds": time.monotonic() - began, "batch_size": spec.batch_size}
        chosen = spec.tuned if method == "lrt from plain" else spec.posterior
        return made | {"seconds_per_epoch": _middle(run), **asdict(chosen)}

    cuts = [target for target in spec.densities if wanted("pruned", target)]
    tuned = [target for target in spec.densities if wanted("lrt from plain", target)]
    if wanted("plain") or cuts or tuned:
        plain = _plain(bench, seed) if plain is None else plain
        if wanted("plain"):
            yield row("plain", plain, None, "average", 1)
        for target in cuts:
            after = bench.momentum(max(2, round(_MORE * spec.epochs)))
            others = {name: value for name, value in options.items() if name != "seed"}
            others |= {"settings": after, "seeds": [seed]}

            def cut(target: float = target, others: dict[str, Any] = others) -> Run:
                return refit_pruned([plain.network], [target], bench.rows, **others)

            yield row("pruned", bench.timed("pruned", cut), target, "average", 1)
        yield from _tuned(bench, plain.network, tuned, options, row)
    if wanted("dense"):
        dense = resnet(spec.depth, family="gaussian", prior=GaussianPrior(std=spec.posterior.slab_std))
        given = bench.adam(spec.epochs, learning_rates={}, warmup=0.3)
        run = bench.timed("dense", lambda: train(dense, bench.rows, settings=given, **options))
        yield row("dense", run, None, "average", spec.n_draws)
    targets = [target for target in spec.densities if wanted("lrt", target)]
    if targets:
        yield from _sparse(bench, targets, options, row, not done("lrt, free", None))


def _plain(bench: Bench, seed: int) -> Run:
    torch.manual_seed(seed)
    # A weight decay of 5e-4 on the mean loss is a normal prior of this width.
    network = Deterministic(PlainResNet(bench.spec.depth), prior_std=(5e-4 * len(bench.rows[0])) ** -0.5)
    given = {"settings": bench.momentum(bench.spec.epochs), **bench.options(seed)}
    return bench.timed("plain", lambda: train(network, bench.rows, **given))


def _tuned(
    bench: Bench, plain: Any, targets: Sequence[float], options: dict[str, Any], row: Any
) -> Iterator[dict[str, Any]]:
    """From the weights of a plain network to every target density."""
    epochs = max(2, round(_MORE * bench.spec.epochs))
    chosen = bench.spec.tuned
    free = max(1, round(chosen.tuned_free * epochs))
    for target in targets:
        prior = SpikeSlabPrior(0.1, std=chosen.slab_std)
        network = convert(plain.weights.module, pretrained=True, prior=prior, initial=_START)
        _include_large(network, target)
        rates = {"inclusion_logit": chosen.logit_rate, "raw_std": chosen.tuned_std_rate}
        settings = bench.adam(epochs, chosen, refit=1.0 - free / epochs, learning_rates=rates)
        settings = replace(settings, learning_rate=chosen.tuned_rate)
        given = {"settings": settings, "start": "given", "callbacks": [CutAtRefit(target)], **options}

        def tune(network: Any = network, given: dict[str, Any] = given) -> Run:
            return train(network, bench.rows, **given)

        yield row("lrt from plain", bench.timed("lrt from plain", tune), target, "median", bench.spec.n_draws)


@torch.no_grad()
def _include_large(network: Any, share: float) -> None:
    """Start the inclusions by the sizes of the weights, all layers together, around those of that share."""
    families: list[Any] = [layer.weights for _, layer in bayesian_layers(network)]
    sizes = torch.cat([family.mean.abs().flatten() for family in families])
    least = torch.kthvalue(sizes, max(1, round((1.0 - share) * len(sizes)))).values
    for family in families:
        family.inclusion_logit.copy_((3.0 + 2.0 * (family.mean.abs() / least).log()).clamp(-3.0, 6.0))


def _sparse(
    bench: Bench, targets: Sequence[float], options: dict[str, Any], row: Any, free_row: bool
) -> Iterator[dict[str, Any]]:
    """From one posterior that is trained without a target, every target density."""
    spec = bench.spec
    rest = max(2, round(_REST * spec.epochs))
    prior = SpikeSlabPrior(0.1, std=spec.posterior.slab_std)
    network = resnet(spec.depth, prior=prior, initial=_START)
    given = bench.adam(max(1, spec.epochs - rest), warmup=0.3)
    free = bench.timed("free", lambda: train(network, bench.rows, settings=given, **options))
    if free_row:
        yield row("lrt, free", free, None, "average", spec.n_draws)
    for target in targets:
        how: dict[str, Any] = {"target_density": target, "refit": _REFIT}
        if not spec.posterior.gradual:
            how = {"refit": 1.0 - 1.0 / rest}  # after one epoch
        after = bench.adam(rest, refit_temperature_factor=spec.posterior.refit_factor, **how)
        start = {"start": [free.network], "settings": after}
        start["callbacks"] = [] if spec.posterior.gradual else [CutAtRefit(target)]
        run = bench.timed("lrt", lambda start=start: train(network, bench.rows, **start, **options))  # type: ignore[misc]
        yield row("lrt", run, target, "median", spec.n_draws)


def _middle(run: Run) -> float:
    """Seconds per epoch: the median, which leaves out the first."""
    each = sorted(epoch.seconds for epoch in run.history)
    return each[len(each) // 2]


def held_out(x: Tensor, y: Tensor, count: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training rows without some, and these; the same ones whenever it is called."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(_SHUFFLE))
    rest, out = order[count:], order[:count]
    return (x[rest], y[rest]), (x[out], y[out])


def _validated(bench: Bench, candidates: Sequence[tuple[str, Posterior]], path: Path) -> None:
    """A plain network, and for every candidate's method and settings the way to the first density."""
    plain = _plain(bench, VALIDATION_SEED)
    for method, posterior in [("plain", Posterior()), ("pruned", Posterior()), *candidates]:
        spec = replace(bench.spec, methods=(method,), posterior=posterior, tuned=posterior)
        for made in rows_of(replace(bench, spec=spec), VALIDATION_SEED, lambda *_: False, plain):
            append_rows(path, [made])
            print(_short(made) | asdict(posterior), flush=True)


def _short(row: dict[str, Any]) -> dict[str, Any]:
    names = ["depth", "method", "target", "seed", "accuracy", "nll", "ece", "density"]
    names += ["seconds_per_epoch", "prepare_seconds", "predict_seconds"]
    short = {name: row[name] for name in names}
    return {name: round(v, 4) if isinstance(v, float) else v for name, v in short.items()}


def main(argv: Sequence[str] | None = None) -> int:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--data", type=Path, default=Path("../shared/data/cifar10_jpeg.npz"), help="the images")
    own.add_argument("--device", default="auto")
    own.add_argument("--mode", help="how a step runs (default: captured on a GPU)")
    own.add_argument("--seeds", type=int, default=3, help="number of seeds")
    own.add_argument("--depths", type=int, nargs="+", default=[18], help="18, or 6n + 2")
    own.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    own.add_argument("--densities", type=float, nargs="+")
    own.add_argument("--epochs", type=int)
    own.add_argument("--draws", type=int)
    own.add_argument("--no-free", action="store_true", help="leave out the rows of 'lrt, free'")
    own.add_argument("--rows", type=int, help="of the training set (default: all)")
    own.add_argument(
        "--limit-seconds", type=float, default=float("inf"), help="start nothing that ends later"
    )
    own.add_argument("--validate", action="store_true", help="compare candidates on validation rows")
    own.add_argument("--skip", type=int, default=0, help="so many candidates")
    own.add_argument(
        "--figures-only", action="store_true", help="write the page from the rows that are there"
    )
    given = arguments("cifar", __doc__.split("\n")[0], argv, [own])
    study = Study("cifar", given)
    path = study.folder / "rows.jsonl"
    if not given.figures_only:
        try:
            _measure(given, study)
        except TimeoutError as error:
            print(error, "The rows that were made are kept; run the command again for the others.")
    page = Path(given.out) / "docs" / "studies" / "cifar.md"
    if page.exists() and read_rows(path):
        fill_page(page, table(read_rows(path)), "rows")
        fill_page(page, candidate_table(read_rows(study.folder / "validation.jsonl")), "candidates")
    return 0


def _measure(given: argparse.Namespace, study: Study) -> None:
    until = time.monotonic() + given.limit_seconds
    device = "cuda" if given.device == "auto" and torch.cuda.is_available() else given.device
    mode = given.mode or ("captured" if device.startswith("cuda") else "auto")
    if device.startswith("cuda"):
        study.device = torch.device(device)
        torch.backends.cudnn.benchmark = True
    base = QUICK if given.quick else Spec()
    x, y = load(given.data, "train", 64 if given.quick else given.rows)
    rows, held = held_out(x, y, min(HELD_OUT, len(x) // 4))
    if not given.validate:
        rows, held = (x, y), load(given.data, "test", 32 if given.quick else None)
    for depth in [QUICK.depth] if given.quick else given.depths:
        spec = replace(
            base,
            depth=depth,
            posterior=CHOSEN.get(depth, Posterior()),
            methods=tuple(given.methods),
            densities=tuple(given.densities or base.densities),
            epochs=given.epochs or base.epochs,
            n_draws=given.draws or base.n_draws,
        )
        bench = Bench(spec, rows, held, device, mode, until)
        if given.validate:
            bench.spec = replace(spec, densities=spec.densities[:1], corruptions=())
            tried = {"lrt": CANDIDATES.get(depth, (Posterior(),)), "lrt from plain": TUNED}
            listed = [(name, each) for name in tried if name in given.methods for each in tried[name]]
            listed = listed[given.skip :]
            _validated(bench, listed, study.folder / "validation.jsonl")
            continue
        for seed in range(given.seed, given.seed + (1 if given.quick else given.seeds)):
            known = [row for row in read_rows(study.folder / "rows.jsonl") if _same(row, spec, seed)]
            done = {(row["method"], row["target"]) for row in known}
            done |= {("lrt, free", None)} if given.no_free else set()
            for row in rows_of(bench, seed, lambda *which, done=done: which in done):
                study.append([row])
                print(_short(row), flush=True)


def _same(row: dict[str, Any], spec: Spec, seed: int) -> bool:
    return (row["depth"], row["epochs"], row["seed"]) == (spec.depth, spec.epochs, seed)
