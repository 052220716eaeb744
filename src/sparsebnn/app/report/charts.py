"""Numbers to positions, which the templates draw as inline SVG. No markup here.

Every chart has a small fixed size, so its text stays readable on a phone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from types import SimpleNamespace
from typing import Any, NamedTuple

from sparsebnn.app.report.record import Figure, Record
from sparsebnn.app.report.words import number, percent

__all__ = ["FRAME", "HEIGHT", "WIDTH", "Scale", "calibration", "curves", "span", "wilson"]

WIDTH, HEIGHT = 340, 246
FRAME = LEFT, RIGHT, TOP, BOTTOM = 52, WIDTH - 12, 12, HEIGHT - 40
Ticks = list[tuple[float, str]]
_CURVES = {
    "loss": "Loss: what training minimizes",
    "nll": "Misfit to the training rows (NLL, nats)",
    "kl": "Cost of complexity (KL, nats)",
    "density": "Share of connections kept",
}


class Scale(NamedTuple):
    """A value's position: start + (v − low)/(high − low) · (end − start), of logarithms if ``log``."""

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

    def ticks(self, show: Any = number) -> Ticks:
        """Positions and labels of round values."""
        return [(self(value), show(value)) for value in _round_values(self.low, self.high, self.log)]


def _round_values(low: float, high: float, log: bool, count: int = 4) -> list[float]:
    """
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


def span(figure: Figure, others: Sequence[Figure]) -> Figure | None:
    """A figure and its interval as positions in a box 120 wide that holds all figures of the column."""
    ends = [end for each in others for end in each if end is not None]
    if figure.value is None:
        return None
    scale = Scale(min(ends), max(ends), 6, 114)
    return Figure(*(scale(figure.value if end is None else end) for end in figure))


def wilson(share: float, rows: float) -> tuple[float, float]:
    """Wilson's 95% interval of a share: (p + z²/2n ± z√(p(1−p)/n + z²/4n²)) / (1 + z²/n), z = 1.96.

    >>> [round(end, 3) for end in wilson(0.5, 10)]
    [0.237, 0.763]
    """
    z = 1.959963984540054
    center = share + z * z / (2 * rows)
    half = z * math.sqrt(share * (1 - share) / rows + (z / (2 * rows)) ** 2)
    scale = 1 + z * z / rows
    return max(0.0, (center - half) / scale), min(1.0, (center + half) / scale)


def calibration(record: Record) -> SimpleNamespace | None:
    """Points (``bins``) with their Wilson intervals; the area of a bin of confidence shows its rows."""
    if not record.points:
        return None
    classes = record.task == "classification"
    across, up = Scale(0, 1, LEFT, RIGHT), Scale(0, 1, BOTTOM, TOP)
    most = max(n for _, _, n in record.points)
    bins = []
    for stated, observed, n in record.points:
        share = min(max(observed, 0.0), 1.0)
        low, high = wilson(share, n)
        place = {"x": across(min(max(stated, 0.0), 1.0)), "y": up(share), "low": up(low), "high": up(high)}
        shown = {"stated": percent(stated), "observed": percent(observed), "rows": number(float(n))}
        radius = round(2.5 + 4.5 * math.sqrt(n / most), 1) if classes else 4.0
        bins.append(SimpleNamespace(**place, **shown, radius=radius))
    labels = ("confidence", "accuracy") if classes else ("size of the interval", "share of rows inside")
    ticks = [[(scale(v), percent(v)) for v in (0.0, 0.25, 0.5, 0.75, 1.0)] for scale in (across, up)]
    return SimpleNamespace(
        x_label=labels[0], y_label=labels[1], bins=bins, x_ticks=ticks[0], y_ticks=ticks[1]
    )


def curves(record: Record) -> list[SimpleNamespace]:
    """A panel per quantity: a thin line per replicate, a bold one for their median."""
    panels = []
    for key in _CURVES:
        found = [
            (point["epoch"][0], point[key]) for point in record.curves if key in point and "epoch" in point
        ]
        points = sorted((each for each in found if each[0] is not None), key=lambda each: each[0])
        finite = [(epoch, [v for v in values if v is not None]) for epoch, values in points]
        middle = [(epoch, median(values)) for epoch, values in finite if values]
        if len(middle) > 1:
            panels.append(_panel(key, points, middle, [v for _, values in finite for v in values]))
    return panels


def _panel(key: str, points: Any, middle: Sequence[tuple[float, float]], every: Any) -> SimpleNamespace:
    low, high = min(every), max(every)
    log, show = low > 0 and high / low > 30, number
    if key == "density":
        low, log, show = 0.0, False, percent  # type: ignore[assignment]
    across, up = Scale(middle[0][0], middle[-1][0], LEFT, RIGHT), Scale(low, high, BOTTOM, TOP, log)
    width = max(len(values) for _, values in points)
    lines = [
        _path([(across(e), up(v)) for e, vs in points if k < len(vs) and (v := vs[k]) is not None])
        for k in range(width if width > 1 else 0)
    ]
    return SimpleNamespace(
        title=_CURVES[key],
        lines=[line for line in lines if line],
        middle=_path([(across(e), up(v)) for e, v in middle]),
        x_ticks=across.ticks(),
        y_ticks=up.ticks(show),
        first=show(middle[0][1]),
        last=show(middle[-1][1]),
        epochs=number(middle[-1][0]),
        log=log,
    )


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in points)
