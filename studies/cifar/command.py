"""Sparse Bayesian ResNets on a JPEG copy of CIFAR-10, next to plain, pruned and dense Bayesian ones.

    python -m studies cifar --data cifar10_jpeg.npz --device cuda

One row per method, density and seed: accuracy, NLL, calibration error, the same on corrupted images, seconds
per epoch. The images are a copy at JPEG quality 75: compare methods, not with published figures. All methods
have the same epochs, batches and augmentation; settings are fixed in advance, and test rows choose nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparsebnn import predict
from sparsebnn.inference import metrics
from sparsebnn.likelihoods import Categorical
from sparsebnn.nn import density, resnet
from sparsebnn.nn.image_networks import PlainResNet
from sparsebnn.posteriors import SpikeSlabPrior
from sparsebnn.training import BeforeRefit, Cosine, Run, Settings, Warmup, train
from sparsebnn.training.augmentation import Crop, Flip
from studies.baselines.deterministic import Deterministic
from studies.baselines.pruned import refit_pruned
from studies.cifar.images import CORRUPTIONS, corrupted, load
from studies.runner import Study, arguments, read_rows

__all__ = ["Spec", "main", "run"]

METHODS = ("plain", "dense", "lrt", "pruned")
_AUGMENT = (Crop(4), Flip())
_PARAMETERS = {"inclusion_logit": 1e-2}


@dataclass(frozen=True)
class Spec:
    """What is trained."""

    depth: int = 18
    densities: tuple[float, ...] = (0.1, 0.05)
    methods: tuple[str, ...] = METHODS
    epochs: int = 200
    batch_size: int = 128
    temperature: float = 0.01
    n_draws: int = 20
    rows: int | None = None
    test_rows: int | None = None
    autocast: str | None = "bfloat16"


QUICK = Spec(8, (0.5,), epochs=2, batch_size=32, n_draws=2, rows=64, test_rows=32, autocast=None)


def settings(spec: Spec, method: str, target: float | None = None) -> Settings:
    """Momentum for the plain network, Adam with a higher rate for inclusions for Bayesian ones."""
    shared: dict[str, Any] = {
        "epochs": spec.epochs,
        "batch_size": spec.batch_size,
        "schedule": Warmup(0.025, Cosine(0.0)),
        "autocast": spec.autocast,
        "channels_last": True,
    }
    if method in ("plain", "pruned"):
        # The loss is a sum over the batch: 0.1 of a mean is 0.1 / batch_size of a sum.
        rate = 0.1 / spec.batch_size
        return Settings(learning_rate=rate, optimizer="sgd", **shared)
    bayesian: dict[str, Any] = {"learning_rate": 1e-3, "temperature": spec.temperature, "warmup": 0.3}
    if target is None:
        return Settings(**bayesian, **shared)
    phases: dict[str, Any] = {"free_fraction": 0.5, "refit": 0.2, "refit_temperature_factor": 10.0}
    return Settings(**bayesian, **shared, **phases, learning_rates=_PARAMETERS, target_density=target)


def measured(network: Any, x: Tensor, y: Tensor, spec: Spec, model: str, draws: int) -> dict[str, float]:
    """Accuracy, NLL and calibration error, as they are and on each kind of corrupted images."""
    found: dict[str, float] = {}
    pixels = x.float() / 255.0
    for kind in ("", *CORRUPTIONS):
        rows = pixels if not kind else corrupted(pixels, kind)
        probs = predict(network, rows, Categorical(10), n_draws=draws, model=model).probs.cpu()
        tag = f"_{kind}" if kind else ""
        found[f"accuracy{tag}"] = float(metrics.accuracy(probs, y))
        found[f"nll{tag}"] = float(metrics.nll(probs, y))
        found[f"ece{tag}"] = float(metrics.calibration_error(probs, y))
    return found


def _seconds(run_: Run) -> float:
    """Seconds per epoch: the median, which leaves out the first."""
    each = sorted(epoch.seconds for epoch in run_.history)
    return each[len(each) // 2]


def run(
    spec: Spec, data: Path, seed: int, device: str, mode: str, done: Sequence[Any] = ()
) -> list[dict[str, Any]]:
    """The rows of one seed that are not done yet; a row is known by method and density."""
    x, y = load(data, "train", spec.rows)
    x_test, y_test = load(data, "test", spec.test_rows)
    options: dict[str, Any] = {
        "device": device,
        "mode": mode,
        "progress": False,
        "likelihood": Categorical(10),
    }
    options |= {"augment": _AUGMENT, "seed": seed}
    rows: list[dict[str, Any]] = []

    def add(
        method: str, run_: Run, target: float | None, model: str, draws: int, network: Any = None
    ) -> None:
        network = run_.network if network is None else network
        row = {"method": method, "target": target, "seed": seed, "depth": spec.depth, "epochs": spec.epochs}
        row |= measured(network, x_test, y_test, spec, model, draws)
        row |= {"model": model, "seconds_per_epoch": _seconds(run_), "first_seconds": run_.history[0].seconds}
        rows.append(row)

    def wanted(method: str, target: float | None = None) -> bool:
        return method in spec.methods and [method, target, seed] not in [list(one) for one in done]

    cuts = [target for target in spec.densities if wanted("pruned", target)]
    if wanted("plain") or cuts:
        torch.manual_seed(seed)
        plain = train(
            # A weight decay of 5e-4 on the mean loss is a normal prior of this width.
            Deterministic(PlainResNet(spec.depth), prior_std=(5e-4 * len(x)) ** -0.5),
            (x, y),
            settings=settings(spec, "plain"),
            **options,
        )
        if wanted("plain"):
            add("plain", plain, None, "average", 1)
        for target in cuts:
            after = replace(settings(spec, "pruned"), epochs=max(1, spec.epochs // 5))
            own = {name: value for name, value in options.items() if name != "seed"}
            cut = refit_pruned([plain.network], [target], (x, y), settings=after, seeds=[seed], **own)
            add("pruned", cut, target, "average", 1)
    if wanted("dense"):
        dense = train(
            resnet(spec.depth, family="gaussian"), (x, y), settings=settings(spec, "dense"), **options
        )
        add("dense", dense, None, "average", spec.n_draws)
    for target in spec.densities:
        if wanted("lrt", target):
            before = BeforeRefit()
            network = resnet(spec.depth, prior=SpikeSlabPrior(inclusion_prob=0.1))
            chosen = settings(spec, "lrt", target)
            sparse = train(network, (x, y), settings=chosen, callbacks=[before], **options)
            add("lrt", sparse, target, "median", spec.n_draws)
            rows[-1]["density"] = density(sparse.network).overall
            add("lrt, average", sparse, target, "average", spec.n_draws, before.networks[0])
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--data", type=Path, default=Path("../shared/data/cifar10_jpeg.npz"), help="the images")
    own.add_argument("--device", default="auto")
    own.add_argument("--mode", default="auto", help="how a step runs")
    own.add_argument("--seeds", type=int, default=3, help="number of seeds")
    own.add_argument("--depth", type=int, help="18, or 6n + 2")
    own.add_argument("--epochs", type=int)
    given = arguments("cifar", __doc__.split("\n")[0], argv, [own])
    spec = QUICK if given.quick else Spec()
    spec = replace(spec, depth=given.depth or spec.depth, epochs=given.epochs or spec.epochs)
    study = Study("cifar", given)
    for seed in range(given.seed, given.seed + (1 if given.quick else given.seeds)):
        known = read_rows(study.folder / "rows.jsonl")
        done = [(row["method"], row["target"], row["seed"]) for row in known if row["depth"] == spec.depth]
        study.append(run(spec, given.data, seed, given.device, given.mode, done))
    for row in read_rows(study.folder / "rows.jsonl"):
        print(
            {
                name: row.get(name)
                for name in ("method", "target", "seed", "accuracy", "nll", "ece", "density")
            }
        )
    return 0
