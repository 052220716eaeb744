"""The sparse network as a drawing: units in columns, kept weights as curves, and paths counted.

Only units on a path from an input to an output are drawn. The number of paths from an input is
paths(u) = Σ over kept weights u→v of paths(v), with paths(output) = 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparsebnn.app.report.record import Edge, Network, Record
from sparsebnn.app.report.words import number, percent

__all__ = ["Drawing", "Line", "Unit", "active", "draw"]

WIDTH, _LEFT, _RIGHT, _TOP = 960, 210, 170, 28
MOST_INPUTS = 60
_GAP, _SHORTEST = 20, 240


@dataclass(frozen=True)
class Unit:
    """A dot: its place, its name at the ends of the network, and what is said of it."""

    layer: int
    index: int
    x: float
    y: float
    kind: str
    label: str
    note: str


@dataclass(frozen=True)
class Line:
    """A kept weight: a curve whose width goes with |weight| and whose color with its sign."""

    layer: int
    source: int
    target: int
    path: str
    width: float
    negative: bool


@dataclass(frozen=True)
class Drawing:
    """What the template draws."""

    width: int
    height: int
    units: Sequence[Unit]
    lines: Sequence[Line]
    headings: Sequence[tuple[float, str]]
    inputs_shown: int
    inputs_active: int
    inputs: int
    edges_shown: int
    edges: int


def active(edges: Iterable[Edge], depth: int) -> list[Edge]:
    """The edges on a path from layer 0 to layer ``depth``: reached from the left and leading to the right.

    >>> edges = [Edge(0, 0, 0, 0.9, 1.0), Edge(0, 1, 1, 0.9, 1.0), Edge(1, 0, 0, 0.9, 1.0)]
    >>> [(e.layer, e.source, e.target) for e in active(edges, 2)]
    [(0, 0, 0), (1, 0, 0)]
    """
    ordered = sorted(edges, key=lambda edge: edge.layer)
    reached: set[tuple[int, int]] = set()
    forward = []
    for edge in ordered:
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


def draw(record: Record) -> Drawing | None:
    """Lay out the active part; of more than 60 inputs the 60 with the largest kept weights are drawn."""
    network = record.network
    if network is None:
        return None
    depth = len(network.layers) - 1
    edges = active(network.edges, depth)
    if not edges:
        return None
    strength: dict[int, float] = {}
    for edge in edges:
        if edge.layer == 0:
            strength[edge.source] = strength.get(edge.source, 0.0) + abs(edge.weight)
    strongest = sorted(strength, key=lambda index: (-strength[index], index))[:MOST_INPUTS]
    shown = active([e for e in edges if e.layer or e.source in set(strongest)], depth)
    columns = _columns(shown, depth)
    height = max(_SHORTEST, _TOP + 16 + _GAP * max(len(columns[0]), len(columns[-1])))
    places = _places(columns, height)
    return Drawing(
        WIDTH,
        height,
        _units(network, shown, places, _inclusions(record)),
        _lines(shown, places),
        [(_x(layer, depth), _heading(layer, depth)) for layer in range(depth + 1)],
        inputs_shown=len(columns[0]),
        inputs_active=len(strength),
        inputs=network.layers[0],
        edges_shown=len(shown),
        edges=max(network.of, len(network.edges)),
    )


def _inclusions(record: Record) -> dict[str, float]:
    return {each.name: each.inclusion for each in record.inputs if each.inclusion is not None}


def _columns(edges: Sequence[Edge], depth: int) -> list[list[int]]:
    """The units of each layer; hidden ones ordered by where their inputs lie, which untangles the lines."""
    columns = [sorted({edge.source for edge in edges if edge.layer == 0})]
    for layer in range(1, depth + 1):
        rank = {unit: place / len(columns[-1]) for place, unit in enumerate(columns[-1])}
        pull: dict[int, list[float]] = {}
        for edge in edges:
            if edge.layer == layer - 1:
                pull.setdefault(edge.target, []).append(rank[edge.source])
        # The outputs keep the order of the classes.
        mean = {unit: sum(places) / len(places) if layer < depth else 0.0 for unit, places in pull.items()}
        columns.append([unit for _, unit in sorted((place, unit) for unit, place in mean.items())])
    return columns


def _x(layer: int, depth: int) -> float:
    return round(_LEFT + layer * (WIDTH - _LEFT - _RIGHT) / depth, 1)


def _heading(layer: int, depth: int) -> str:
    if layer == 0:
        return "inputs"
    return "output" if layer == depth else f"layer {layer}"


def _places(columns: Sequence[Sequence[int]], height: int) -> dict[tuple[int, int], tuple[float, float]]:
    places = {}
    for layer, units in enumerate(columns):
        # A short column keeps its units together in the middle.
        gap = min((height - _TOP - 16) / len(units), 40.0 + height / 16)
        first = _TOP + (height - _TOP - gap * (len(units) - 1)) / 2
        for place, unit in enumerate(units):
            places[layer, unit] = (_x(layer, len(columns) - 1), round(first + place * gap, 1))
    return places


def _lines(edges: Sequence[Edge], places: dict[tuple[int, int], tuple[float, float]]) -> list[Line]:
    largest: dict[int, float] = {}
    for edge in edges:
        largest[edge.layer] = max(largest.get(edge.layer, 0.0), abs(edge.weight))
    lines = []
    for edge in sorted(edges, key=lambda e: abs(e.weight)):
        (x1, y1), (x2, y2) = places[edge.layer, edge.source], places[edge.layer + 1, edge.target]
        middle = round((x1 + x2) / 2, 1)
        path = f"M{x1:g} {y1:g}C{middle:g} {y1:g} {middle:g} {y2:g} {x2:g} {y2:g}"
        share = abs(edge.weight) / largest[edge.layer] if largest[edge.layer] else 0.0
        lines.append(
            Line(edge.layer, edge.source, edge.target, path, round(0.6 + 2.6 * share, 1), edge.weight < 0)
        )
    return lines


def _units(
    network: Network,
    edges: Sequence[Edge],
    places: dict[tuple[int, int], tuple[float, float]],
    inclusion: dict[str, float],
) -> list[Unit]:
    depth = len(network.layers) - 1
    paths, ends = _paths(edges, depth), _ends(edges, depth)
    outputs = sum(layer == depth for layer, _ in places)
    incoming: dict[tuple[int, int], int] = {}
    for edge in edges:
        key = (edge.layer + 1, edge.target)
        incoming[key] = incoming.get(key, 0) + 1
    units = []
    for (layer, index), (x, y) in places.items():
        if layer == 0:
            name = _named(network.input_names, index, "input")
            sure = f"; inclusion {percent(inclusion[name])}" if name in inclusion else ""
            count = paths[layer, index]
            many = "1 path" if count == 1 else f"{number(float(count), 4)} paths"
            note = f"{name}: {many} to {len(ends[layer, index])} of {outputs} outputs{sure}"
            units.append(Unit(layer, index, x, y, "input", name, note))
        elif layer == depth:
            name = _named(network.output_names, index, "output")
            units.append(
                Unit(layer, index, x, y, "output", name, f"{name}: {_weights(incoming[layer, index])}")
            )
        else:
            name = f"unit {index + 1} of layer {layer}"
            units.append(
                Unit(layer, index, x, y, "hidden", "", f"{name}: {_weights(incoming[layer, index])}")
            )
    return units


def _weights(count: int) -> str:
    return "1 connection leads in" if count == 1 else f"{count} connections lead in"


def _named(names: Sequence[str], index: int, otherwise: str) -> str:
    return names[index] if index < len(names) else f"{otherwise} {index + 1}"


def _paths(edges: Sequence[Edge], depth: int) -> dict[tuple[int, int], int]:
    paths: dict[tuple[int, int], int] = {}
    for edge in sorted(edges, key=lambda e: -e.layer):
        onward = 1 if edge.layer == depth - 1 else paths[edge.layer + 1, edge.target]
        paths[edge.layer, edge.source] = paths.get((edge.layer, edge.source), 0) + onward
    return paths


def _ends(edges: Sequence[Edge], depth: int) -> dict[tuple[int, int], frozenset[int]]:
    """Which outputs each unit reaches."""
    ends: dict[tuple[int, int], frozenset[int]] = {}
    for edge in sorted(edges, key=lambda e: -e.layer):
        onward = frozenset([edge.target]) if edge.layer == depth - 1 else ends[edge.layer + 1, edge.target]
        ends[edge.layer, edge.source] = ends.get((edge.layer, edge.source), frozenset()) | onward
    return ends
