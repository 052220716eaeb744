"""Tables 1 and 2 in the paper's layout, next to its figures, rendered from ``results/``.

Accuracies are percentages over the replicates (min / median / max), densities their mean. Between
LBBNN-FLOW and LBBNN-LRT stands the difference of medians with a bootstrap interval: both sets of replicates
are drawn with replacement, 10,000 times, and the 2.5 and 97.5 percentiles of the difference are kept.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from studies.runner import fill_page
from studies.tables.cells import DATASETS, METHODS, Result, read_cells
from studies.tables.published import Printed, printed

__all__ = ["bootstrap_interval", "main", "markdown", "text"]

TABLES = {"table1": "fc", "table2": "lenet"}
TITLES = {
    "table1": "Table 1: fully connected, 784-400-600-10",
    "table2": "Table 2: LeNet-5, 32 and 48 filters",
}
NAMES = {"lbbnn": "LBBNN", "lrt": "LBBNN-LRT", "flow": "LBBNN-FLOW"}
# How far below the paper a median, and how far above it a density, may lie before it is marked.
_SHORT, _DENSER, _MARK = 0.4, 0.03, " †"
_NOTHING = "–"
Cells = dict[str, Result]
Rows = list[list[str]]

_HEAD = [
    "",
    "median model, %",
    "paper",
    "Δ median",
    "density",
    "paper",
    "Δ",
    "averaging, %",
    "paper",
    "Δ median",
]
_PAIR_HEAD = [
    "FLOW − LRT, points",
    "median model",
    "95% interval",
    "paper",
    "averaging",
    "95% interval",
    "paper",
]


def accuracies(cell: Result, model: str) -> np.ndarray:
    """Accuracies of a cell's replicates, in percent."""
    return 100.0 * np.array([row[f"accuracy_{model}"] for row in cell["replicates"]])


def bootstrap_interval(
    first: np.ndarray, second: np.ndarray, draws: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """95% percentile interval of median(first) − median(second), both resampled.

    >>> bootstrap_interval(np.array([3.0, 3.0]), np.array([1.0, 1.0]))
    (2.0, 2.0)
    """
    generator = np.random.default_rng(seed)

    def medians(values: np.ndarray) -> np.ndarray:
        return np.median(values[generator.integers(0, len(values), (draws, len(values)))], axis=1)

    low, high = np.percentile(medians(first) - medians(second), [2.5, 97.5])
    return float(low), float(high)


def spread(values: Sequence[float] | np.ndarray) -> str:
    """min / median / max."""
    return " / ".join(f"{v:.2f}" for v in (min(values), statistics.median(values), max(values)))


def signed(value: float, digits: int = 2) -> str:
    """A difference with its sign; a true minus, so that columns read well."""
    return f"{value:+.{digits}f}".replace("-", "−")


def _accuracy_columns(cell: Result | None, model: str, paper: tuple[float, float, float]) -> list[str]:
    printed_spread = " / ".join(f"{v:.2f}" for v in paper)
    if cell is None:
        return [_NOTHING, printed_spread, _NOTHING]
    ours = accuracies(cell, model)
    difference = float(np.median(ours)) - paper[1]
    mark = _MARK if difference < -_SHORT - 1e-9 else ""
    return [spread(ours), printed_spread, signed(difference) + mark]


def _density_columns(cell: Result | None, paper: float) -> list[str]:
    if cell is None:
        return [_NOTHING, f"{paper:.3f}", _NOTHING]
    ours = statistics.fmean(row["density"] for row in cell["replicates"])
    mark = _MARK if ours - paper > _DENSER + 1e-9 else ""
    return [f"{ours:.3f}", f"{paper:.3f}", signed(ours - paper, 3) + mark]


def _row(cell: Result | None, label: str, paper: Printed) -> list[str]:
    return [
        label,
        *_accuracy_columns(cell, "median", paper.median),
        *_density_columns(cell, paper.density),
        *_accuracy_columns(cell, "average", paper.average),
    ]


def _label(cell: Result | None, dataset: str, method: str) -> str:
    """The row's name, and in what it is less than the paper's ten replicates of 250 epochs."""
    label = f"{dataset.upper()} {NAMES[method]}"
    if cell is None:
        return label
    less = []
    if len(cell["replicates"]) < 10:
        less.append(f"{len(cell['replicates'])} replicates")
    if cell["settings"]["settings"]["epochs"] != 250:
        less.append(f"{cell['settings']['settings']['epochs']} epochs")
    return f"{label} ({', '.join(less)})" if less else label


def table_rows(cells: Cells, architecture: str) -> Rows:
    """A row per data set and method, whether or not it has a result."""
    return [
        _row(
            cells.get(f"{dataset}-{method}"),
            _label(cells.get(f"{dataset}-{method}"), dataset, method),
            printed(architecture, dataset, method),
        )
        for dataset in DATASETS
        for method in METHODS
    ]


def pair_rows(cells: Cells, architecture: str) -> Rows:
    """LBBNN-FLOW minus LBBNN-LRT, for each data set: ours with its interval, and the paper's."""
    rows = []
    for dataset in DATASETS:
        flow, lrt = cells.get(f"{dataset}-flow"), cells.get(f"{dataset}-lrt")
        row = [f"{dataset.upper()} {'LeNet-5' if architecture == 'lenet' else 'fully connected'}"]
        for model in ("median", "average"):
            ours = [_NOTHING, _NOTHING]
            if flow is not None and lrt is not None:
                first, second = accuracies(flow, model), accuracies(lrt, model)
                low, high = bootstrap_interval(first, second)
                difference = float(np.median(first) - np.median(second))
                ours = [signed(difference), f"{signed(low)} to {signed(high)}"]
            papers = [getattr(printed(architecture, dataset, method), model)[1] for method in ("flow", "lrt")]
            row += [*ours, signed(papers[0] - papers[1])]
        rows.append(row)
    return rows


def _summary(cells: Cells) -> str:
    """The number of finished cells, their devices and their time."""
    total = len(DATASETS) * len(METHODS)
    if not cells:
        return f"0 of {total} cells so far."
    devices = " + ".join(dict.fromkeys(cell["device"] for cell in cells.values()))
    counts = sorted({len(cell["replicates"]) for cell in cells.values()})
    minutes = sum(cell["train_seconds"] for cell in cells.values()) / 60.0
    replicates = " or ".join(map(str, counts))
    trained = f"{minutes:.1f} minutes of training on {devices}"
    return f"{len(cells)} of {total} cells, {replicates} replicates each, {trained}."


_LEGEND = (
    f"min / median / max over replicates; density: mean share of weights kept. {_MARK.strip()}: a median "
    f"more than {_SHORT} points below the paper's, or a density more than {_DENSER} above it. "
    f"{_NOTHING}: not run yet. (The paper prints 99.42 for the maximum of LBBNN-FLOW on MNIST in table 1; "
    "98.42 is meant.)"
)


def grid(head: Sequence[str], rows: Rows) -> str:
    """Columns of text, the first one to the left."""
    widths = [max(len(line[i]) for line in [list(head), *rows]) for i in range(len(head))]
    lines = []
    for line in [list(head), *rows]:
        first, *others = [
            f"{entry:<{w}}" if i == 0 else f"{entry:>{w}}" for i, (entry, w) in enumerate(zip(line, widths))
        ]
        lines.append("  ".join([first, *others]).rstrip())
    return "\n".join(lines)


def pipes(head: Sequence[str], rows: Rows) -> str:
    """A Markdown table."""
    lines = [list(head), ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _render(results: Path, title: str, grid: Callable[[Sequence[str], Rows], str]) -> str:
    blocks, pairs = [], []
    for study, architecture in TABLES.items():
        stems = [f"{dataset}-{method}" for dataset in DATASETS for method in METHODS]
        cells = read_cells(results / study, stems)
        blocks += [
            title.format(TITLES[study]),
            grid(_HEAD, table_rows(cells, architecture)),
            _summary(cells),
        ]
        pairs += pair_rows(cells, architecture)
    blocks += [_LEGEND, title.format("LBBNN-FLOW against LBBNN-LRT"), grid(_PAIR_HEAD, pairs)]
    blocks.append("Differences of medians; bootstrap over replicates, 10,000 draws.")
    return "\n\n".join(blocks) + "\n"


def text(results: Path) -> str:
    """The tables for a terminal."""
    return _render(results, "{}", grid)


def markdown(results: Path) -> str:
    """The tables for the README and the docs."""
    return _render(results, "**{}**", pipes)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables, or write them into a page between its markers."""
    parser = argparse.ArgumentParser(
        prog="python -m studies tables",
        description="Tables 1 and 2, next to the paper's figures.",
    )
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="folder of results (default results)"
    )
    parser.add_argument("--markdown", action="store_true", help="Markdown instead of text")
    parser.add_argument(
        "--write", type=Path, nargs="+", metavar="PAGE", help="pages whose marked part is renewed"
    )
    given = parser.parse_args(argv)
    if given.write:
        for page in given.write:
            fill_page(page, markdown(given.results))
            print(f"Wrote the tables into {page}.")
        return
    print(markdown(given.results) if given.markdown else text(given.results), end="")
