"""The sparse network as a drawing: units in columns, kept weights as curves, and paths counted.

Only units on a path from an input to an output are drawn. The number of paths from a unit u is
paths(u) = Σ over kept weights u→v of paths(v), with paths(output) = 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from sparsebnn.app.report.record import Edge, Record
from sparsebnn.app.report.words import number, percent

__all__ = ["active", "draw"]

WIDTH, _LEFT, _RIGHT, _TOP = 960, 210, 170, 28
MOST_INPUTS = 60
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
    """The layout of the active part; of more than 60 inputs, those with the largest kept weights."""
    network = record.network
    depth = 0 if network is None else len(network.layers) - 1
    edges = [] if network is None else active(network.edges, depth)
    if not edges:
        return None
    strength: Counter[int] = Counter()
    for edge in edges:
        if edge.layer == 0:
            strength[edge.source] += abs(edge.weight)  # type: ignore[assignment]
    strongest = set(sorted(strength, key=lambda index: (-strength[index], index))[:MOST_INPUTS])
    shown = active([e for e in edges if e.layer or e.source in strongest], depth)
    columns = _columns(shown, depth)
    height = max(_SHORTEST, _TOP + 16 + _GAP * max(len(columns[0]), len(columns[-1])))
    places = _places(columns, height)
    headings = ["inputs", *(f"layer {layer}" for layer in range(1, depth)), "output"]
    return SimpleNamespace(
        width=WIDTH,
        height=height,
        units=_units(network, shown, places, {each.name: each.inclusion for each in record.inputs}),
        lines=_lines(shown, places),
        headings=[(_x(layer, depth), heading) for layer, heading in enumerate(headings)],
        inputs_shown=len(columns[0]),
        inputs_active=len(strength),
        inputs=network.layers[0],
        edges_shown=len(shown),
        edges=max(network.of or 0, len(network.edges)),
    )


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


def _lines(edges: Sequence[Edge], places: Places) -> list[SimpleNamespace]:
    """Curves; the width shows |weight|, the color the sign."""
    largest: dict[int, float] = {}
    for edge in edges:
        largest[edge.layer] = max(largest.get(edge.layer, 0.0), abs(edge.weight))
    lines = []
    for edge in sorted(edges, key=lambda e: abs(e.weight)):
        (x1, y1), (x2, y2) = places[edge.layer, edge.source], places[edge.layer + 1, edge.target]
        middle = round((x1 + x2) / 2, 1)
        path = f"M{x1:g} {y1:g}C{middle:g} {y1:g} {middle:g} {y2:g} {x2:g} {y2:g}"
        share = abs(edge.weight) / largest[edge.layer] if largest[edge.layer] else 0.0
        width = round(0.6 + 2.6 * share, 1)
        lines.append(SimpleNamespace(edge=edge, path=path, width=width, negative=edge.weight < 0))
    return lines


def _units(
    network: Any, edges: Sequence[Edge], places: Places, inclusion: Mapping[str, float | None]
) -> list[SimpleNamespace]:
    depth = len(network.layers) - 1
    paths, ends = _paths_and_ends(edges, depth)
    outputs = sum(layer == depth for layer, _ in places)
    incoming = Counter((edge.layer + 1, edge.target) for edge in edges)
    units = []
    for (layer, index), (x, y) in places.items():
        if layer == 0:
            kind, label = "input", _name(network.input_names, index, "input")
            count = paths[layer, index]
            many = "1 path" if count == 1 else f"{number(float(count), 4)} paths"
            sure = inclusion.get(label)
            note = f"{label}: {many} to {len(ends[layer, index])} of {outputs} outputs"
            note += "" if sure is None else f"; inclusion {percent(sure)}"
        else:
            kind, label, shown = "hidden", "", f"unit {index + 1} of layer {layer}"
            if layer == depth:
                kind, label = "output", _name(network.output_names, index, "output")
            count = incoming[layer, index]
            note = f"{label or shown}: {count} incoming connection{'' if count == 1 else 's'}"
        units.append(SimpleNamespace(layer=layer, index=index, x=x, y=y, kind=kind, label=label, note=note))
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
