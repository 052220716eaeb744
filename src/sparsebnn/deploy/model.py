"""What can be exported, in one form: networks, runs of ``train`` and fitted estimators."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sparsebnn.checks import check_choice, check_count, check_tensor, invalid
from sparsebnn.deploy.predictor import Head, Predictor, example_of, predictor_of
from sparsebnn.deploy.table import TableModel, levels
from sparsebnn.estimators.columns import Column
from sparsebnn.estimators.encoding import Encoder, Table
from sparsebnn.io.cells import UNITS
from sparsebnn.likelihoods import Likelihood
from sparsebnn.nn.networks import check_no_hooks

__all__ = ["Exported", "exported"]

_DRAWS = 100  # of a network


@dataclass(frozen=True)
class Exported:
    """A predictor, an example of what it takes, and what a reader of the file wants to know.

    ``columns`` is None for a network, which takes tensors; ``named`` says whether the estimator was
    fitted on a frame, whose columns have names. ``classes`` are the labels of an estimator's classes.
    """

    predictor: Predictor
    example: Tensor
    model: str
    seed: int
    columns: tuple[Column, ...] | None = None
    named: bool = False
    classes: tuple[Any, ...] | None = None
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def module(self) -> nn.Module:
        """The whole computation; for an estimator from raw numbers on."""
        return self.predictor if self.columns is None else TableModel(self.columns, self.predictor)

    def inputs(self, rows: Any) -> Tensor:
        """Rows as the network takes them; of an estimator, a table encoded."""
        if self.columns is None:
            x = check_tensor(rows, "int8", "export")
            return x.float() / 255.0 if x.dtype == torch.uint8 else x.float()
        return torch.from_numpy(Encoder(self.columns).transform(Table.of(rows))).float()

    def description(self) -> dict[str, Any]:
        """What goes into a file as JSON: inputs, outputs, classes, and how the model was made."""
        known: dict[str, Any] = {
            "model": self.model,
            "n_draws": self.predictor.n_draws,
            "seed": self.seed,
            "outputs": list(self.predictor.head.names),
            **self.about,
        }
        if self.classes is not None:
            known["classes"] = list(self.classes)
        if self.columns is not None:
            known["columns"] = [
                {"name": column.name, "kind": column.kind}
                | ({"levels": list(levels(column))} if column.kind == "category" else {})
                | ({"unit": UNITS[column.form]} if column.form in UNITS else {})
                for column in self.columns
            ]
        return known


def exported(
    model: Any, kind: str, n_draws: int | None, seed: int | None, example: Any, likelihood: Any
) -> Exported:
    """A network, a run or a fitted estimator with its weights stored; ``kind`` is median or average."""
    check_choice(kind, ("median", "average"), "model", "export")
    if n_draws is not None:
        check_count(n_draws, "n_draws", "export")
    if hasattr(model, "networks_") or hasattr(model, "get_params"):
        return _of_estimator(model, kind, n_draws, seed, likelihood)
    if isinstance(model, nn.Module):
        networks, forms = [model], likelihood
        if not isinstance(forms, Likelihood):
            advice = "Pass export(..., likelihood=run.likelihood), or export the run."
            raise invalid("likelihood", "export", "given with a network", type(forms).__name__, advice)
        forms = [forms]
    elif hasattr(model, "likelihoods") and hasattr(model, "networks"):
        networks, forms = list(model.networks), list(model.likelihoods)
        example = model.batches.x[:1] if example is None else example
    else:
        expected = "a network, a run of train or a fitted estimator"
        raise invalid("model", "export", expected, type(model).__name__)
    for network in networks:
        check_no_hooks(network, "export")
    row = example_of(networks[0], example)
    draws = _each(kind, n_draws, _DRAWS, len(networks))
    chosen = 0 if seed is None else seed
    networks = [network.cpu() if next(network.parameters()).is_cuda else network for network in networks]
    seeds = [chosen] * len(networks)
    made = predictor_of(networks, Head(forms), row, model=kind, n_draws=draws, seeds=seeds)
    row = row.float() / 255.0 if row.dtype == torch.uint8 else row.float() if row.is_floating_point() else row
    return Exported(made, row, kind, chosen)


def _each(kind: str, n_draws: int | None, default: int, networks: int) -> int | None:
    """The draws of each network; None for the median model at its posterior means."""
    if n_draws is None and kind == "median":
        return None
    return -(-(default if n_draws is None else n_draws) // networks)


def _of_estimator(model: Any, kind: str, n_draws: int | None, seed: int | None, likelihood: Any) -> Exported:
    from sklearn.utils.validation import check_is_fitted

    from sparsebnn.estimators import SparseBNNClassifier, SparseBNNRegressor
    from sparsebnn.estimators.ensemble import seeds as own_seeds

    check_is_fitted(model)
    if likelihood is not None:
        raise invalid("likelihood", "export", "left out with an estimator", type(likelihood).__name__)
    if not isinstance(model, SparseBNNClassifier | SparseBNNRegressor):
        expected = "SparseBNNClassifier or SparseBNNRegressor"
        advice = "Export the last step of a Pipeline, and apply the other steps before it."
        raise invalid("model", "export", expected, type(model).__name__, advice)
    classes = getattr(model, "classes_", None)
    scales: dict[str, Tensor] = {}
    if classes is None:
        scales = {"y_mean": torch.from_numpy(model._y_mean), "y_std": torch.from_numpy(model._y_std)}
    head = Head(model._likelihoods, model.logit_scale_, **scales)
    draws = _each(kind, n_draws, model.n_draws, len(model.networks_))
    columns = tuple(model._encoder.columns)
    networks = list(model._ensemble.doubled())
    row = torch.zeros(1, max(1, len(model._encoder.input_names)), dtype=torch.float64)
    chosen = model._seed if seed is None else seed
    seeds = own_seeds(chosen, len(networks))
    made = predictor_of(networks, head, row, model=kind, n_draws=draws, seeds=seeds)
    return Exported(
        made,
        torch.zeros(1, len(columns), dtype=torch.float64),
        kind,
        chosen,
        columns,
        named=hasattr(model, "feature_names_in_"),
        classes=None if classes is None else tuple(classes.tolist()),
        about={"estimator": type(model).__name__},
    )
