"""A result file as tables: everything is computed from its rows, nothing is measured here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.peers import PEERS
from benchmarks.sparse_inference import WAYS, cells
from studies.tables.paper import METHODS

__all__ = ["PAPER_SECONDS", "PUBLISHED_MS", "Rows", "Table", "tables"]

Record = Mapping[str, Any]
# Seconds per epoch as the paper reports them, and milliseconds per step of its published code, measured
# on an H200 with one replicate.
PAPER_SECONDS = {
    ("fc", "lbbnn"): 13.0,
    ("fc", "lrt"): 4.0,
    ("fc", "flow"): 17.0,
    ("lenet", "lbbnn"): 18.0,
    ("lenet", "lrt"): 7.0,
    ("lenet", "flow"): 28.0,
}
PUBLISHED_MS = {
    ("fc", "lbbnn"): 28.97,
    ("fc", "lrt"): 8.56,
    ("fc", "flow"): 38.98,
    ("lenet", "lbbnn"): 37.46,
    ("lenet", "lrt"): 14.01,
    ("lenet", "flow"): 59.65,
}
_STEPS_PER_EPOCH = 600
_NETWORKS = {"fc": "fully connected", "lenet": "LeNet"}
_NAMES = {"lbbnn": "LBBNN", "lrt": "LBBNN-LRT", "flow": "LBBNN-FLOW"}


@dataclass(frozen=True)
class Table:
    """A heading, column heads and cells that are already text."""

    title: str
    head: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    note: str = ""

    def text(self) -> str:
        """For a terminal; heads of several words stand on several lines."""
        heads = [head.split("|") for head in self.head]
        tall = max(map(len, heads))
        stack = [[""] * (tall - len(words)) + words for words in heads]
        grid = [tuple(column[i] for column in stack) for i in range(tall)] + list(self.lines)
        widths = [max(len(line[i]) for line in grid) for i in range(len(self.head))]
        rows = [
            "  ".join(
                cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths))
            )
            for line in grid
        ]
        return "\n".join(
            [self.title, *(f"  {row.rstrip()}" for row in rows), *([self.note] if self.note else [])]
        )

    def markdown(self) -> str:
        """For a page."""
        heads = [head.replace("|", " ") for head in self.head]
        rule = ["---", "---", *["--:"] * (len(heads) - 2)]
        rows = [f"| {' | '.join(line)} |" for line in (heads, rule, *self.lines)]
        return "\n".join([f"**{self.title}**", "", *rows, *(["", self.note] if self.note else [])])


class Rows:
    """The rows of a record, found by what was timed."""

    def __init__(self, record: Record) -> None:
        self.all: list[dict[str, Any]] = list(record["rows"])

    def find(self, code: str, **wanted: Any) -> dict[str, Any] | None:
        """The row with these columns; a column that a row does not have counts as None."""
        wanted = {"hidden": None, "model": None, **wanted, "code": code}
        for row in self.all:
            if "failed" not in row and all(row.get(name) == value for name, value in wanted.items()):
                return row
        return None

    def ms(
        self, code: str, architecture: str, method: str | None = None, replicates: int = 1
    ) -> float | None:
        row = self.find(code, architecture=architecture, method=method, replicates=replicates)
        return None if row is None else row["ms"]

    def cells(self) -> list[tuple[str, str]]:
        """Architectures and methods of the paper's networks that were timed."""
        seen = {(row["architecture"], row.get("method")) for row in self.all if row["code"] == "ours"}
        return [(a, m) for a in _NETWORKS for m in METHODS if (a, m) in seen]


def _number(value: float | None, form: str = "") -> str:
    """Three significant digits, or a dot where there is nothing."""
    if value is None:
        return "·"
    if form:
        return format(value, form)
    return (
        f"{value:.0f}"
        if value >= 99.95
        else f"{value:.1f}"
        if value >= 9.995
        else f"{value:.2f}"
        if (value >= 0.9995)
        else f"{value:.3f}"
    )


def _ratio(above: float | None, below: float | None) -> float | None:
    return None if above is None or below is None else above / below


def _times(above: float | None, below: float | None) -> str:
    found = _ratio(above, below)
    return "·" if found is None else f"{_number(found, '.2f') if found < 9.995 else _number(found)}×"


def _line(cell: tuple[str, str], cells: Iterable[str]) -> tuple[str, ...]:
    return (_NETWORKS[cell[0]], _NAMES[cell[1]], *cells)


def _each(ms: float | None, k: int) -> float | None:
    return None if ms is None else ms / k


def _steps(rows: Rows, replicates: Sequence[int]) -> Table:
    heads = [f"ms|K = {k}" for k in replicates]
    heads += [f"÷ plain|K = {k}" for k in replicates] + [
        f"faster than|reference, K = {k}" for k in replicates
    ]
    lines = []
    for cell in rows.cells():
        ours = {k: rows.ms("ours", *cell, k) for k in replicates}
        plain, reference = rows.ms("deterministic", cell[0]), rows.ms("reference", *cell)
        cells = [_number(ours[k]) for k in replicates]
        cells += [_times(_each(ours[k], k), plain) for k in replicates]
        cells += [_times(reference, _each(ours[k], k)) for k in replicates]
        lines.append(_line(cell, cells))
    note = "K replicates together; ratios are per replicate. Plain: the deterministic network, eager."
    return Table("A training step, batch 100", ("network", "method", *heads), tuple(lines), note)


def _epochs(rows: Rows, replicates: Sequence[int]) -> Table:
    lines = []
    for cell in rows.cells():
        ours = [rows.ms("ours", *cell, k) for k in replicates]
        seconds = [None if ms is None else ms * _STEPS_PER_EPOCH / 1e3 for ms in ours]
        lines.append(_line(cell, [_number(PAPER_SECONDS[cell], ".0f"), *map(_number, seconds)]))
    heads = [f"{'one replicate' if k == 1 else f'{k} together'}" for k in replicates]
    note = "600 steps of batch 100. The paper's seconds are for one replicate, on its authors' machine."
    return Table("Seconds per epoch", ("network", "method", "paper", *heads), tuple(lines), note)


def _published(rows: Rows, replicates: Sequence[int]) -> Table:
    lines = []
    for cell in rows.cells():
        each = [_each(rows.ms("ours", *cell, k), k) for k in replicates]
        cells = [_number(PUBLISHED_MS[cell], ".2f"), *map(_number, each)]
        lines.append(_line(cell, [*cells, *(_times(PUBLISHED_MS[cell], ms) for ms in each)]))
    heads = [
        "published code",
        *(f"ms each|K = {k}" for k in replicates),
        *(f"faster|K = {k}" for k in replicates),
    ]
    title = "Milliseconds per step and replicate, compared with the paper's published code on an H200"
    return Table(title, ("network", "method", *heads), tuple(lines))


def _yardsticks(rows: Rows) -> Table | None:
    """What we are compared with: plain network, eager references, other libraries."""
    lines = []
    for network, name in _NETWORKS.items():
        plain, lrt = rows.ms("deterministic", network), rows.ms("ours", network, "lrt")
        for row in rows.all:
            others = ("deterministic", "reference", *PEERS)
            if row["architecture"] == network and row["code"] in others and "failed" not in row:
                title = f"{row['code']} {_NAMES.get(row.get('method', ''), '')}".strip()
                lines.append(
                    (name, title, _number(row["ms"]), _times(row["ms"], plain), _times(row["ms"], lrt))
                )
    if not lines:
        return None
    heads = ("network", "code", "ms", "÷ plain", "÷ ours, LRT")
    note = "One replicate, eager PyTorch. The other libraries have no inclusion variables."
    return Table("What it is compared with", heads, tuple(lines), note)


def _memory(rows: Rows, replicates: Sequence[int], where: str) -> Table:
    lines = []
    for cell in rows.cells():
        found = [rows.find("ours", architecture=cell[0], method=cell[1], replicates=k) for k in replicates]
        reference = rows.find("reference", architecture=cell[0], method=cell[1])
        peaks = [None if row is None else row["peak_mebibytes"] for row in (*found, reference)]
        lines.append(_line(cell, [_number(peak, ".0f") for peak in peaks]))
    heads = (*(f"K = {k}" for k in replicates), "reference")
    note = (
        "The training data, 45 MiB, are on the device."
        if where == "cuda"
        else "Of the whole process: PyTorch, the compiler and the training data included."
    )
    return Table("Peak memory in MiB", ("network", "method", *heads), tuple(lines), note)


def _predictions(rows: Rows) -> Table | None:
    own = [row for row in rows.all if row["code"] == "predict" and "failed" not in row]
    if not own:
        return None
    lines = []
    for cell in dict.fromkeys((row["architecture"], row["method"]) for row in own):
        found = {row["model"]: row for row in own if (row["architecture"], row["method"]) == cell}
        one = next(iter(found.values()))
        cells = [f"{one['images']:,}", str(one["replicates"])]
        for model in ("average", "median"):
            row = found.get(model)
            seconds = None if row is None else row["ms"] / 1e3
            rate = None if row is None else row["images"] * row["replicates"] / row["ms"] * 1e3
            cells += [_number(seconds), _number(rate, ",.0f")]
        lines.append(_line(cell, cells))
    heads = (
        "images",
        "K",
        "averaging|seconds",
        "images|per second",
        "median model|seconds",
        "images|per second",
    )
    note = "Seconds for all K replicates; images per second count each image K times."
    return Table("Prediction with 100 draws", ("network", "method", *heads), tuple(lines), note)


def _gradients(found: Sequence[Mapping[str, Any]]) -> Table:
    lines = []
    for row in found:
        moment = "the paper's start" if row["moment"] == "start" else f"after {row['epochs']} epochs"
        sizes = "-".join(map(str, row["sizes"]))
        local = f"{row['local']:.0f} ± {row['local_se']:.0f}"
        drawn = f"{row['drawn']:.0f} ± {row['drawn_se']:.0f}"
        lines.append((sizes, moment, local, drawn, f"{row['ratio']:.1f} ± {row['ratio_se']:.1f}"))
    heads = ("network", "moment", "local", "drawn weights", "ratio")
    draws = found[0]["n_draws"]
    note = f"Handwritten digits, one batch of 100, {draws} draws of the noise; ± one standard error."
    title = "Variance of the gradient of the batch's NLL, summed over all weight means"
    return Table(title, heads, tuple(lines), note)


def scaling_curves(record: Record) -> dict[str, list[tuple[float, float, int]]]:
    """Of LRT on the fully connected network: ``(place, ms, K)`` over replicates, width and depth."""
    rows = [row for row in record["rows"] if row["code"] == "ours" and "failed" not in row]
    rows = [row for row in rows if (row["architecture"], row["method"]) == ("fc", "lrt")]
    spec = record.get("scaling")
    if not spec or not rows:
        return {}
    curves: dict[str, list[tuple[float, float, int]]] = {"replicates": [], "width": [], "depth": []}
    for row in rows:
        hidden, k = row.get("hidden"), row["replicates"]
        if hidden is None:
            curves["replicates"].append((k, row["ms"], k))
        if k == spec["together"] and hidden is None:
            curves["width"].append((1.0, row["ms"], k))
        elif hidden is not None and len(hidden) == 2 and 3 * hidden[0] == 2 * hidden[1]:
            curves["width"].append((hidden[0] / 400, row["ms"], k))
        elif hidden is not None and set(hidden) == {400}:
            curves["depth"].append((len(hidden), row["ms"], k))
    return {name: sorted(points) for name, points in curves.items()}


def _scaling(record: Record) -> list[Table]:
    titles = {
        "replicates": "LBBNN-LRT, fully connected: cost of K replicates",
        "width": "LBBNN-LRT, hidden layers of 400 and 600 units times a factor",
        "depth": "LBBNN-LRT, hidden layers of 400 units",
    }
    found = []
    for name, points in scaling_curves(record).items():
        if not points:
            continue
        first, first_ms, _ = points[0]
        # Over K the second column says how the cost compares with K times that of the fewest.
        second = [
            f"{ms / (first_ms * place / first):.2f}" if name == "replicates" else str(k)
            for place, ms, k in points
        ]
        lines = [
            (f"{place:g}", beside, _number(ms), _number(1e3 * ms / k, ".1f"))
            for (place, ms, k), beside in zip(points, second)
        ]
        head = {"replicates": ("K", "of linear cost"), "width": ("factor", "K"), "depth": ("layers", "K")}[
            name
        ]
        found.append(Table(titles[name], (*head, "ms per step", "µs per step|and replicate"), tuple(lines)))
    return found


def _sparse(found: Sequence[Mapping[str, Any]]) -> Table:
    head = ("network", "density", "batch", "threads", *(name.replace(" ", "|") for name in WAYS.values()))
    note = "Microseconds of a call (the shortest of the turns); in brackets, times faster than dense torch."
    return Table("Sparse inference on a CPU", head, tuple(map(cells, found)), note)


def tables(record: Record) -> list[Table]:
    """Every table that the record has rows for."""
    rows, where = Rows(record), record["provenance"]["kind"]
    replicates = sorted(set(record["spec"]["replicates"]))
    found: list[Table | None] = []
    if "steps" in record["spec"]["parts"]:
        found += [_steps(rows, replicates), _epochs(rows, replicates)]
        found += [_published(rows, replicates)] if where == "cuda" else []
    found += [_yardsticks(rows), _predictions(rows)]
    if "steps" in record["spec"]["parts"]:
        found.append(_memory(rows, replicates, where))
    found += [_gradients(record["gradients"])] if record.get("gradients") else []
    found += [_sparse(record["sparse"])] if record.get("sparse") else []
    return [table for table in (*found, *_scaling(record)) if table is not None and table.lines]


def failures(record: Record) -> list[str]:
    """One line per task that could not be timed."""
    columns = ("code", "architecture", "method", "replicates", "hidden", "model")
    return [
        " ".join(str(row[c]) for c in columns if c in row) + f": {row['failed']}"
        for row in record["rows"]
        if "failed" in row
    ]
