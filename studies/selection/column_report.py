"""The tables of docs/studies/column_selection.md, from the rows of the study ``column_selection``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["body", "details", "table"]

Rows = Sequence[dict[str, Any]]
_CASE = ("group", "task", "kind", "rows", "columns", "correlation")


def _mean(values: Sequence[float], error: bool = False) -> str:
    if not values:
        return ""
    spread = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{np.mean(values):.2f} ± {spread:.2f}" if error else f"{np.mean(values):.2f}"


def _cells(rows: Rows, rule: str) -> list[str]:
    """Precision, recall, false discovery rate with its standard error, and the number of columns."""
    found = [row["rules"][rule] for row in rows if row["rules"].get(rule) is not None]
    if not found:
        return ["", "", "refused" if rows else "", ""]
    precision = [each["precision"] for each in found]
    rates = _mean([1.0 - each for each in precision], error=True)
    recall = _mean([each["recall"] for each in found])
    if len(found) < len(rows):
        rates += f" ({len(found)} of {len(rows)})"
    return [_mean(precision), recall, rates, f"{np.mean([each['chosen'] for each in found]):.1f}"]


def table(rows: Rows) -> str:
    """A line per case, method and rule: means over data sets."""
    lines = [
        "| case | method | rule | precision | recall | FDR | columns "
        "| log-loss or RMSE | accuracy or R² | seconds |",
        "| --- | --- | --- |" + " ---: |" * 7,
    ]
    for case in dict.fromkeys(tuple(row[name] for name in _CASE) for row in rows):
        _, task, kind, size, width, correlation = case
        title = f"{task}, {kind}, {size:,} × {width:,}"
        title += f", correlation {correlation:g}" if case[0] == "correlation" else ""
        own = [row for row in rows if tuple(row[name] for name in _CASE) == case]
        methods = sorted(dict.fromkeys(r["method"] for r in own), key=lambda m: not m.startswith("sparsebnn"))
        for method in methods:
            part = [row for row in own if row["method"] == method]
            ends = [_mean([r[key] for r in part if key in r]) for key in ("loss", "score")]
            if part[0].get("loss") is not None:
                ends[0] = f"{np.mean([r['loss'] for r in part]):.3f}"
            ends.append(f"{np.mean([r['seconds'] for r in part]):.1f}")
            for i, rule in enumerate(part[0]["rules"] or [""]):
                measures = _cells(part, rule) if rule else [""] * 4
                shown = ends if i == 0 else ["", "", ""]
                name = f"`{rule}`" if "_" in rule or "(" in rule else rule
                lines.append("| " + " | ".join([title, method, name, *measures, *shown]) + " |")
    return "\n".join(lines)


def summary(rows: Rows) -> str:
    """A line per method and rule: means over all tables of the group up to correlation 0.5, and at 0.9."""
    lines = [
        "| method | rule | tables | precision | recall | FDR | correlation 0.9: precision | recall | FDR |",
        "| --- | --- |" + " ---: |" * 7,
    ]
    methods = sorted(dict.fromkeys(r["method"] for r in rows), key=lambda m: not m.startswith("sparsebnn"))
    for method in methods:
        part = [row for row in rows if row["method"] == method]
        for rule in part[0]["rules"]:
            low = _cells([row for row in part if row["correlation"] <= 0.5], rule)
            high = _cells([row for row in part if row["correlation"] > 0.5], rule)
            name = f"`{rule}`" if "_" in rule or "(" in rule else rule
            lines.append("| " + " | ".join([method, name, f"{len(part)}", *low[:3], *high[:3]]) + " |")
    return "\n".join(lines)


def by_size(rows: Rows) -> str:
    """A line per method, columns per size: recall and FDR of the method's own choice, and seconds."""
    sizes = list(dict.fromkeys((row["rows"], row["columns"]) for row in rows))
    head = ["method", *(f"{n:,} × {p:,}: recall | FDR | seconds" for n, p in sizes)]
    lines = [f"| {' | '.join(head)} |", "| --- |" + " ---: |" * (3 * len(sizes))]
    methods = sorted(dict.fromkeys(r["method"] for r in rows), key=lambda m: not m.startswith("sparsebnn"))
    for method in methods:
        cells = [method]
        for size in sizes:
            own = [r for r in rows if r["method"] == method and (r["rows"], r["columns"]) == size]
            rules = own[0]["rules"] if own else {}
            measures = _cells(own, next(iter(rules)))[1:3] if rules else ["", ""]
            cells += [*measures, f"{np.mean([r['seconds'] for r in own]):.1f}" if own else ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def by_rows(rows: Rows) -> str:
    """A line per size, method and rule: means over both tasks, both truths and their data sets."""
    lines = [
        "| rows | method | rule | tables | precision | recall | FDR |",
        "| ---: | --- | --- |" + " ---: |" * 4,
    ]
    methods = sorted(dict.fromkeys(r["method"] for r in rows), key=lambda m: not m.startswith("sparsebnn"))
    for size in sorted({row["rows"] for row in rows}):
        for method in methods:
            part = [row for row in rows if row["method"] == method and row["rows"] == size]
            for rule in part[0]["rules"] if part else ():
                name = f"`{rule}`" if "_" in rule or "(" in rule else rule
                cells = [f"{size:,}", method, name, f"{len(part)}", *_cells(part, rule)[:3]]
                lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


_TITLES = {
    "correlation": "500 rows, 100 columns",
    "rows": "50 columns of which 10 matter, 200 to 10,000 rows",
    "wide and small": "Wide and small tables with a linear truth",
}


def body(rows: Rows) -> str:
    """The tables of the page: means over the cases of each group."""
    parts = []
    for group, title in _TITLES.items():
        own = [row for row in rows if row["group"] == group]
        if own:
            if group == "correlation":
                parts += [f"## {title}", "Means over both tasks and both truths:", summary(own)]
            elif group == "rows":
                parts += [f"## {title}", "Means over both tasks and both truths:", by_rows(own)]
            else:
                means = "Means over data sets; columns that the method itself chooses:"
                parts += [f"## {title}", means, by_size(own)]
    return "\n\n".join(parts)


def details(rows: Rows) -> str:
    """The tables of ``results/column_selection/tables.md``: every case."""
    parts = []
    for group, title in _TITLES.items():
        own = [row for row in rows if row["group"] == group]
        parts += [f"## {title}", table(own)] if own else []
    return "\n\n".join(parts)
