"""Read and check ``record.json`` of a run folder, which ``sparsebnn fit`` writes.

Parts may be missing; a part of the wrong shape raises an error that names it. Numbers that are missing or
not finite become None.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from sparsebnn.checks import check_choice, invalid
from sparsebnn.io.formatting import plain as in_words

__all__ = ["Edge", "Figure", "Record", "parse", "read"]

FORMAT_VERSION = 1
_OWNER = "record.json"
# HTML cannot hold control characters and unpaired surrogates: show the replacement character.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
Record = SimpleNamespace  # the attributes are the keys of _SCHEMA, and those that parse() adds


class Figure(NamedTuple):
    """A number with its 95% interval."""

    value: float | None = None
    low: float | None = None
    high: float | None = None


class Edge(NamedTuple):
    """A kept weight from unit ``source`` of layer ``layer`` to unit ``target`` of the next layer."""

    layer: int
    source: int
    target: int
    inclusion: float
    weight: float


def _text(value: Any) -> str:
    """Any JSON value as one line that HTML can hold."""
    if isinstance(value, str):
        plain = value
    elif value is None:
        plain = "–"
    else:
        plain = in_words(value, 6) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
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


def _figure(value: Any) -> Figure:
    parts = value if isinstance(value, dict) else {}
    return Figure(*(_number(parts.get(key)) for key in Figure._fields))


def _numbers(value: Any) -> list[float | None]:
    return [_number(each) for each in value] if isinstance(value, list) else [_number(value)]


def _same(value: Any) -> Any:
    """A number if it is one, otherwise text."""
    number = _number(value)
    return _text(value) if number is None else number


_ROWS = [
    {
        "row": _text, "truth": _text, "prediction": _text, "probability": _number, "std": _number,
        "entropy": _number, "values": {...: _text},
    }
]  # fmt: skip
_METRICS = {...: _figure}
# A function reads a value, a list has any number of entries, the key ``...`` stands for any keys.
_SCHEMA = {
    "task": _text, "target": _text, "classes": [_text], "notes": [_text], "command": _text, "commit": _text,
    "seconds": _number, "density": _number, "replicates": _count,
    "data": {
        "name": _text, "rows": _count, "train_rows": _count, "test_rows": _count,
        "columns": [{"name": _text, "kind": _text, "note": _text}],
    },
    "metrics": {"average": _METRICS, "median": _METRICS},
    "baselines": [{"name": _text, "metrics": _METRICS, "difference": _METRICS}],
    "posterior": lambda value: value is True,
    "inputs": [
        {
            "name": _text, "inclusion": _number, "selected": lambda value: value is True, "direction": _text,
            "effect": _number, "effect_low": _number, "effect_high": _number, "stability": _number,
            "gain": _number,
        }
    ],
    "credible_sets": [
        {"names": [_text], "inclusion": [_number], "coverage": _number, "purity": _number}
    ],
    "effects": [
        {
            "name": _text, "kind": _text, "outputs": [_text], "grid": [_same], "mean": [_numbers],
            "low": [_numbers], "high": [_numbers],
        }
    ],
    "confusion": [_numbers],
    "ranking": [
        {
            "name": _text, "share": _number, "auc": _number, "precision": _number, "roc": [_numbers],
            "recall": [_numbers],
        }
    ],
    "residuals": [_numbers],
    "calibration": {...: [_number]},
    "certain": _ROWS,
    "uncertain": _ROWS,
    "network": {
        "layers": [_count], "input_names": [_text], "input_columns": [_text], "output_names": [_text],
        "edges": [_numbers],
        "of": _count,
    },
    "curves": [{...: _numbers}],
    "survival": {
        "groups": [
            {
                "name": _text, "rows": _count, "events": _count, "times": [_number], "observed": [_number],
                "low": [_number], "high": [_number], "predicted": [_number],
            }
        ]
    },
    "settings": {...: _text},
    "versions": {...: _text},
}  # fmt: skip


def _read(schema: Any, value: Any, name: str) -> Any:
    if not isinstance(schema, dict | list):
        return schema(value)
    if value is not None and not isinstance(value, type(schema)):
        expected = "a list" if isinstance(schema, list) else "an object"
        raise invalid(name, _OWNER, expected, type(value).__name__)
    if isinstance(schema, list):
        return [_read(schema[0], each, name) for each in value or ()]
    value = value or {}
    if ... in schema:
        return {_text(key): _read(schema[...], each, key) for key, each in value.items()}
    return SimpleNamespace(**{key: _read(part, value.get(key), key) for key, part in schema.items()})


def read(folder: str | Path) -> Record:
    """The record of a run folder."""
    path = Path(folder) / _OWNER
    if not path.is_file():
        advice = "Make one with: sparsebnn fit data.csv --target COLUMN --out RUN"
        raise invalid("folder", "report", f"a run folder with a '{_OWNER}'", repr(str(folder)), advice)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise invalid("content", str(path), "JSON", f"({error})", "Fit again.") from error
    return parse(content)


def parse(content: Mapping[str, Any]) -> Record:
    """Check the content of ``record.json``.

    >>> parse({"format_version": 1, "task": "regression", "target": "price"}).target
    'price'
    """
    if not isinstance(content, dict):
        raise invalid("content", _OWNER, "an object", type(content).__name__)
    version = content.get("format_version")
    if version != FORMAT_VERSION:
        advice = "Make the report with the release that fitted the model."
        raise invalid("format_version", _OWNER, str(FORMAT_VERSION), repr(version), advice)
    check_choice(content.get("task", ""), ("classification", "regression", "survival"), "task", _OWNER)
    record: Record = _read(_SCHEMA, content, "content")
    ours = {"Model, averaged": record.metrics.average, "Model, sparse": record.metrics.median}
    record.models = [SimpleNamespace(name=name, metrics=found) for name, found in ours.items() if found]
    for group in record.survival.groups:
        curves = [group.times, group.observed, group.low, group.high, group.predicted]
        if len({len(each) for each in curves}) > 1 or any(None in each for each in curves):
            raise invalid("survival", _OWNER, "numbers for each time", f"others in {group.name!r}")
    for curve in record.effects:
        lines = [line for part in (curve.mean, curve.low, curve.high) for line in part]
        short = {len(line) for line in lines} != {len(curve.grid)} or len(curve.grid) < 2
        if short or any(None in line for line in lines):
            raise invalid("effects", _OWNER, "two numbers or more for each line", f"others in {curve.name!r}")
    for each in record.credible_sets:
        if not each.names or len(each.names) != len(each.inclusion) or None in each.inclusion:
            raise invalid("credible_sets", _OWNER, "a number for each name", each.names)
    record.points = _points(record)
    record.network = _network(record.network)
    record.facts = _facts(record)
    return record


def _points(record: Record) -> list[tuple[float, float, float]]:
    """Calibration as (stated, observed, rows): bins of confidence, or sizes of intervals on all test rows."""
    keys = ("confidence", "accuracy") if record.task == "classification" else ("level", "coverage")
    stated, observed = (record.calibration.get(key, []) for key in keys)
    rows = record.calibration.get("rows") or [record.data.test_rows] * len(stated)
    return [(s, o, n) for s, o, n in zip(stated, observed, rows) if s is not None and o is not None and n]


def _network(found: SimpleNamespace) -> SimpleNamespace | None:
    """The network, None without layers; edges outside the layers are errors."""
    layers = found.layers = [size or 0 for size in found.layers]
    edges = []
    for numbers in found.edges:
        if len(numbers) != 5 or None in numbers[:3]:
            raise invalid("edges", _OWNER, "[layer, from, to, inclusion, weight] each", numbers)
        layer, source, target = map(int, numbers[:3])
        inside = 0 <= layer < len(layers) - 1 and 0 <= source < layers[layer]
        if not (inside and 0 <= target < layers[layer + 1]):
            raise invalid("edges", _OWNER, f"inside the layers {layers}", numbers)
        edges.append(Edge(layer, source, target, numbers[3] or 0.0, numbers[4] or 0.0))
    found.edges = edges
    return found if len(layers) > 1 else None


def _facts(record: Record) -> dict[str, str]:
    """How the run was made."""
    minutes = (record.seconds or 0.0) / 60
    time = f"{60 * minutes:.1f} seconds" if minutes < 2 else f"{minutes:.1f} minutes"
    facts = {"command": record.command, "commit": record.commit, **record.versions}
    facts["time to fit"] = "–" if record.seconds is None else time
    return {key: value for key, value in facts.items() if value not in ("", "–")}
