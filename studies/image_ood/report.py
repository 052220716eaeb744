"""The study of foreign images as text: a line while it runs, the tables of its page."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from studies.runner import fill_page, write_details
from studies.uncertainty.measures import SCORES, interval

__all__ = ["details", "fill", "line", "markdown"]

TITLES = {"mnist": "MNIST", "fmnist": "FMNIST", "kmnist": "KMNIST"}
LABELS = {
    "lrt": "LBBNN-LRT",
    "flow": "LBBNN-FLOW",
    "dense": "dense BNN",
    "dropout": "MC dropout",
    "ensemble": "deep ensemble",
    "plain": "deterministic",
}
_MEASURES = "AUROC, and for entropy FPR@95 beside it; mean ± half width of the 95% interval over replicates."
_SCORES = {"entropy": "entropy", "mutual_information": "MI", "max_output": "max. output"}


def line(row: Mapping[str, Any]) -> str:
    """One line: accuracy at home, AUROC of each score for each of the others, means over replicates."""
    accuracy = interval(row["accuracy"])["mean"]
    words = [f"{row['train_on']:>6} {row['method']:>9}: accuracy {accuracy:.4f}"]
    for other, found in row["foreign"].items():
        means = [interval(found[name]["auroc"])["mean"] for name in SCORES]
        words.append(f"{other} " + " ".join(f"{mean:.3f}" for mean in means))
    words.append(f"trained {row['train_seconds']:.1f} s, compiled {row['compile_seconds']:.1f} s")
    return "  ".join(words)


def _entry(values: Sequence[float]) -> str:
    """Mean ± half width of the 95% interval over replicates."""
    found = interval(list(values))
    half = found["high"] - found["mean"]
    return f"{found['mean']:.3f}" + (f" ± {half:.3f}" if half == half else "")


def _setting(spec: Mapping[str, Any]) -> str:
    """How the networks were trained, in one sentence."""
    kind = "fully connected 784-400-600-10" if spec["architecture"] == "fc" else "the LeNet"
    rows = f"the first {spec['rows']:,}" if spec["rows"] else "all 60,000"
    tested = f"the first {spec['test_rows']:,}" if spec["test_rows"] else "all 10,000"
    return (
        f"Networks: {kind}, trained on {rows} training images of a set; the Bayesian ones for "
        f"{spec['epochs']} epochs at rate {spec['rate'] or 1e-4:g} (the paper: 250 at 0.0001), the "
        f"others for {spec['plain_epochs']}. {spec['replicates']} replicates, {spec['n_draws']} draws, "
        f"ensembles of {spec['members']}, {tested} test images of each set. Means over replicates."
    )


def _table(rows: Sequence[Mapping[str, Any]], replicates: int) -> list[str]:
    """The table of one training set; a method some of whose replicates stopped says how many are left."""
    others = list(rows[0]["foreign"])
    head = [f"trained on {TITLES[rows[0]['train_on']]}", "accuracy", "ECE"]
    for other in others:
        first, *rest = [*_SCORES.values()]
        head += [f"{TITLES[other]}: {first}", "FPR@95", *rest]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in sorted(rows, key=lambda each: list(LABELS).index(each["method"])):
        count, label = len(row["accuracy"]), LABELS[row["method"]]
        label += "" if count == replicates else f" ({count} of {replicates} replicates)"
        entries = [label, _entry(row["accuracy"]), _entry(row["ece"])]
        for other in others:
            found = row["foreign"][other]
            entries += [_entry(found["entropy"]["auroc"]), _entry(found["entropy"]["fpr95"])]
            entries += [_entry(found[name]["auroc"]) for name in _SCORES if name != "entropy"]
        lines.append("| " + " | ".join(entries) + " |")
    return lines


def markdown(record: Mapping[str, Any]) -> list[str]:
    """The table of the page: AUROC of entropy and mutual information, a line per training set and method."""
    sets = record["spec"]["train_on"]
    head = ["trained on", "method", "accuracy", "ECE", *(f"{TITLES[home]}: entropy, MI" for home in sets)]
    lines = ["| " + " | ".join(head) + " |", "|---|---" + "|---:" * (len(head) - 2) + "|"]
    order = list(itertools.product(sets, LABELS))
    for row in sorted(record["rows"], key=lambda r: order.index((r["train_on"], r["method"]))):
        means = [f"{interval(row[name])['mean']:.3f}" for name in ("accuracy", "ece")]
        cells = [TITLES[row["train_on"]], LABELS[row["method"]], *means]
        for home in sets:
            found = row["foreign"].get(home)
            names = ("entropy", "mutual_information") if found else ()
            cells.append(", ".join(f"{interval(found[name]['auroc'])['mean']:.3f}" for name in names))
        lines.append("| " + " | ".join(cells) + " |")
    return [_setting(record["spec"]), "", *lines]


def details(record: Mapping[str, Any]) -> list[str]:
    """The tables of ``results/image_ood/tables.md``, one per training set."""
    lines = [_setting(record["spec"]), "", _MEASURES, ""]
    for home in record["spec"]["train_on"]:
        rows = [row for row in record["rows"] if row["train_on"] == home]
        lines += [*_table(rows, record["spec"]["replicates"]), ""] if rows else []
    return lines[:-1]


def fill(page: Path, record: Mapping[str, Any], folder: Path) -> None:
    """Put the table into the page, where there is one, and the others into the folder of the results."""
    if page.exists():
        fill_page(page, "\n".join(markdown(record)), "images")
        write_details(folder, "\n".join(details(record)))
