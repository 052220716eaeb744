"""A run folder's ``record.json`` as typed, checked parts; a number that is missing or not finite is None.

The record is written by ``sparsebnn fit``. Parts that a run does not have may be left out; a part of the
wrong shape is refused by name, before anything is drawn.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparsebnn.checks import check_choice, invalid

__all__ = ["Column", "Edge", "Figure", "Input", "Model", "Network", "Record", "Row", "read", "parse"]

FORMAT_VERSION = 1
_OWNER = "record.json"
# What HTML cannot hold (control characters, halves of surrogate pairs) is shown as the replacement sign.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True)
class Figure:
    """A measured number and its interval."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Column:
    """A column of the data and what became of it."""

    name: str
    kind: str
    note: str


@dataclass(frozen=True)
class Input:
    """An input: how surely it is used, which way it acts, and in how many replicates it was kept."""

    name: str
    inclusion: float | None
    selected: bool
    direction: str | None
    effect: Figure
    stability: float | None


@dataclass(frozen=True)
class Model:
    """A name and its measured figures."""

    name: str
    metrics: Mapping[str, Figure]


@dataclass(frozen=True)
class Row:
    """One held-out row and what was said of it."""

    row: str
    truth: str
    prediction: str
    probability: float | None
    std: float | None
    entropy: float | None
    values: Mapping[str, str]


@dataclass(frozen=True)
class Edge:
    """A kept weight: from unit ``source`` of layer ``layer`` to unit ``target`` of the next one."""

    layer: int
    source: int
    target: int
    inclusion: float
    weight: float


@dataclass(frozen=True)
class Network:
    """The median probability model: layer sizes, names at both ends, and the weights on active paths."""

    layers: Sequence[int]
    input_names: Sequence[str]
    output_names: Sequence[str]
    edges: Sequence[Edge]
    shown: int
    of: int


@dataclass(frozen=True)
class Record:
    """All that a report is made of."""

    task: str
    target: str
    classes: Sequence[str] = ()
    name: str = ""
    rows: int | None = None
    train_rows: int | None = None
    test_rows: int | None = None
    columns: Sequence[Column] = ()
    notes: Sequence[str] = ()
    models: Sequence[Model] = ()
    baselines: Sequence[Model] = ()
    density: float | None = None
    replicates: int | None = None
    inputs: Sequence[Input] = ()
    calibration: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    certain: Sequence[Row] = ()
    uncertain: Sequence[Row] = ()
    network: Network | None = None
    curves: Mapping[str, Sequence[tuple[float, Sequence[float | None]]]] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)


def read(folder: str | Path) -> Record:
    """The record in a run folder; what is missing, not JSON, or of another version is refused."""
    path = Path(folder) / _OWNER
    if not path.is_file():
        advice = "Make one with: sparsebnn fit data.csv --target COLUMN --out RUN"
        raise invalid("folder", "report", f"a run folder with a '{_OWNER}'", repr(str(folder)), advice)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise invalid("content", str(path), "JSON", f"({error})", "Fit again.") from error
    return parse(content)


def parse(content: Any) -> Record:
    """Check a record's parts and give them their types.

    >>> parse({"format_version": 1, "task": "regression", "target": "price"}).target
    'price'
    """
    if not isinstance(content, dict):
        raise invalid("content", _OWNER, "an object", type(content).__name__)
    version = content.get("format_version")
    if version != FORMAT_VERSION:
        advice = "Make the report with the release that fitted the model."
        raise invalid("format_version", _OWNER, str(FORMAT_VERSION), repr(version), advice)
    task = check_choice(content.get("task", ""), ("classification", "regression"), "task", _OWNER)
    data, metrics = _object(content, "data"), _object(content, "metrics")
    names = {"average": "Model, averaged", "median": "Model, sparse"}
    return Record(
        task=task,
        target=_text(content.get("target", "target")),
        classes=[_text(each) for each in _array(content, "classes")],
        name=_text(data.get("name") or "data"),
        rows=_count(data.get("rows")),
        train_rows=_count(data.get("train_rows")),
        test_rows=_count(data.get("test_rows")),
        columns=[
            Column(_text(each.get("name")), _text(each.get("kind")), _text(each.get("note") or ""))
            for each in _objects(data, "columns")
        ],
        notes=[_text(each) for each in _array(content, "notes")],
        models=[_model(names[key], metrics[key]) for key in names if metrics.get(key)],
        baselines=[
            _model(_text(each.get("name")), each.get("metrics") or {})
            for each in _objects(content, "baselines")
        ],
        density=_number(content.get("density")),
        replicates=_count(content.get("replicates")),
        inputs=[_input(each) for each in _objects(content, "inputs")],
        calibration={
            _text(key): [_number(each) for each in _array(_object(content, "calibration"), key)]
            for key in _object(content, "calibration")
        },
        certain=[_row(each) for each in _objects(content, "certain")],
        uncertain=[_row(each) for each in _objects(content, "uncertain")],
        network=_network(_object(content, "network")),
        curves=_curves(_objects(content, "curves")),
        facts=_facts(content),
        settings={_text(key): _text(value) for key, value in _object(content, "settings").items()},
    )


def _text(value: Any) -> str:
    """Any JSON value as one line that HTML can hold."""
    if isinstance(value, str):
        plain = value
    elif value is None:
        plain = "–"
    elif isinstance(value, float):
        plain = f"{value:.6g}"
    else:
        plain = json.dumps(value, ensure_ascii=False)
    return _UNPRINTABLE.sub("\ufffd", plain)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _count(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _object(parent: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = parent.get(key)
    if value is not None and not isinstance(value, dict):
        raise invalid(key, _OWNER, "an object", type(value).__name__)
    return value or {}


def _array(parent: Mapping[str, Any], key: str) -> list[Any]:
    value = parent.get(key)
    if value is not None and not isinstance(value, list):
        raise invalid(key, _OWNER, "a list", type(value).__name__)
    return value or []


def _objects(parent: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    values = _array(parent, key)
    for value in values:
        if not isinstance(value, dict):
            raise invalid(key, _OWNER, "a list of objects", f"a list with {type(value).__name__}")
    return values


def _figure(value: Any) -> Figure:
    if isinstance(value, dict):
        return Figure(*(_number(value.get(key)) for key in ("value", "low", "high")))
    return Figure(_number(value))


def _model(name: str, metrics: Any) -> Model:
    if not isinstance(metrics, dict):
        raise invalid("metrics", _OWNER, "an object", type(metrics).__name__)
    return Model(name, {_text(key): _figure(value) for key, value in metrics.items()})


def _input(raw: Mapping[str, Any]) -> Input:
    effect = Figure(*(_number(raw.get(key)) for key in ("effect", "effect_low", "effect_high")))
    direction = raw.get("direction")
    return Input(
        name=_text(raw.get("name")),
        inclusion=_number(raw.get("inclusion")),
        selected=raw.get("selected") is True,
        direction=direction if direction in ("+", "-", "mixed") else None,
        effect=effect,
        stability=_number(raw.get("stability")),
    )


def _row(raw: Mapping[str, Any]) -> Row:
    return Row(
        row=_text(raw.get("row")),
        truth=_text(raw.get("truth")),
        prediction=_text(raw.get("prediction")),
        probability=_number(raw.get("probability")),
        std=_number(raw.get("std")),
        entropy=_number(raw.get("entropy")),
        values={_text(key): _text(value) for key, value in _object(raw, "values").items()},
    )


def _network(raw: Mapping[str, Any]) -> Network | None:
    """None when there is nothing to draw; an edge outside the layers is refused."""
    if not raw:
        return None
    layers = [_count(each) or 0 for each in _array(raw, "layers")]
    edges = []
    for each in _array(raw, "edges"):
        numbers = [_number(entry) for entry in each] if isinstance(each, list) else []
        if len(numbers) != 5 or None in numbers[:3]:
            raise invalid("edges", _OWNER, "[layer, from, to, inclusion, weight] each", json.dumps(each))
        layer, source, target = (int(number or 0) for number in numbers[:3])
        edge = Edge(layer, source, target, numbers[3] or 0.0, numbers[4] or 0.0)
        inside = 0 <= edge.layer < len(layers) - 1 and 0 <= edge.source < layers[edge.layer]
        if not (inside and 0 <= edge.target < layers[edge.layer + 1]):
            raise invalid("edges", _OWNER, f"inside the layers {layers}", json.dumps(each))
        edges.append(edge)
    if len(layers) < 2:
        return None
    return Network(
        layers,
        [_text(each) for each in _array(raw, "input_names")],
        [_text(each) for each in _array(raw, "output_names")],
        edges,
        _count(raw.get("shown")) or len(edges),
        _count(raw.get("of")) or len(edges),
    )


def _curves(raw: list[dict[str, Any]]) -> dict[str, list[tuple[float, list[float | None]]]]:
    """Per quantity: (epoch, one value per replicate) in the order of the epochs."""
    curves: dict[str, list[tuple[float, list[float | None]]]] = {}
    for point in raw:
        epoch = _number(point.get("epoch"))
        if epoch is None:
            continue
        for key, value in point.items():
            values = value if isinstance(value, list) else [value]
            if key != "epoch" and value is not None:
                curves.setdefault(_text(key), []).append((epoch, [_number(each) for each in values]))
    return {key: sorted(points, key=lambda point: point[0]) for key, points in curves.items()}


def _facts(content: Mapping[str, Any]) -> dict[str, str]:
    """How the run was made, as lines of text."""
    facts = {}
    seconds = _number(content.get("seconds"))
    if content.get("command"):
        facts["command"] = _text(content["command"])
    if seconds is not None:
        facts["time to fit"] = f"{seconds:.1f} seconds" if seconds < 120 else f"{seconds / 60:.1f} minutes"
    if content.get("commit"):
        facts["commit"] = _text(content["commit"])
    facts.update({_text(key): _text(value) for key, value in _object(content, "versions").items()})
    return facts
