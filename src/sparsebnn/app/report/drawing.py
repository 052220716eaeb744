"""The sparse network as a drawing: units in columns, kept weights as curves, and paths counted.

Only units on a path from an input to an output are drawn, and columns in use that the network drawn does
not reach, without lines. The number of paths from a unit u is paths(u) = Σ over kept weights u→v of
paths(v), with paths(output) = 1. The strength of a line is that of the weakest line on the strongest path
through it, so the lines above any strength form whole paths (:func:`strengths`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from sparsebnn.app.report.record import Edge, Record
from sparsebnn.app.report.words import fitted, number, percent

__all__ = ["active", "draw", "strengths"]

WIDTH, _LEFT, _RIGHT, _TOP = 960, 230, 190, 28
MOST_INPUTS = 60
MOST_LINES = 150  # visible at first
_GAP, _SHORTEST = 20, 240
Places = dict[tuple[int, int], tuple[float, float]]


def active(edges: Iterable[Edge], depth: int) -> list[Edge]:
    """The edges on a path from layer 0 to layer ``depth``.

    >>> edges = [Edge(0, 0, 0, 0.9, 1.0), Edge(0, 1, 1, 0.9, 1.0), Edge(1, 0, 0, 0.9, 1.0)]
    >>> [(e.layer, e.source, e.target) for e in active(edges, 2)]
    [(0, 0, 0), (1, 0, 0)]
    """
    reached: set[tuple[int, int]] = set()
    forward = []
    for edge in sorted(edges, key=lambda edge: edge.layer):
        if edge.layer == 0 or (edge.layer, edge.source) in reached:
            reached.add((edge.layer + 1, edge.target))
            forward.append(edge)
    leads: set[tuple[int, int]] = set()
    kept = []
    for edge in reversed(forward):
        if edge.layer == depth - 1 or (edge.layer + 1, edge.target) in leads:
            leads.add((edge.layer, edge.source))
            kept.append(edge)
    return kept[::-1]


def draw(record: Record) -> SimpleNamespace | None:
    """The layout of the active part; of more than 60 inputs, those in use and with the largest kept
    weights.
    """
    network = record.network
    depth = 0 if network is None else len(network.layers) - 1
    edges = [] if network is None else active(network.edges, depth)
    if not edges:
        return None
    size: Counter[int] = Counter()
    for edge in edges:
        if edge.layer == 0:
            size[edge.source] += abs(edge.weight)  # type: ignore[assignment]
    used = {each.name for each in record.inputs if each.selected}
    in_use = {index for index in size if _column(network, index) in used}
    strongest = sorted(size, key=lambda index: (index not in in_use, -size[index], index))[:MOST_INPUTS]
    shown = active([e for e in edges if e.layer or e.source in strongest], depth)
    reached = {_column(network, edge.source) for edge in shown if edge.layer == 0}
    absent = [each.name for each in record.inputs if each.selected and each.name not in reached]
    columns = _columns(shown, depth)
    inputs = len(columns[0])
    columns[0] += [-1 - place for place in range(len(absent))]
    height = max(_SHORTEST, _TOP + 16 + _GAP * max(len(columns[0]), len(columns[-1])))
    places = _places(columns, height)
    headings = ["inputs", *(f"layer {layer}" for layer in range(1, depth)), "output"]
    lines = _lines(shown, places, in_use)
    return SimpleNamespace(
        width=WIDTH,
        height=height,
        units=_units(network, shown, places, record, absent),
        lines=lines,
        headings=[(_x(layer, depth), heading) for layer, heading in enumerate(headings)],
        inputs_shown=inputs,
        inputs_active=len(size),
        inputs=network.layers[0],
        absent=absent,
        edges_shown=len(shown),
        edges_first=sum(not line.weak for line in lines),
        edges=max(network.of or 0, len(network.edges)),
    )


def _column(network: Any, index: int) -> str:
    """The column that an input comes from; records without this have one input per column."""
    names = network.input_columns or network.input_names
    return names[index] if index < len(names) else ""


def strengths(edges: Sequence[Edge], share: Mapping[Edge, float]) -> dict[Edge, float]:
    """For each edge, the largest over paths through it of the smallest share on the path.

    >>> first, weak, last = Edge(0, 0, 0, 1, 1), Edge(0, 1, 0, 1, 1), Edge(1, 0, 0, 1, 1)
    >>> found = strengths([first, weak, last], {first: 0.8, weak: 0.1, last: 0.5})
    >>> [found[edge] for edge in (first, weak, last)]
    [0.5, 0.1, 0.5]
    """
    ahead: dict[tuple[int, int], float] = {}
    behind: dict[tuple[int, int], float] = {}
    for edge in sorted(edges, key=lambda e: e.layer):
        own = min(share[edge], 1.0 if edge.layer == 0 else behind.get((edge.layer, edge.source), 0.0))
        there = (edge.layer + 1, edge.target)
        behind[there] = max(behind.get(there, 0.0), own)
    last = max((edge.layer for edge in edges), default=0)
    found = {}
    for edge in sorted(edges, key=lambda e: -e.layer):
        after = 1.0 if edge.layer == last else ahead.get((edge.layer + 1, edge.target), 0.0)
        before = 1.0 if edge.layer == 0 else behind.get((edge.layer, edge.source), 0.0)
        here = (edge.layer, edge.source)
        ahead[here] = max(ahead.get(here, 0.0), min(share[edge], after))
        found[edge] = min(share[edge], before, after)
    return found


def _columns(edges: Sequence[Edge], depth: int) -> list[list[int]]:
    """The units of each layer; sorting hidden units by the position of their inputs untangles the lines."""
    columns = [sorted({edge.source for edge in edges if edge.layer == 0})]
    for layer in range(1, depth + 1):
        rank = {unit: place / len(columns[-1]) for place, unit in enumerate(columns[-1])}
        pull: dict[int, list[float]] = {}
        for edge in edges:
            if edge.layer == layer - 1:
                pull.setdefault(edge.target, []).append(rank[edge.source])
        # Outputs keep the order of the classes.
        mean = {unit: sum(places) / len(places) if layer < depth else 0.0 for unit, places in pull.items()}
        columns.append([unit for _, unit in sorted((place, unit) for unit, place in mean.items())])
    return columns


def _x(layer: int, depth: int) -> float:
    return round(_LEFT + layer * (WIDTH - _LEFT - _RIGHT) / depth, 1)


def _places(columns: Sequence[Sequence[int]], height: int) -> Places:
    places = {}
    for layer, units in enumerate(columns):
        # A short column keeps its units together in the middle.
        gap = min((height - _TOP - 16) / len(units), 40.0 + height / 16)
        first = _TOP + (height - _TOP - gap * (len(units) - 1)) / 2
        for place, unit in enumerate(units):
            places[layer, unit] = (_x(layer, len(columns) - 1), round(first + place * gap, 1))
    return places


def _lines(edges: Sequence[Edge], places: Places, in_use: set[int]) -> list[SimpleNamespace]:
    """Curves; the width shows |weight|, the color the sign. Beyond 150, weak ones are hidden at first.

    The strongest path of every input in use is always visible.
    """
    largest: dict[int, float] = {}
    for edge in edges:
        largest[edge.layer] = max(largest.get(edge.layer, 0.0), abs(edge.weight))
    share = {e: abs(e.weight) / largest[e.layer] if largest[e.layer] else 0.0 for e in edges}
    strength = strengths(edges, share)
    order = sorted(edges, key=lambda e: (-strength[e], -share[e], e))
    rank = {edge: place for place, edge in enumerate(order, start=1)}
    best = {s: max(strength[e] for e in edges if e.layer == 0 and e.source == s) for s in in_use
            if any(e.layer == 0 and e.source == s for e in edges)}  # fmt: skip
    least = min([strength[order[min(len(order), MOST_LINES) - 1]], *best.values()])
    lines = []
    for edge in sorted(edges, key=lambda e: abs(e.weight)):
        (x1, y1), (x2, y2) = places[edge.layer, edge.source], places[edge.layer + 1, edge.target]
        middle = round((x1 + x2) / 2, 1)
        path = f"M{x1:g} {y1:g}C{middle:g} {y1:g} {middle:g} {y2:g} {x2:g} {y2:g}"
        width = round(0.6 + 2.6 * share[edge], 1)
        weak = len(edges) > MOST_LINES and strength[edge] < least
        lines.append(
            SimpleNamespace(
                edge=edge, path=path, width=width, negative=edge.weight < 0, rank=rank[edge], weak=weak
            )
        )
    return lines


def _units(
    network: Any, edges: Sequence[Edge], places: Places, record: Record, absent: Sequence[str]
) -> list[SimpleNamespace]:
    depth = len(network.layers) - 1
    paths, ends = _paths_and_ends(edges, depth)
    outputs = sum(layer == depth for layer, _ in places)
    incoming = Counter((edge.layer + 1, edge.target) for edge in edges)
    found = {each.name: each for each in record.inputs}
    units = []
    for (layer, index), (x, y) in places.items():
        if layer == 0 and index < 0:
            kind, label = "input", absent[-1 - index]
            note = (
                f"{label}: no kept connection in this replicate; stability {percent(found[label].stability)}"
            )
        elif layer == 0:
            kind, label = "input", _name(network.input_names, index, "input")
            count = paths[layer, index]
            many = "1 path" if count == 1 else f"{number(float(count), 4)} paths"
            own = found.get(_column(network, index))
            note = f"{label}: {many} to {len(ends[layer, index])} of {outputs} outputs"
            if own is not None and own.inclusion is not None and record.posterior:
                note += f"; inclusion {percent(own.inclusion)}"
            elif own is not None and own.stability is not None:
                note += f"; stability {percent(own.stability)}"
        else:
            kind, label, shown = "hidden", "", f"unit {index + 1} of layer {layer}"
            if layer == depth:
                kind, label = "output", _name(network.output_names, index, "output")
            count = incoming[layer, index]
            note = f"{label or shown}: {count} incoming connection{'' if count == 1 else 's'}"
        room = (_LEFT if layer == 0 else _RIGHT) - 20
        units.append(
            SimpleNamespace(
                layer=layer, index=index, x=x, y=y, kind=kind, label=fitted(label, room), note=note,
                absent=layer == 0 and index < 0,
            )
        )  # fmt: skip
    return units


def _name(names: Sequence[str], index: int, otherwise: str) -> str:
    return names[index] if index < len(names) else f"{otherwise} {index + 1}"


def _paths_and_ends(
    edges: Sequence[Edge], depth: int
) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int], set[int]]]:
    """For each unit, the number of paths to outputs and the outputs that they reach."""
    paths: dict[tuple[int, int], int] = {}
    ends: dict[tuple[int, int], set[int]] = {}
    for edge in sorted(edges, key=lambda e: -e.layer):
        here, there = (edge.layer, edge.source), (edge.layer + 1, edge.target)
        last = edge.layer == depth - 1
        paths[here] = paths.get(here, 0) + (1 if last else paths[there])
        ends[here] = ends.get(here, set()) | ({edge.target} if last else ends[there])
    return paths, ends
