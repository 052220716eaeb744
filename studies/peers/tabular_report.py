"""The tables of docs/studies/tabular.md, from the rows of the study ``tabular``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from studies.peers.tabular_data import TABLES

__all__ = ["body", "details", "ranks", "summary"]

RIVAL = "CatBoost"
Rows = Sequence[dict[str, Any]]


def _means(rows: Rows, measure: str) -> dict[tuple[str, str], np.ndarray]:
    """Values over folds by table and method; rows without this measure are left out."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in sorted(rows, key=lambda r: r["fold"]):
        if row.get(measure) is not None:
            found.setdefault((row["table"], row["method"]), []).append(row[measure])
    return {key: np.array(values) for key, values in found.items()}


def _interval(values: np.ndarray) -> str:
    """A mean with the half width of its 95% interval over folds (Student's t)."""
    from scipy.stats import t

    if len(values) < 2:
        return f"{values.mean():.3f}"
    reach = t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return f"{values.mean():.3f} ± {reach:.3f}"


def _methods(rows: Rows) -> list[str]:
    """Ours first, then the peers, in the order of the file."""
    names = list(dict.fromkeys(row["method"] for row in rows))
    return sorted(names, key=lambda name: not name.startswith("sparsebnn"))


def _tables(rows: Rows) -> list[str]:
    there = {row["table"] for row in rows}
    return [name for name in TABLES if name in there]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _head(cells: Sequence[str]) -> list[str]:
    return [_line(cells), "| --- |" + " ---: |" * (len(cells) - 1)]


def by_table(rows: Rows, measure: str) -> str:
    """A line per table, a column per method: means over folds with 95% intervals; the best in bold."""
    means, methods = _means(rows, measure), _methods(rows)
    methods = [m for m in methods if any((t, m) in means for t in _tables(rows))]
    lines = _head(["table", *methods])
    for name in _tables(rows):
        own = {m: means[name, m] for m in methods if (name, m) in means}
        if own:
            folds = max(map(len, own.values()))
            best = min((m for m in own if len(own[m]) == folds), key=lambda m: own[m].mean())
            cells = [_interval(own[m]) if m in own else "" for m in methods]
            cells = [
                f"{c} ({len(own[m])} folds)" if m in own and len(own[m]) < folds else c
                for m, c in zip(methods, cells)
            ]
            cells = [f"**{c}**" if m == best else c for m, c in zip(methods, cells)]
            lines.append(_line([name, *cells]))
    return "\n".join(lines)


def ranks(rows: Rows, measure: str) -> dict[str, float]:
    """The mean rank over tables (1 is the lowest mean) of the methods with all tables and folds."""
    from scipy.stats import rankdata

    means = _means(rows, measure)
    tables = list(dict.fromkeys(name for name, _ in means))
    folds = {name: max(len(v) for (table, _), v in means.items() if table == name) for name in tables}
    methods = [
        m for m in _methods(rows) if all(len(means.get((name, m), ())) == folds[name] for name in tables)
    ]
    if not methods:
        return {}
    each = [rankdata([means[name, m].mean() for m in methods]) for name in tables]
    return dict(zip(methods, np.mean(each, axis=0).tolist()))


def _ratio(rows: Rows, method: str, measure: str) -> str:
    """The mean over tables of this method's mean, divided by CatBoost's on the same folds."""
    theirs = {(r["table"], r["fold"]): r[measure] for r in rows if r["method"] == RIVAL and measure in r}
    pairs: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row["method"] == method and measure in row and (row["table"], row["fold"]) in theirs:
            pairs.setdefault(row["table"], []).append((row[measure], theirs[row["table"], row["fold"]]))
    found = [np.mean([a for a, _ in own]) / np.mean([b for _, b in own]) for own in pairs.values()]
    return f"{np.mean(found):.3f}" if found else ""


def summary(rows: Rows, task: str) -> str:
    """A line per method: means over tables of the means over folds."""
    own = [row for row in rows if row["task"] == task]
    if not own:
        return "No rows yet."
    classes = task == "classification"
    loss = "log_loss" if classes else "rmse"
    measures = (
        {"accuracy": "accuracy", "log-loss": loss, "ECE": "ece", "mean confidence": "confidence"}
        if classes
        else {"RMSE": loss, "R²": "r2", "50% intervals hold": "coverage_50", "90% hold": "coverage_90"}
    )
    ranked = {"rank in log-loss": "log_loss", "rank in ECE": "ece"} if classes else {"rank in RMSE": "rmse"}
    found = {measure: ranks(own, measure) for measure in ranked.values()}
    title = f"{'log-loss' if classes else 'RMSE'} ratio to {RIVAL}"
    lines = _head(["method", "fits", *measures, title, *ranked, "seconds a fit", "density", "columns"])
    for method in _methods(own):
        part = [row for row in own if row["method"] == method]
        cells = [method, f"{len(part)}"]
        cells += [_mean_over_tables(part, measure) for measure in measures.values()]
        cells.append(_ratio(own, method, loss))
        cells += [f"{found[m][method]:.2f}" if method in found[m] else "" for m in ranked.values()]
        cells.append(_mean_over_tables(part, "seconds", "{:.1f}"))
        cells.append(_mean_over_tables(part, "density"))
        shares = [{**row, "share": row["used"] / row["columns"]} for row in part if "used" in row]
        lines.append(_line([*cells, _mean_over_tables(shares, "share", "{:.0%}")]))
    return "\n".join(lines)


def _mean_over_tables(rows: Rows, measure: str, form: str = "{:.3f}") -> str:
    values = [each.mean() for each in _means(rows, measure).values()]
    return form.format(np.mean(values)) if values else ""


def sources(rows: Rows) -> str:
    """Where each table is from, with the size that was used."""
    lines = _head(["table", "source", "target", "rows", "columns"])
    for name in _tables(rows):
        row = next(row for row in rows if row["table"] == name)
        table = TABLES[name]
        source = f"{table.source}, {table.more}" if table.more else table.source
        lines.append(_line([name, source, table.target, f"{row['rows']:,}", f"{row['columns']}"]))
    return "\n".join(lines)


_LOSSES = {"classification": "log_loss", "regression": "rmse"}


def _by_task(rows: Rows) -> dict[str, list[dict[str, Any]]]:
    found = {task: [row for row in rows if row["task"] == task] for task in _LOSSES}
    return {task: own for task, own in found.items() if own}


def body(rows: Rows) -> str:
    """The tables of the page."""
    parts = []
    for task, own in _by_task(rows).items():
        loss = "Log-loss" if task == "classification" else "RMSE, in standard deviations"
        parts += [f"## {task.capitalize()}: means over tables", summary(rows, task)]
        parts += [f"## {loss}, by table", by_table(own, _LOSSES[task])]
    return "\n\n".join(parts)


def details(rows: Rows) -> str:
    """The tables of ``results/tabular/tables.md``: where the data are from, errors and calibration."""
    parts = ["## Tables", sources(rows)]
    wrong = [{**row, "error": 1.0 - row["accuracy"]} for row in _by_task(rows).get("classification", [])]
    if wrong:
        parts += ["## Error rate by table", by_table(wrong, "error")]
        parts += ["## Calibration error (ECE) by table", by_table(wrong, "ece")]
    return "\n\n".join(parts)
