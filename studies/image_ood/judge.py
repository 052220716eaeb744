"""A trained predictor to numbers: how good it is at home, how well it notices images of another kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sparsebnn import metrics
from sparsebnn.inference.prediction import ClassPrediction, predict
from sparsebnn.io.data import Dataset
from sparsebnn.likelihoods import Categorical
from sparsebnn.nn.description import density
from studies.baselines.ensemble import predict_ensemble
from studies.tables.evaluation import quality
from studies.uncertainty.measures import SCORES

__all__ = ["LIKELIHOOD", "columns", "judge", "shaped"]

LIKELIHOOD = Categorical(10)


class Asking(Protocol):
    """What of a study's ``Spec`` decides how predictors are asked."""

    @property
    def architecture(self) -> str: ...
    @property
    def rows(self) -> int | None: ...
    @property
    def test_rows(self) -> int | None: ...
    @property
    def n_draws(self) -> int: ...
    @property
    def seed(self) -> int: ...


def shaped(x: Tensor, data: Dataset, architecture: str) -> Tensor:
    """Images as the architecture takes them."""
    return x if architecture == "fc" else x.reshape(-1, 1, *data.image_shape)


def _ask(spec: Asking, method: str, networks: list[nn.Module], x: Tensor) -> ClassPrediction:
    if method == "ensemble":
        return predict_ensemble(networks, x, LIKELIHOOD, seed=spec.seed)
    n_draws = 1 if method == "plain" else spec.n_draws
    found = predict(networks[0], x, LIKELIHOOD, n_draws, seed=spec.seed)
    assert isinstance(found, ClassPrediction)
    return found


def judge(
    spec: Asking, method: str, networks: list[nn.Module], home: str, sets: Mapping[str, Dataset]
) -> dict[str, Any]:
    """One predictor: how good it is at home, how well it notices the others."""
    data = sets[home]
    labels = data.y_test[: spec.test_rows]

    def ask(x: Tensor) -> ClassPrediction:
        return _ask(spec, method, networks, shaped(x, data, spec.architecture))

    # As many training rows as there are test rows are enough for a quantile.
    known, inside = ask(data.x_train[: spec.rows][: len(labels)]), ask(data.x_test[: spec.test_rows])
    probs = inside.probs.cpu()
    found: dict[str, Any] = {
        **quality(probs, labels, spec.seed),
        "aleatoric": float(inside.expected_entropy.mean()),
        "epistemic": float(inside.mutual_information.mean()),
        "density": density(networks[0]).overall,
        "foreign": {},
    }
    for other in (name for name in sets if name != home):
        found["foreign"][other] = _noticed(known, inside, ask(sets[other].x_test[: spec.test_rows]))
    return found


def _noticed(known: ClassPrediction, inside: ClassPrediction, outside: ClassPrediction) -> dict[str, Any]:
    """How well each score tells the rows outside from those inside; the alarm's level is of known rows."""
    found: dict[str, Any] = {
        "aleatoric": float(outside.expected_entropy.mean()),
        "epistemic": float(outside.mutual_information.mean()),
    }
    for name, score in SCORES.items():
        a, b = score(inside).double().cpu(), score(outside).double().cpu()
        threshold = torch.quantile(score(known).double().cpu(), 0.95)
        found[name] = {
            "auroc": metrics.auroc(a, b),
            "fpr95": metrics.fpr_at_tpr(a, b),
            "flagged_inside": float((a > threshold).double().mean()),
            "flagged_outside": float((b > threshold).double().mean()),
        }
    return found


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mappings of one shape as one mapping of lists.

    >>> columns([{"a": 1.0, "b": {"c": 2.0}}, {"a": 3.0, "b": {"c": 4.0}}])
    {'a': [1.0, 3.0], 'b': {'c': [2.0, 4.0]}}
    """
    return {
        name: columns([row[name] for row in rows])
        if isinstance(value, Mapping)
        else [row[name] for row in rows]
        for name, value in rows[0].items()
    }
