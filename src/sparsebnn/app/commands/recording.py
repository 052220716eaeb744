"""The record of a run, which is saved as ``record.json`` and shown by the report."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from sparsebnn.app.commands import measuring, survival
from sparsebnn.app.commands.splitting import Problem
from sparsebnn.app.report.drawing import active
from sparsebnn.app.report.record import Edge
from sparsebnn.estimators.ensemble import Ensemble, linear_layers
from sparsebnn.inference.metrics import entropy
from sparsebnn.io.cells import absent
from sparsebnn.io.formatting import plain
from sparsebnn.nn.networks import InputSkip

__all__ = ["network_edges", "predictions", "record"]

_MOST_EDGES = 3000
_LEVELS = (0.5, 0.8, 0.9, 0.95)


def record(model: Any, problem: Problem, name: str, seed: int) -> dict[str, Any]:
    """The content of ``record.json`` except for command, commit and versions (read by report/record.py)."""
    classes = model.classes_ if problem.task == "classification" else None
    test = problem.inputs[problem.test]
    times = problem.task == "survival"
    found = survival.measured(model, problem, seed) if times else _measured(model, problem, test, seed)
    others = []
    if not times:
        ours = model.predict_proba(test) if problem.task == "classification" else model.predict(test)
        others = measuring.baselines(problem, model._encoder.columns, ours, seed)
    return {
        "format_version": 1,
        "task": problem.task,
        "target": problem.target,
        "classes": None if classes is None else [str(c) for c in classes],
        "data": {
            "name": name,
            "rows": len(problem.y),
            "train_rows": len(problem.training),
            "test_rows": len(problem.test),
            "columns": [{"name": c.name, "kind": c.kind, "note": c.note} for c in model._encoder.columns],
        },
        "notes": list(problem.notes),
        "settings": model.plan_.record(),
        "seconds": model.seconds_,
        "baselines": others,
        "density": model.density_,
        "posterior": measuring.is_posterior(model),
        "effects": [] if times else measuring.effect_curves(model, problem),
        "replicates": len(model.posterior_networks_),
        "inputs": _inputs(model),
        "credible_sets": _credible_sets(model, problem),
        "network": network_edges(model, problem.target),
        "curves": _curves(model),
        **found,
    }


def _measured(model: Any, problem: Problem, test: Any, seed: int) -> dict[str, Any]:
    """Measures of both predictors, calibration, and the most and least certain rows."""
    y = problem.y[problem.test]
    measures: dict[str, Any] = {}
    found: dict[str, Any] = {"metrics": measures}
    for kind in ("median", "average"):
        if problem.task == "classification":
            probs = model.predict_proba(test, model=kind)
            codes = np.searchsorted(model.classes_, y)
            measures[kind] = measuring.class_measures(probs, codes, seed)
            found["calibration"] = measuring.calibration(probs, codes)
            found |= measuring.curves_of_classes(probs, codes, model.classes_)
            spread = entropy(torch.from_numpy(probs)).numpy()
            predicted = model.classes_[probs.argmax(1)]
            details = [
                {
                    "truth": str(t),
                    "prediction": str(c),
                    "probability": float(p),
                    "std": None,
                    "entropy": float(h),
                }
                for t, c, p, h in zip(y, predicted, probs.max(1), spread)
            ]
        else:
            mean, std = model.predict(test, return_std=True, model=kind)
            measures[kind] = measuring.real_measures(mean, std, y, seed)
            found["calibration"] = _coverage(model, test, y)
            found["residuals"] = measuring.residuals(mean, std, y)
            spread = std
            details = [
                {
                    "truth": plain(float(t), 6),
                    "prediction": plain(float(m), 6),
                    "probability": None,
                    "std": float(s),
                    "entropy": None,
                }
                for t, m, s in zip(y, mean, std)
            ]
    order = np.argsort(spread, kind="stable")
    found["certain"] = [_row(problem, int(i), details[i]) for i in order[:5]]
    found["uncertain"] = [_row(problem, int(i), details[i]) for i in order[::-1][:5]]
    return found


def _row(problem: Problem, i: int, details: dict[str, Any]) -> dict[str, Any]:
    place = problem.test[i]
    cells = problem.inputs.row(int(place), named=True)
    values = {name: None if absent(value) else _plain(value) for name, value in cells.items()}
    return {"row": int(problem.rows[place]) + 1, **details, "values": values}


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool) else str(value)


def _coverage(model: Any, test: Any, y: np.ndarray) -> dict[str, list[float]]:
    ends = sorted({(1 - level) / 2 for level in _LEVELS} | {(1 + level) / 2 for level in _LEVELS})
    quantiles = model.predict_quantiles(test, ends)
    count = len(ends)
    inside = [
        float(((y >= quantiles[:, i]) & (y <= quantiles[:, count - 1 - i])).mean())
        for i in range(count // 2 - 1, -1, -1)
    ]
    return {"level": list(_LEVELS), "coverage": inside}


def _inputs(model: Any) -> list[dict[str, Any]]:
    effects = model.effects_
    return [
        {
            "name": column.name,
            "inclusion": float(model.inclusion_[j]),
            "selected": bool(model.used_[j]),
            "direction": effects.direction[j],
            "effect": float(effects.value[j]),
            "effect_low": float(effects.low[j]),
            "effect_high": float(effects.high[j]),
            "stability": float(model.stability_[j]),
            "gain": float(model.gain_[j]),
        }
        for j, column in enumerate(model._encoder.columns)
        if column.kind != "dropped"
    ]


def _credible_sets(model: Any, problem: Problem) -> list[dict[str, Any]]:
    """Sets of correlated columns; none where inclusions are no posterior probabilities."""
    if not measuring.is_posterior(model) or len(model.posterior_networks_) < 2:
        return []
    sets = model.credible_sets(problem.inputs[problem.training])
    return [
        {
            "names": list(each.names),
            "inclusion": list(each.inclusion),
            "coverage": each.coverage,
            "purity": each.purity,
        }
        for each in sets
    ]


@torch.no_grad()
def network_edges(model: Any, named: str = "target") -> dict[str, Any]:
    """The median probability model of one replicate: the weights on paths from inputs to outputs.

    Of all replicates, the one that reaches most of the columns in use.
    """
    column_of, count = model._encoder.column_of, len(model._encoder.columns)
    reached = Ensemble(model.posterior_networks_, model._likelihoods).median_columns(column_of, count)
    network = model.posterior_networks_[int((reached & model.used_).sum(1).argmax())]
    layers = linear_layers(network)
    skips = isinstance(network, InputSkip)
    kept, inputs = set(), layers[0].in_features
    for number, layer in enumerate(layers):
        inclusion, mean = layer.weights.inclusion_prob(), layer.weights.posterior_mean()
        for target, source in (inclusion > 0.5).nonzero().tolist():
            numbers = float(inclusion[target, source]), float(mean[target, source])
            kept.add(Edge(number, source, target, *numbers))
            # A weight of an input that skips layers passes a place for the input in each of them.
            passed = source - (layer.in_features - inputs) if skips and number else -1
            for earlier in range(number) if passed >= 0 else ():
                at = layers[earlier].in_features - inputs if earlier else 0
                kept.add(Edge(earlier, at + passed, layers[earlier].out_features + passed, 1.0, 1.0))
    edges = active(kept, len(layers))
    strongest = sorted(edges, key=lambda e: -abs(e.weight) * e.inclusion)[:_MOST_EDGES]
    return {
        "layers": [inputs, *(n.out_features + inputs * skips for n in layers[:-1]), layers[-1].out_features],
        "input_names": (model._encoder.input_names or ["(nothing)"]),
        "input_columns": [model._encoder.columns[j].name for j in column_of],
        "output_names": _output_names(model, layers[-1].out_features, named),
        "edges": sorted(strongest),
        "of": len(edges),
    }


def _output_names(model: Any, count: int, target: str) -> list[str]:
    if hasattr(model, "classes_"):
        classes = [str(c) for c in model.classes_]
        return [classes[1]] if count == 1 else classes
    if hasattr(model, "predict_survival_function"):
        return list(model._output_names())
    return [target, "noise"][:count] if count <= 2 else [f"output {i + 1}" for i in range(count)]


def _curves(model: Any) -> list[dict[str, Any]]:
    """At most 200 epochs of the history."""
    step = -(-len(model.history_) // 200)
    kept = model.history_[::step]
    return [{key: epoch[key] for key in ("epoch", "loss", "nll", "kl", "density")} for epoch in kept]


def predictions(model: Any, inputs: Any) -> dict[str, list[Any]]:
    """The columns of a predictions file."""
    if hasattr(model, "predict_survival_function"):
        return survival.predictions(model, inputs)
    if hasattr(model, "classes_"):
        probs = model.predict_proba(inputs)
        found: dict[str, list[Any]] = {"prediction": [str(c) for c in model.classes_[probs.argmax(1)]]}
        for i, label in enumerate(model.classes_):
            found[f"probability of {label}"] = probs[:, i].tolist()
        parts = model.predict_uncertainty(inputs)
        return found | {name: values.tolist() for name, values in parts.items()}
    mean, std = model.predict(inputs, return_std=True)
    quantiles = model.predict_quantiles(inputs, [0.05, 0.95])
    found = {"prediction": mean.tolist(), "std": std.tolist()}
    return found | {"low (5%)": quantiles[:, 0].tolist(), "high (95%)": quantiles[:, 1].tolist()}
