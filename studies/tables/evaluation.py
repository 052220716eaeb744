"""A trained classifier to numbers: accuracy, NLL, calibration and Brier score of both predictors."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from sparsebnn import data as datasets
from sparsebnn import metrics
from sparsebnn.inference.calibration import Correction, correction
from sparsebnn.inference.prediction import class_probs
from sparsebnn.inference.sampling import draw_outputs
from sparsebnn.likelihoods import Categorical
from sparsebnn.nn.description import density
from studies.tables.paper import Cell

__all__ = ["MODELS", "Corrections", "accuracies", "evaluate", "inputs", "measures", "predicted", "quality"]

MODELS = ("average", "median")
Corrections = Mapping[str, Correction | None]
# Rows at a time: noise of local draws is a function of the batch, so this is part of the result.
_ROWS = 1000
# What a correction's numbers are called in result files.
RECORDED = {"logit_scale": "sharpness", "uniform_mix": "doubt"}


def inputs(x: Tensor, cell: Cell, image_shape: tuple[int, ...]) -> Tensor:
    """Rows as the cell's network takes them: flat, or as 28×28 images (8×8 ones are enlarged and framed)."""
    if cell.architecture == "fc":
        return x
    images = x.reshape(-1, 1, *image_shape)
    if tuple(image_shape) == (8, 8):
        images = images.repeat_interleave(3, -1).repeat_interleave(3, -2)
        images = torch.nn.functional.pad(images, (2, 2, 2, 2))
    return images


@torch.no_grad()
def probs(network: nn.Module, x: Tensor, cell: Cell, model: str, draws: int, seed: int) -> Tensor:
    """Class probabilities, averaged over draws of the whole posterior or of the median model."""
    likelihood = Categorical(cell.sizes[-1])
    # Noise held at a time. The draws stay the same; a GPU likes few large passes, a CPU small ones.
    memory = None if next(network.parameters()).device.type == "cuda" else 1 << 25
    pieces = draw_outputs(network, x, draws, model=model, seed=seed, batch_size=_ROWS, memory=memory)
    return torch.cat([class_probs(outputs, likelihood).mean(0) for _, outputs in pieces])


def accuracies(
    network: nn.Module, x: Tensor, y: Tensor, cell: Cell, draws: int, seed: int
) -> dict[str, float]:
    """Accuracy of both predictors."""
    return {f"accuracy_{m}": metrics.accuracy(probs(network, x, cell, m, draws, seed), y) for m in MODELS}


def predicted(network: nn.Module, x: Tensor, cell: Cell, draws: int, seed: int) -> dict[str, Tensor]:
    """Class probabilities of both predictors; ``seed`` is that of their draws."""
    return {model: probs(network, x, cell, model, draws, seed) for model in MODELS}


def evaluate(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    cell: Cell,
    draws: int,
    seed: int,
    corrections: Corrections = MappingProxyType({}),
) -> dict[str, Any]:
    """All measures of one trained network; ``seed`` is that of its draws."""
    return measures(network, predicted(network, x, cell, draws, seed), y, corrections)


def measures(
    network: nn.Module,
    given: Mapping[str, Tensor],
    y: Tensor,
    corrections: Corrections = MappingProxyType({}),
) -> dict[str, Any]:
    """Density, and accuracy and calibration of what the predictors gave.

    ``corrections`` change how sure a predictor is (``inference.calibration``), by what is given or, for
    None, by what these rows choose. They are recorded, and the measures before them end in ``_plain``.
    """
    kept = density(network)
    row: dict[str, Any] = {"density": kept.overall, "density_per_layer": list(kept.values())}
    for model, p in given.items():
        row[f"accuracy_{model}"] = metrics.accuracy(p, y)
        measured = _calibration(p, y)
        if model in corrections:
            row |= {f"{name}_{model}_plain": value for name, value in measured.items()}
            by = corrections[model] or correction(p, y)
            row |= {f"{RECORDED[name]}_{model}": value for name, value in vars(by).items()}
            measured = _calibration(by(p), y)
        row |= {f"{name}_{model}": value for name, value in measured.items()}
    return row


def _calibration(p: Tensor, y: Tensor) -> dict[str, float]:
    return {"nll": metrics.nll(p, y), "ece": metrics.calibration_error(p, y), "brier": metrics.brier(p, y)}


def quality(p: Tensor, y: Tensor, seed: int) -> dict[str, float]:
    """How good class probabilities are, with the calibration error's interval (200 resamples)."""
    low, high = metrics.calibration_interval(p, y, n_resamples=200, seed=seed)
    return {
        "accuracy": metrics.accuracy(p, y),
        **_calibration(p, y),
        "ece_low": low,
        "ece_high": high,
        "rejection_area": metrics.rejection_area(p, y),
    }


def test_rows(data: datasets.Dataset, cell: Cell, device: torch.device) -> tuple[Tensor, Tensor]:
    """The test part on its device."""
    return inputs(data.x_test, cell, data.image_shape).to(device), data.y_test.to(device)
