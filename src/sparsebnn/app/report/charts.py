"""Numbers to positions: what the templates draw as inline SVG. No markup here.

Every chart has a small fixed size, so that its text stays readable on a phone, where the page shows it
almost one to one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from sparsebnn.app.report.record import Figure, Model, Record
from sparsebnn.app.report.words import Metric, metric, number, percent

__all__ = ["Bin", "Calibration", "Panel", "Scale", "Span", "calibration", "curves", "span", "wilson"]

WIDTH, HEIGHT = 340, 246
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 12, 12, 40
_CURVES = {
    "loss": "Loss: what training makes small",
    "nll": "Misfit to the training rows (NLL, nats)",
    "kl": "Cost of complexity (KL, nats)",
    "density": "Share of connections kept",
}


@dataclass(frozen=True)
class Scale:
    """A value's place: start + (v − low)/(high − low) · (end − start), on logarithms if ``log``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """
        >>> Scale(0, 10, 0, 100)(5), Scale(1, 100, 0, 100, log=True)(10)
        (50.0, 50.0)
        """
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        value = math.log(value) if self.log else value
        share = (value - low) / (high - low) if high > low else 0.5
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> list[tuple[float, str]]:
        """Round values and their places."""
        return [(self(value), number(value)) for value in _round_values(self.low, self.high, self.log)]


def _round_values(low: float, high: float, log: bool, count: int = 4) -> list[float]:
    """Round numbers between two ends.

    >>> _round_values(0, 1, False)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    >>> _round_values(0.5, 2000, True)
    [1.0, 10.0, 100.0, 1000.0]
    """
    if high <= low:
        return [low]
    if log:
        powers = [10.0**k for k in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
        if len(powers) > 1:
            return powers[:: max(1, len(powers) // count)]
    rough = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(m * unit for m in (1, 2, 2.5, 5, 10) if m * unit >= rough * 0.8)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{k * step:.10g}") for k in range(first, last + 1)]


@dataclass(frozen=True)
class Span:
    """A dot on its interval, in a box 120 wide; ``None`` where there is nothing to draw."""

    dot: float
    low: float
    high: float


def span(figure: Figure | None, others: Sequence[Figure]) -> Span | None:
    """Where a figure lies among others, 4 units from either end of a box 120 wide."""
    ends = [v for each in others for v in (each.value, each.low, each.high) if v is not None]
    if figure is None or figure.value is None or not ends:
        return None
    scale = Scale(min(ends), max(ends), 6, 114)
    low = figure.value if figure.low is None else figure.low
    high = figure.value if figure.high is None else figure.high
    return Span(scale(figure.value), scale(low), scale(high))


def wilson(share: float, rows: float, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's 95% interval of a share: (p + z²/2n ± z√(p(1−p)/n + z²/4n²)) / (1 + z²/n).

    >>> [round(end, 3) for end in wilson(0.5, 10)]
    [0.237, 0.763]
    """
    centre = share + z * z / (2 * rows)
    half = z * math.sqrt(max(share * (1 - share), 0.0) / rows + z * z / (4 * rows * rows))
    scale = 1 + z * z / rows
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


@dataclass(frozen=True)
class Bin:
    """A point of the calibration chart with its interval, and its row in the table behind it."""

    x: float
    y: float
    low: float
    high: float
    radius: float
    stated: str
    observed: str
    rows: str


@dataclass(frozen=True)
class Calibration:
    """Stated against observed certainty; on the diagonal they are the same."""

    x_label: str
    y_label: str
    bins: Sequence[Bin]
    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    frame: tuple[float, float, float, float]


def calibration(record: Record) -> Calibration | None:
    """The points with their Wilson intervals; their area goes with the rows behind them."""
    classes = record.task == "classification"
    keys = ("confidence", "accuracy") if classes else ("level", "coverage")
    stated, observed = (record.calibration.get(key, ()) for key in keys)
    rows = record.calibration.get("rows") or [record.test_rows] * len(stated)
    points = [(s, o, n) for s, o, n in zip(stated, observed, rows) if s is not None and o is not None and n]
    if not points:
        return None
    left, right, top, bottom = _LEFT, WIDTH - _RIGHT, _TOP, HEIGHT - _BOTTOM
    across, up = Scale(0, 1, left, right), Scale(0, 1, bottom, top)
    most = max(n for _, _, n in points)
    bins = []
    for s, o, n in points:
        stated_share, share = min(max(s, 0.0), 1.0), min(max(o, 0.0), 1.0)
        low, high = wilson(share, n)
        radius = round(2.5 + 4.5 * math.sqrt(n / most), 1) if classes else 4.0
        place = (across(stated_share), up(share), up(low), up(high), radius)
        bins.append(Bin(*place, stated=percent(s), observed=percent(o), rows=number(float(n))))
    words = ("how sure the model said it was", "how often it was right")
    words = words if classes else ("size of the interval asked for", "share of rows inside it")
    ticks = [0.0, 0.25, 0.5, 0.75, 1.0]
    return Calibration(
        *words, bins, [(across(v), percent(v)) for v in ticks], [(up(v), percent(v)) for v in ticks],
        (left, right, top, bottom),
    )  # fmt: skip


@dataclass(frozen=True)
class Panel:
    """One quantity over the epochs: a thin line per replicate, a bold one for their median."""

    key: str
    title: str
    lines: Sequence[str]
    middle: str
    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    frame: tuple[float, float, float, float]
    first: str
    last: str
    epochs: str
    log: bool


def curves(record: Record) -> list[Panel]:
    """A panel for each known quantity, then for the others, as far as they have two finite points."""
    known = [key for key in _CURVES if key in record.curves]
    others = [key for key in record.curves if key not in _CURVES]
    panels = (_panel(key, record.curves[key]) for key in known + others)
    return [panel for panel in panels if panel is not None]


def _panel(key: str, points: Sequence[tuple[float, Sequence[float | None]]]) -> Panel | None:
    finite = [(epoch, [v for v in values if v is not None]) for epoch, values in points]
    middle = [(epoch, median(values)) for epoch, values in finite if values]
    if len(middle) < 2:
        return None
    every = [v for _, values in finite for v in values]
    low, high = min(every), max(every)
    log = low > 0 and high / low > 30
    if key == "density":
        low, log = 0.0, False
    left, right, top, bottom = _LEFT + 8, WIDTH - _RIGHT, _TOP, HEIGHT - _BOTTOM
    across = Scale(middle[0][0], middle[-1][0], left, right)
    up = Scale(low, high, bottom, top, log)
    width = max(len(values) for _, values in points)
    lines = [
        _path(
            [(across(e), up(v)) for e, values in points if k < len(values) and (v := values[k]) is not None]
        )
        for k in range(width if width > 1 else 0)
    ]
    show = percent if key == "density" else number
    return Panel(
        key=key,
        title=_CURVES.get(key, key),
        lines=[line for line in lines if line],
        middle=_path([(across(e), up(v)) for e, v in middle]),
        x_ticks=across.ticks(),
        y_ticks=[(place, percent(value) if key == "density" else number(value))
                 for value in _round_values(low, high, log) for place in (up(value),)],
        frame=(left, right, top, bottom),
        first=show(middle[0][1]),
        last=show(middle[-1][1]),
        epochs=number(middle[-1][0]),
        log=log,
    )  # fmt: skip


def _path(points: Sequence[tuple[float, float]]) -> str:
    """At most 400 points of a line: more than a chart of this width can show."""
    if len(points) > 400:
        step = len(points) / 400
        points = [points[int(k * step)] for k in range(400)] + [points[-1]]
    return " ".join(f"{x:g},{y:g}" for x, y in points)


def measures(models: Sequence[Model]) -> list[Metric]:
    """Every measure that any of the models has, in the order in which they come."""
    return [metric(key) for key in dict.fromkeys(key for model in models for key in model.metrics)]
