"""Numbers to positions, which the templates draw as inline SVG. No markup here.

Every plot has a small fixed size, so its text stays readable on a phone. The left margin grows with the
labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from sparsebnn.app.report.record import Figure
from sparsebnn.app.report.words import number

__all__ = ["Dot", "Plot", "Scale", "plot", "span", "wilson"]

WIDTH, HEIGHT = 340, 246
_RIGHT, _TOP, _BOTTOM = WIDTH - 12, 12, HEIGHT - 40
_LETTER = 7.0  # the width of a letter at 12 px, at most
Points = Sequence[tuple[float, float]]
Show = Callable[[float], str]


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


class Dot(NamedTuple):
    """A point with an optional vertical interval."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    radius: float = 4.0


@dataclass(frozen=True)
class Plot:
    """A plot as positions. ``x_ticks`` are ``(place, label, anchor)``, ``lines`` are ``(css class,
    points)``.
    """

    title: str
    remark: str
    description: str
    x_label: str
    frame: tuple[float, float, float, float]
    x_ticks: Sequence[tuple[float, str, str]]
    y_ticks: Sequence[tuple[float, str]]
    bands: Sequence[tuple[str, str]] = ()
    lines: Sequence[tuple[str, str]] = ()
    dots: Sequence[Dot] = ()
    bars: Sequence[tuple[float, float, float, float]] = ()
    size: ClassVar[tuple[int, int]] = (WIDTH, HEIGHT)
    macro: ClassVar[str] = "plot_part"


def plot(
    title: str,
    x: tuple[float, float],
    y: tuple[float, float],
    *,
    x_label: str,
    remark: str = "",
    description: str = "",
    lines: Sequence[tuple[str, Points]] = (),
    bands: Sequence[tuple[str, Points, Points]] = (),
    dots: Sequence[Dot] = (),
    bars: Sequence[tuple[float, float, float]] = (),
    log: bool = False,
    show_x: Show = number,
    show_y: Show = number,
    x_values: Sequence[float] | None = None,
    y_values: Sequence[float] | None = None,
) -> Plot:
    """A plot of data over the ranges ``x`` and ``y``.

    ``lines`` are ``(css class, points)`` with the classes ``bold``, ``thin`` and ``ideal``; ``bands`` are
    pairs of a lower and an upper line; ``bars`` are ``(from, to, height)``, drawn from 0; ``log`` concerns
    y.
    """
    y_labels = [(v, show_y(v)) for v in (_round_values(*y, log) if y_values is None else y_values)]
    left = max(40.0, 14.0 + _LETTER * max((len(text) for _, text in y_labels), default=0))
    across, up = Scale(*x, left, _RIGHT), Scale(*y, _BOTTOM, _TOP, log)
    found = []
    for css, lower, upper in bands:
        found.append((css, _joined([(across(a), up(b)) for a, b in (*lower, *list(upper)[::-1])])))
    placed = [
        d._replace(
            x=across(d.x),
            y=up(d.y),
            low=None if d.low is None else up(d.low),
            high=None if d.high is None else up(d.high),
        )
        for d in dots
    ]
    base = up(max(0.0, y[0])) if not log else _BOTTOM
    return Plot(
        title,
        remark,
        description,
        x_label,
        (left, _RIGHT, _TOP, _BOTTOM),
        _x_ticks(across, x_values, show_x),
        [(up(v), text) for v, text in y_labels],
        found,
        [(css, _joined([(across(a), up(b)) for a, b in points])) for css, points in lines],
        placed,
        [
            (
                across(a),
                up(h),
                round(max(0.5, across(b) - across(a) - 1.0), 1),
                round(max(0.0, base - up(h)), 1),
            )
            for a, b, h in bars
        ],
    )


def _x_ticks(across: Scale, values: Sequence[float] | None, show: Show) -> list[tuple[float, str, str]]:
    """As many round values as have room, anchored so that no label leaves the picture."""
    count = 4
    while True:
        chosen = _round_values(across.low, across.high, False, count) if values is None else list(values)
        labels = [(across(v), show(v)) for v in chosen]
        widest = _LETTER * max((len(text) for _, text in labels), default=0)
        if (
            count == 1
            or values is not None
            or widest + 10 <= (across.end - across.start) / max(1, len(labels) - 1)
        ):
            break
        count -= 1
    ticks = []
    for place, text in labels:
        half = _LETTER * len(text) / 2
        anchor = "end" if place + half > WIDTH else "start" if place < half else "middle"
        ticks.append((place, text, anchor))
    return ticks


def _joined(points: Points) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in points)


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
