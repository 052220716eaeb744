"""Result files to the picture, to docs/studies/performance.md and to results/bench/tables.md.

Nothing is measured here. The page's parts ``cuda`` and ``cpu`` (see :func:`studies.runner.filled`) are
written from the result files of that name; everything else on it is written by hand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import kinks, parity
from benchmarks.tables import Record, Table, scaling_curves, tables
from sparsebnn.io.files import atomic_write
from studies.runner import fill_page
from studies.style import COLOURS

__all__ = ["KINDS", "block", "draw", "more", "pictured", "read", "refresh"]

KINDS = ("cuda", "cpu")
_LABELS = {
    "replicates": "replicates K",
    "width": "width of the hidden layers, × (400, 600)",
    "depth": "hidden layers",
}


def _made(provenance: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in provenance["versions"].items())
    return (
        f"`{provenance['command']}` on {provenance['device']}"
        + (f", {provenance['threads']} threads" if provenance["kind"] == "cpu" else "")
        + f"; commit {str(provenance['commit'])[:12]}; {versions}; {provenance['seconds']:.0f} s."
    )


def pictured(records: Mapping[str, Record]) -> str | None:
    """The kind whose scaling curves are drawn: the first that has some."""
    return next((kind for kind in KINDS if kind in records and _curves(records[kind])), None)


def block(records: Mapping[str, Record], kind: str) -> str:
    """The generated part of the page for one kind of device."""
    if kind not in records:
        return f"Not measured yet: `python -m benchmarks --device {kind} --scaling`."
    record = records[kind]
    made = [_made(record["provenance"])]
    made += [f"{one['rows']} of the timings earlier: {_made(one)}" for one in record.get("earlier", [])]
    parts = [*made, *(table.markdown() for table in tables(record) if not _is_detail(table))]
    if pictured(records) == kind:
        parts.append("![Milliseconds per step over replicates, width and depth](../images/scaling.png)")
    return "\n\n".join(parts)


def read(folder: Path) -> dict[str, Record]:
    """The existing result files, by kind."""
    paths = {kind: folder / f"bench-{kind}.json" for kind in KINDS}
    return {kind: json.loads(p.read_text(encoding="utf-8")) for kind, p in paths.items() if p.exists()}


def more(records: Mapping[str, Record], folder: Path) -> str:
    """Tables that the page only refers to: epochs, memory, scaling, parity and kinks."""
    parts = []
    for kind, record in records.items():
        found = [table.markdown() for table in tables(record) if _is_detail(table)]
        parts += [f"## {kind}", *found] if found else []
    numerics = [part.strip() for part in (parity.blocks(folder), kinks.block(folder)) if part]
    return "\n\n".join([*parts, *(["## Does it compute the same?", *numerics] if numerics else [])]) + "\n"


def _is_detail(table: Table) -> bool:
    return table.title.startswith(("Seconds per epoch", "Peak memory", "LBBNN-LRT,"))


def refresh(page: Path, records: Mapping[str, Record], folder: Path) -> None:
    """Update the generated parts of the page, and ``tables.md`` in ``folder``."""
    for kind in KINDS:
        fill_page(page, block(records, kind), kind)
    (folder / "tables.md").write_text(more(records, folder), encoding="utf-8")


def _curves(record: Record) -> dict[str, list[tuple[float, float, int]]]:
    return {name: points for name, points in scaling_curves(record).items() if len(points) > 1}


def draw(record: Record, path: Path) -> None:
    """Cost over replicates, width and depth, on logarithmic axes."""
    curves = _curves(record)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(curves), 3.8), layout="constrained")
    axes = figure.subplots(1, len(curves), squeeze=False)[0]
    for axis, (name, points) in zip(axes, curves.items()):
        places, ms, k = zip(*points)
        axis.plot(places, ms, "o-", color=COLOURS[0], label="one step, all replicates")
        if name == "replicates":
            each = [time / count for time, count in zip(ms, k)]
            axis.plot(places, each, "s-", color=COLOURS[1], label="per replicate")
            linear = [ms[0] * place / places[0] for place in places]
            axis.plot(places, linear, "--", color=COLOURS[6], linewidth=1, label="linear cost")
            axis.set_title("replicates as one program", fontsize=11)
        else:
            axis.set_title(f"{k[0]} replicates", fontsize=11)
        _logarithmic(axis, places)
        axis.set_xlabel(_LABELS[name])
        axis.legend(frameon=False, fontsize=8)
    axes[0].set_ylabel("milliseconds")
    figure.suptitle(f"LBBNN-LRT, fully connected, batch 100, {record['provenance']['device']}", fontsize=11)
    with atomic_write(path) as partial:
        figure.savefig(partial, dpi=100, format="png")


def _logarithmic(axis: Any, places: tuple[float, ...]) -> None:
    """Both axes logarithmic, with ticks at the measured places and at 1, 2, 5 times powers of ten."""
    heights = [float(y) for line in axis.get_lines() for y in line.get_ydata()]
    low, high = 0.8 * min(heights), 1.3 * max(heights)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xticks(list(places), [f"{place:g}" for place in places])
    ticks = [lead * 10.0**power for power in range(-4, 5) for lead in (1, 2, 5)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_ylim(low, high)
    axis.minorticks_off()
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
