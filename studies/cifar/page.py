"""The tables of the page on CIFAR-10."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from studies.cifar.images import CORRUPTIONS

__all__ = ["candidate_table", "table"]

Row = Mapping[str, Any]


def _spread(values: Sequence[float], digits: int, scale: float = 1.0) -> str:
    """Mean and standard deviation over seeds; the figure alone where there is one.

    >>> _spread([0.5, 0.6], 1, 100.0)
    '55.0 ± 7.1'
    """
    mean = f"{scale * statistics.fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {scale * statistics.stdev(values):.{digits}f}"


def _lines(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * 2 + ["--:"] * (len(head) - 2)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *body))


def table(rows: Sequence[Row]) -> str:
    """A line for each network, method and density."""
    kinds: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        kinds.setdefault((row["depth"], row["epochs"], row["method"], row["target"]), []).append(row)
    head = ["network", "method", "density", "seeds", "accuracy, %", "NLL", "ECE, %"]
    head += [*(f"accuracy with {kind}, %" for kind in CORRUPTIONS), "seconds an epoch"]
    body = []
    for (depth, epochs, method, _), found in kinds.items():
        line = [f"ResNet-{depth}, {epochs} epochs", method]
        line += [f"{statistics.fmean(row['density'] for row in found):.3f}", str(len(found))]
        for name, digits, scale in (("accuracy", 2, 100.0), ("nll", 3, 1.0), ("ece", 2, 100.0)):
            line.append(_spread([row[name] for row in found], digits, scale))
        line += [_spread([row[f"accuracy_{kind}"] for row in found], 1, 100.0) for kind in CORRUPTIONS]
        body.append([*line, f"{statistics.median(row['seconds_per_epoch'] for row in found):.2f}"])
    return _lines(head, body)


def candidate_table(rows: Sequence[Row]) -> str:
    """A line for each candidate, on validation rows."""
    head = ["network", "method", "temperature", "slab std", "rates", "refit factor", "cut"]
    head += ["accuracy, %", "NLL", "ECE, %"]
    body = []
    for row in rows:
        line = [f"ResNet-{row['depth']}, {row['epochs']} epochs", row["method"]]
        rates = [row["rate"], row["logit_rate"]]
        if row["method"] == "lrt from plain":
            rates = [row["tuned_rate"], row["logit_rate"], row["tuned_std_rate"]]
        cells = [f"{row['temperature']:g}", f"{row['slab_std']:g}", ", ".join(f"{r:g}" for r in rates)]
        cut = "step by step" if row["gradual"] else "at once"
        if row["method"] == "lrt from plain":
            cut = f"after {row['tuned_free']:.0%}"
        cells += [f"{row['refit_factor']:g}", cut]
        line += [""] * len(cells) if row["method"] in ("plain", "pruned") else cells
        body.append([*line, f"{100 * row['accuracy']:.2f}", f"{row['nll']:.3f}", f"{100 * row['ece']:.2f}"])
    return _lines(head, body)
