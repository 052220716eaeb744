"""The frontier's files as tables; it never trains.

Differences are those of medians over seeds; their 95% intervals come from drawing both sets of seeds with
replacement, 10,000 times.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from studies.frontier.plan import most_density
from studies.frontier.stored import read
from studies.runner import fill_page, write_details
from studies.tables import evaluation
from studies.tables.cells import DATASETS, Result, read_cells
from studies.tables.paper import ARCHITECTURES
from studies.tables.published import Printed, printed
from studies.tables.report import NAMES, bootstrap_interval, pipes, signed, spread

__all__ = ["details", "markdown", "measures", "place_name", "places", "write"]

_ALL = (*DATASETS, "digits")
_WHERE = {"fc": "fully connected", "lenet": "LeNet-5"}
# How far above the paper's LBBNN-FLOW averaging should be, in points.
_AIMS = {("kmnist", "fc"): 1.0, ("kmnist", "lenet"): 1.0, ("fmnist", "fc"): 0.4, ("fmnist", "lenet"): 0.4}
_AIMS |= {("mnist", "fc"): 0.15}
_TABLE = {"fc": "table1", "lenet": "table2"}
_NONE = "–"


def measures(rows: Sequence[dict[str, Any]], name: str) -> np.ndarray:
    scale = 100.0 if name.startswith("accuracy") else 1.0
    return scale * np.array([row[name] for row in rows])


def place_name(dataset: str, architecture: str) -> str:
    return f"{dataset.upper() if dataset != 'digits' else 'digits'}, {_WHERE[architecture]}"


def places(results: Path, stage: str, methods: Sequence[str]) -> list[tuple[str, str, str, Result]]:
    """The existing files of a kind: data set, architecture, method, content."""
    found = []
    for architecture in ARCHITECTURES:
        for dataset in _ALL:
            for method in methods:
                content = read(results, stage, dataset, architecture, method)
                if content is not None:
                    found.append((dataset, architecture, method, content))
    return found


# --- tables ------------------------------------------------------------------------------------------


def accuracy_table(results: Path) -> str:
    """The final cells: accuracies against the paper's FLOW."""
    accuracy = []
    for dataset, architecture, method, content in places(results, "final", ("lrt", "flow")):
        rows = content["replicates"]
        title = f"{place_name(dataset, architecture)}, {NAMES[method]}"
        paper = printed(architecture, dataset, "flow") if dataset in DATASETS else None
        accuracy.append([title, *_accuracy(rows, dataset, architecture, paper)])
    if not accuracy:
        return "No final cells yet.\n"
    head = [
        "",
        "averaging, %",
        "Δ paper",
        "aim",
        "median model, %",
        "Δ paper",
        "density",
        "limit",
        "median model of the first posterior, % @density",
    ]
    return pipes(head, accuracy) + "\n"


def _accuracy(
    rows: list[dict[str, Any]], dataset: str, architecture: str, paper: Printed | None
) -> list[str]:
    average, median = measures(rows, "accuracy_average"), measures(rows, "accuracy_median")
    kept = statistics.fmean(row["density"] for row in rows)
    limit = most_density(architecture, dataset)
    aim = _AIMS.get((dataset, architecture))
    beyond = ["", ""]
    if paper is not None:
        beyond = [
            signed(float(np.median(v)) - p[1]) for v, p in ((average, paper.average), (median, paper.median))
        ]
    early = _NONE
    if "accuracy_median_free" in rows[0]:
        own = statistics.fmean(row["density_free"] for row in rows)
        early = f"{np.median(measures(rows, 'accuracy_median_free')):.2f} @{own:.3f}"
    wanted = _NONE if aim is None else signed(aim)
    return [
        spread(average),
        beyond[0],
        wanted,
        spread(median),
        beyond[1],
        f"{kept:.4f}",
        f"{limit:.4f}",
        early,
    ]


def _with_plain(rows: list[dict[str, Any]], name: str) -> str:
    """The median, and in brackets that before it was corrected, if it was."""
    text = f"{np.median(measures(rows, name)):.4f}"
    if f"{name}_plain" in rows[0]:
        text += f" ({np.median(measures(rows, f'{name}_plain')):.4f})"
    return text


def _calibration(results: Path, rows: list[dict[str, Any]], dataset: str, architecture: str) -> list[str]:
    """NLL and ECE of both predictors, each with the difference from our reproduction of the paper's FLOW."""
    stem = f"{dataset}-flow"
    reproduced = read_cells(results / _TABLE[architecture], [stem]).get(stem)
    texts = []
    for name in ("nll_average", "ece_average", "nll_median", "ece_median"):
        other = _NONE if reproduced is None else difference(rows, reproduced["replicates"], name, 4)
        texts += [_with_plain(rows, name), other]
    return texts


def calibration_table(results: Path) -> str:
    """The final cells: NLL and ECE against our reproduction of the paper's FLOW."""
    rows = []
    for dataset, architecture, method, content in places(results, "final", ("lrt", "flow")):
        title = f"{place_name(dataset, architecture)}, {NAMES[method]}"
        rows.append([title, *_calibration(results, content["replicates"], dataset, architecture)])
    head = [""]
    for measure in ("NLL averaging", "ECE averaging", "NLL median model", "ECE median model"):
        head += [measure, f"{measure} − our FLOW's"]
    return pipes(head, rows) + "\n"


def chosen_table(results: Path) -> str:
    """What the validation rows chose, and out of how many."""
    rows = []
    for dataset, architecture, method, content in places(results, "choose", ("lrt", "flow", "pruned")):
        own, pruned = content["chosen"], method == "pruned"
        at = next(row for row in content["rows"] if all(row[key] == own[key] for key in own))
        figures = [f"{100 * at[f'accuracy_{m}']:.2f} ({at[f'nll_{m}']:.4f})" for m in ("average", "median")]
        averages = "before the refit" if own["average_of"] == "free" else "after it"
        ours = [f"{own['temperature']:g}", f"{own['rate']:g}", f"{own['logit_rate']:g}"]
        moved = f", moved by up to {own['shift']}" if own.get("shift") else ""
        name = "magnitude pruning" if pruned else NAMES[method]
        rows.append(
            [
                f"{place_name(dataset, architecture)}, {name}",
                str(len(content["rows"])),
                *([_NONE, ours[1], _NONE] if pruned else ours),
                f"{own['refit']:g}" + ("" if pruned else f", {own['cut']} cut, heat {own['heat']:g}{moved}"),
                _NONE if pruned else averages,
                *([_NONE, figures[1]] if pruned else figures),
                *_corrections(own, pruned),
                f"{at['density']:.4f}",
            ]
        )
    if not rows:
        return "Nothing chosen yet.\n"
    head = ["", "candidates", "temperature", "rate", "logit rate", "refit", "averages over the posterior"]
    head += [
        "validation averaging, % (NLL)",
        "median model, % (NLL)",
        "logit scale",
        "uniform mix, %",
        "density",
    ]
    return pipes(head, rows) + "\n"


def _corrections(own: dict[str, Any], pruned: bool) -> list[str]:
    """Logit scale and uniform mix of averaging and the median model; none where they were not looked for."""
    models, texts = ("median",) if pruned else ("average", "median"), []
    for name, scale in (("sharpness", 1.0), ("doubt", 100.0)):
        found = [own.get(f"{name}_{model}") for model in models]
        texts.append(", ".join(_NONE if number is None else f"{scale * number:.2f}" for number in found))
    return [_NONE if set(text) <= {_NONE, ",", " "} else text for text in texts]


def temperature_table(results: Path) -> str:
    """What the temperature does, on validation rows: phased candidates with the chosen rate, free density."""
    rows = []
    for dataset, architecture, method, content in places(results, "choose", ("lrt", "flow")):
        free = [r for r in content["rows"] if r["cut"] == "phased" and r["average_of"] == "free"]
        rates = [content["chosen"]["rate"], content["chosen"]["logit_rate"]]
        moved = content["chosen"].get("shift", 0)
        own = [r for r in free if [r["rate"], r["logit_rate"]] == rates and r.get("shift", 0) == moved]
        for row in sorted(own, key=lambda r: (r["heat"], -r["temperature"])):
            models = []
            for m in ("average", "median"):
                nll, ece = (row.get(f"{name}_{m}_plain", row[f"{name}_{m}"]) for name in ("nll", "ece"))
                models.append(f"{100 * row[f'accuracy_{m}']:.2f} | {nll:.4f} | {ece:.4f}")
            rows.append(
                [
                    f"{place_name(dataset, architecture)}, {NAMES[method]}",
                    f"{row['temperature']:g}",
                    f"{row['density_free']:.3f}",
                    models[0],
                    f"{row['temperature'] * row['heat']:g}",
                    models[1],
                ]
            )
    if not rows:
        return "Nothing tried yet.\n"
    head = ["", "temperature", "density it leaves", "averaging, % | NLL | ECE", "in the refit"]
    head.append("median model at the limit, % | NLL | ECE")
    return pipes(" | ".join(head).split(" | "), [" | ".join(row).split(" | ") for row in rows]) + "\n"


def difference(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], name: str, digits: int = 2) -> str:
    """Ours minus theirs, with its interval."""
    first, second = measures(ours, name), measures(theirs, name)
    low, high = bootstrap_interval(first, second)
    middle = float(np.median(first) - np.median(second))
    return f"{signed(middle, digits)} ({signed(low, digits)} to {signed(high, digits)})"


def curve_table(results: Path) -> str:
    """Ours against pruning at every target density."""
    blocks = []
    for dataset, architecture, method, content in places(results, "densities", ("lrt", "flow")):
        other = read(results, "densities", dataset, architecture, "pruned")
        rows = []
        for block in content["rows"]:
            own = block["replicates"]
            off = max(abs(row["density"] / block["target"] - 1.0) for row in own)
            row = [f"{100 * block['target']:g}%", f"{100 * off:.1f}%"]
            row += [
                f"{np.median(measures(own, 'accuracy_median')):.2f}",
                f"{np.median(measures(own, 'nll_median')):.4f}",
            ]
            cut = None if other is None else _same_target(other, block["target"])
            if cut is None:
                row += [_NONE] * 4
            else:
                row += [
                    f"{np.median(measures(cut, 'accuracy_median')):.2f}",
                    difference(own, cut, "accuracy_median"),
                ]
                row += [
                    f"{np.median(measures(cut, 'nll_median')):.4f}",
                    difference(own, cut, "nll_median", 4),
                ]
            rows.append(row)
        head = ["target", "largest miss", "median model, %", "NLL"]
        head += ["pruned, %", "ours − pruned", "pruned NLL", "ours − pruned"]
        title = f"{place_name(dataset, architecture)}, {NAMES[method]} ({_trained_as(content)})"
        blocks.append(f"{title}:\n\n{pipes(head, rows)}\n")
    return "\n".join(blocks) or "No curves yet.\n"


def _trained_as(content: Result) -> str:
    """What a curve was trained with: a choice that was made after it may be another one."""
    own = content["settings"]["settings"]
    heat = f", heat {own['refit_heat']:g}" if "refit_heat" in own else ""
    return f"temperature {own['temperature']:g}, rate {own['learning_rate']:g}{heat}"


def target_table(results: Path) -> str:
    """The controller alone: how far from its target the density is after the last epoch."""
    rows = []
    for dataset, architecture, method, content in places(results, "targets", ("lrt", "flow")):
        for block in content["rows"]:
            own = block["replicates"]
            kept = [row["density"] for row in own]
            off = max(abs(value / block["target"] - 1.0) for value in kept)
            rows.append(
                [
                    f"{place_name(dataset, architecture)}, {NAMES[method]} ({_trained_as(content)})",
                    f"{100 * block['target']:g}%",
                    f"{100 * min(kept):.3f}–{100 * max(kept):.3f}%",
                    f"{100 * off:.1f}%",
                    f"{np.median(measures(own, 'accuracy_median')):.2f}",
                    f"{np.median(measures(own, 'accuracy_average')):.2f}",
                ]
            )
    if not rows:
        return "Not run yet.\n"
    head = ["", "target", "reached", "largest miss", "median model, %", "averaging, %"]
    return pipes(head, rows) + "\n"


def _same_target(content: Result, target: float) -> list[dict[str, Any]] | None:
    return next((block["replicates"] for block in content["rows"] if block["target"] == target), None)


def pair_table(results: Path) -> str:
    """FLOW against LRT, each as its validation rows chose and corrected it, if both exist."""
    rows = []
    found = places(results, "final", ("lrt", "flow"))
    finals = {(d, a, m): content["replicates"] for d, a, m, content in found}
    for dataset, architecture in dict.fromkeys((d, a) for d, a, _ in finals):
        pair = [finals.get((dataset, architecture, m)) for m in ("flow", "lrt")]
        if pair[0] is None or pair[1] is None:
            continue
        names = [
            f"{measure}_{model}" for measure in ("accuracy", "nll", "ece") for model in evaluation.MODELS
        ]
        figures = [difference(pair[0], pair[1], n, 2 if n.startswith("accuracy") else 4) for n in names]
        rows.append([place_name(dataset, architecture), *figures])
    if not rows:
        return "Not yet: one of the two is missing everywhere.\n"
    head = ["FLOW − LRT", "averaging, points", "median model, points", "NLL averaging", "NLL median model"]
    return pipes([*head, "ECE averaging", "ECE median model"], rows) + "\n"


def _titled(parts: dict[str, str]) -> str:
    return "\n".join(f"**{title}**\n\n{body}" for title, body in parts.items())


def markdown(results: Path) -> str:
    """The tables of the page."""
    parts = {
        "Ten seeds on the test rows": accuracy_table(results),
        "Target densities, against magnitude pruning": curve_table(results),
        "What the flow is worth": pair_table(results),
    }
    return _titled(parts)


def details(results: Path) -> str:
    """The tables of ``results/frontier/tables.md``."""
    parts = {
        "Ten seeds on the test rows: NLL and calibration error": calibration_table(results),
        "What the validation rows chose": chosen_table(results),
        "What the temperature does (validation rows)": temperature_table(results),
        "Target densities by the controller alone, no refit": target_table(results),
    }
    return _titled(parts)


def write(out: Path) -> None:
    """Renew the page's tables and those with the results."""
    results, page = out / "results", out / "docs" / "studies" / "frontier.md"
    write_details(results / "frontier", details(results))
    if page.exists():
        fill_page(page, markdown(results))
        print(f"Wrote the tables into {page}.")
