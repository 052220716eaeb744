"""The rows of the study of uncertainty as intervals, as statements that hold or do not, and as tables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from studies.uncertainty.measures import SCORES, interval, paired
from studies.uncertainty.methods import BAYESIAN, METHODS, POSTERIOR

__all__ = ["LABELS", "markdown", "show", "statements", "summary", "table"]

Rows = Sequence[Mapping[str, Any]]
LABELS = {method.key: method.label for method in METHODS}
_SKIPPED = ("method", "per_class", "replicate", "detection", "train_seconds", "seconds", "cpu_seconds")
# Of a Bayesian method: at the chosen temperature, and the Bayes posterior proper.
_VERSIONS = ("", "_bayes")
_DETECTION = ("flagged_inside", "flagged_outside", "auroc", "fpr95")


def _flat(row: Mapping[str, Any]) -> dict[str, float]:
    """A row's numbers under one level of names."""
    plain = {name: value for name, value in row.items() if name not in _SKIPPED}
    for score in SCORES:
        plain.update({f"{score}.{name}": row["detection"][score][name] for name in _DETECTION})
    return plain


def _column(rows: Rows, method: str, size: int, name: str) -> list[float]:
    chosen = [row for row in rows if row["method"] == method and row["per_class"] == size]
    return [_flat(row)[name] for row in sorted(chosen, key=lambda row: row["replicate"])]


def _has(rows: Rows, method: str, size: int) -> bool:
    return any(row["method"] == method and row["per_class"] == size for row in rows)


def summary(rows: Rows) -> dict[str, Any]:
    """Mean and interval over replicates of every number, by size and method; and the statements."""
    sizes = sorted({row["per_class"] for row in rows})
    methods = [key for key in LABELS if any(row["method"] == key for row in rows)]
    cells = {
        str(size): {
            method: {name: interval(_column(rows, method, size, name)) for name in _flat(rows[0])}
            for method in methods
            if _has(rows, method, size)
        }
        for size in sizes
    }
    return {"cells": cells, "statements": statements(rows, methods, sizes)}


def _verdict(found: Mapping[str, float], low: float, high: float) -> str:
    """Whether the whole interval lies in [low, high], none of it, or some."""
    if math.isnan(found["low"]):
        return "undecided"
    if low <= found["low"] and found["high"] <= high:
        return "holds"
    return "fails" if found["high"] < low or found["low"] > high else "undecided"


def _statement(claim: str, found: Mapping[str, float], low: float, high: float) -> dict[str, Any]:
    return {"claim": claim, **found, "verdict": _verdict(found, low, high)}


def statements(rows: Rows, methods: Sequence[str], sizes: Sequence[int]) -> list[dict[str, Any]]:
    """The paper's statements, each as a number with an interval and the range in which it would hold."""
    few, many = sizes[0], sizes[-1]
    ours = [key for key in (*BAYESIAN, *POSTERIOR) if key in methods]
    found = [*_fitting(rows, methods, sizes), *_certainty(rows, methods, few)]
    for key in ours:
        for before, after in zip(sizes, sizes[1:]):
            if _has(rows, key, after):
                change = paired(*(_column(rows, key, size, "entropy_error") for size in (after, before)))
                claim = f"{LABELS[key]}: entropy error falls from {before} to {after} per class (change)"
                found.append(_statement(claim, change, -math.inf, 0.0))
    for key in ours if "dropout" in methods else []:
        for name, claim in (
            ("away_max_prob", "maximum probability away from the data, dropout minus it"),
            ("outside_max_prob", "maximum probability outside the unit square, dropout minus it"),
        ):
            more = paired(_column(rows, "dropout", few, name), _column(rows, key, few, name))
            found.append(_statement(f"{LABELS[key]}, {few} per class: {claim}", more, 0.0, math.inf))
        name = "least_certain_accuracy"
        gain = paired(_column(rows, key, few, name), _column(rows, "dropout", few, name))
        claim = f"{LABELS[key]}, {few} per class: accuracy on the least certain tenth, minus dropout's"
        found.append(_statement(claim, gain, 0.0, math.inf))
    for suffix, name in itertools.product(_VERSIONS, ("lrt", "flow")):
        dense, key = f"dense{suffix}", f"{name}{suffix}"
        for size in [n for n in sizes if _has(rows, dense, n) and _has(rows, key, n)]:
            less = paired(*(_column(rows, which, size, "grid_entropy") for which in (dense, key)))
            claim = f"{LABELS[dense]}, {size} per class: entropy over the grid, minus {LABELS[key]}'s"
            found.append(_statement(claim, less, -math.inf, 0.0))
    for key in [key for key in methods if _has(rows, key, many)]:
        share = interval(_column(rows, key, many, "max_output.flagged_inside"))
        claim = f"{LABELS[key]}, {many} per class: fresh rows flagged by the rule of figure 10"
        # The mean is what must not exceed 7%; an interval cannot go below 0 here.
        verdict = "holds" if share["mean"] <= 0.07 else "fails"
        found.append({"claim": claim, **share, "verdict": verdict})
    return found


def _fitting(rows: Rows, methods: Sequence[str], sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Training accuracy against the generating model's accuracy less 0.03: the mean decides."""
    found = []
    for size in sizes:
        for key in [key for key in methods if _has(rows, key, size)]:
            reached = interval(_column(rows, key, size, "train_accuracy"))
            bayes = interval(_column(rows, key, size, "bayes_accuracy"))["mean"]
            claim = f"{LABELS[key]}, {size} per class: training accuracy at least {bayes - 0.03:.3f}"
            verdict = "holds" if reached["mean"] >= bayes - 0.03 else "fails"
            found.append({"claim": claim, **reached, "verdict": verdict})
    return found


def _certainty(rows: Rows, methods: Sequence[str], few: int) -> list[dict[str, Any]]:
    """The maximum probability after the more certain half of the test rows."""
    half = {f"{name}{suffix}": (0.4, 0.6) for suffix in _VERSIONS for name in ("lrt", "flow")}
    expected = {"dropout": (0.90, 1.0), **half}
    found = []
    for key, (low, high) in expected.items():
        if key in methods:
            middle = interval(_column(rows, key, few, "max_prob_halfway"))
            claim = f"{LABELS[key]}, {few} per class: maximum probability halfway in [{low:g}, {high:g}]"
            found.append(_statement(claim, middle, low, high))
    return found


# -- tables -----------------------------------------------------------------------------------------------

_NAMES = (("entropy", "entropy"), ("mutual_information", "MI"), ("max_output", "max. out."))
_TABLES: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Prediction",
        (
            ("train_accuracy", "train acc."),
            ("train_accuracy_many_draws", "… 100 draws"),
            ("accuracy", "test acc."),
            ("nll", "NLL"),
            ("brier", "Brier"),
            ("ece", "ECE"),
            ("rejection_area", "rejection area"),
            ("max_prob_halfway", "max. prob. halfway"),
            ("least_certain_accuracy", "acc. least certain 10%"),
        ),
    ),
    (
        "Entropy over the unit square, nats",
        (
            ("entropy_error", "error"),
            ("grid_entropy", "total"),
            ("grid_aleatoric", "aleatoric"),
            ("grid_epistemic", "epistemic"),
            ("away_entropy", "away from data"),
            ("away_max_prob", "max. prob. away"),
            ("outside_entropy", "outside"),
            ("outside_max_prob", "max. prob. outside"),
        ),
    ),
    (
        "Outside the unit square",
        tuple(
            (f"{score}.{name}", f"{label} {short}")
            for score, label in _NAMES
            for name, short in (("auroc", "AUROC"), ("fpr95", "FPR@95"))
        ),
    ),
    (
        "Figure 10's rule: share flagged",
        tuple(
            (f"{score}.{name}", f"{label} {short}")
            for score, label in (("max_output", "max. out."), ("entropy", "entropy"))
            for name, short in (("flagged_inside", "fresh rows"), ("flagged_outside", "outside"))
        ),
    ),
)


def _entry(found: Mapping[str, float | None]) -> str:
    mean, low = found["mean"], found["low"]
    if mean is None:
        return "–"
    return f"{mean:.3f}" if low is None else f"{mean:.3f} ± {mean - low:.3f}"


def table(cells: Mapping[str, Any], names: Sequence[tuple[str, str]]) -> list[str]:
    """A Markdown table of one size: a line per method, mean ± half width of the 95% interval."""
    lines = ["| method | " + " | ".join(label for _, label in names) + " |"]
    lines.append("|---" * (len(names) + 1) + "|")
    for method, numbers in cells.items():
        entries = " | ".join(_entry(numbers[name]) for name, _ in names)
        lines.append(f"| {LABELS[method]} | {entries} |")
    return lines


def markdown(record: Mapping[str, Any]) -> list[str]:
    """Every table of the study, and the statements, as Markdown."""
    lines: list[str] = []
    for title, names in _TABLES:
        for size, cells in record["summary"]["cells"].items():
            lines += [f"**{title}, {size} samples per class**", "", *table(cells, names), ""]
    lines += ["**Statements**", "", "| statement | mean | 95% interval | |", "|---|---|---|---|"]
    for each in record["summary"]["statements"]:
        span = "–" if each["low"] is None else f"[{each['low']:.3f}, {each['high']:.3f}]"
        lines.append(f"| {each['claim']} | {each['mean']:.3f} | {span} | {each['verdict']} |")
    return lines


def show(record: Mapping[str, Any]) -> None:
    """Print all tables."""
    print("\n".join(markdown(record)))
    seconds = record["provenance"]["seconds"]
    print(f"\n{record['spec']['replicates']} replicates, each with its own data. {seconds:.0f} s.")
