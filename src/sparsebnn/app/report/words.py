"""The report's text: numbers as shown, and three sentences on accuracy, inputs and calibration.

Two models are called different only if the 95% interval of their difference on the same rows leaves out 0.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sparsebnn.app.report.record import Figure, Record
from sparsebnn.io.formatting import decimals, plain

__all__ = [
    "column_decimals",
    "fitted",
    "fixed",
    "headline",
    "interval",
    "measured",
    "metric",
    "number",
    "percent",
    "ranked",
    "sentences",
    "short",
    "signed",
    "signed_interval",
    "thousandths",
    "verdict",
]

DIRECTIONS = {"+": ("↗", "raises"), "-": ("↘", "lowers"), "mixed": ("↕", "both ways")}


class Metric(NamedTuple):
    """A measure's name, its explanation, and how to read it."""

    key: str
    label: str
    means: str = ""
    higher_is_better: bool = True
    as_percent: bool = False


_METRICS = (
    Metric("accuracy", "Accuracy", "share of rows predicted correctly", True, True),
    Metric("concordance", "Concordance", "share of pairs whose order is predicted correctly", True, True),
    Metric("r2", "R²", "share of the variance explained", True),
    Metric("rmse", "RMSE", "typical size of an error, in units of the target", False),
    Metric("nll", "Log-loss", "penalty for confident wrong predictions", False),
    Metric("brier", "Brier score", "squared error of the probabilities", False),
    Metric("ece", "Calibration error", "mean gap between confidence and accuracy", False),
)


def metric(key: str) -> Metric:
    """A measure by its key; an unknown one is shown under its key.

    >>> metric("nll").label, metric("pinball").label
    ('Log-loss', 'pinball')
    """
    return next((each for each in _METRICS if each.key == key), Metric(key, key))


def number(value: float | None, digits: int = 3) -> str:
    """Three significant digits, an en dash for None, a true minus sign, never an exponent.

    >>> number(0.12345), number(-2.0), number(None), number(123456.0), number(-2.19e-06)
    ('0.123', '−2', '–', '123,456', '−0.00000219')
    """
    return "–" if value is None else plain(value, digits).replace("-", "−")


def measured(value: float | None) -> str:
    """Like :func:`number`, with trailing zeros and at most three decimals.

    >>> measured(0.5), measured(54.2), measured(5321.0), measured(0.0123)
    ('0.500', '54.2', '5,321', '0.012')
    """
    if value is None or abs(value) >= 1000 or 0 < abs(value) < 0.001:
        return number(value)
    return f"{value:.{min(3, decimals([value]))}f}".replace("-", "−")


def column_decimals(values: Sequence[float | None]) -> int:
    """Decimals for a column: three digits of the largest value, up to three decimals if smaller ones need
    them.

    >>> column_decimals([1.05, 0.012]), column_decimals([54.2]), column_decimals([2e-6]), column_decimals([])
    (3, 1, 8, 3)
    """
    sizes = [abs(v) for v in values if v]
    if not sizes:
        return 3
    most = decimals([max(sizes)])
    return max(most, min(3, decimals([min(sizes)], 2)))


def fixed(value: float | None, places: int) -> str:
    """A number with this many decimals.

    >>> fixed(1.05, 3), fixed(-2e-9, 3), fixed(123456.0, 0), fixed(None, 2)
    ('1.050', '0.000', '123,456', '–')
    """
    if value is None:
        return "–"
    if places > 9 or abs(value) >= 1e15:
        return number(value)
    return f"{round(value, places) + 0.0:,.{places}f}".replace("-", "−")


def thousandths(value: float) -> str:
    """A number times 1000, with as many decimals as help.

    >>> thousandths(0.1234), thousandths(0.00021), thousandths(-2.19e-06), thousandths(1.5)
    ('123', '0.2', '0.0', '1,500')
    """
    times = 1000.0 * value
    text = f"{times:,.0f}" if abs(times) >= 10 else f"{times:.1f}"
    return text.replace("-0.0", "0.0").replace("-", "−")


def percent(value: float | None, fine: bool = False) -> str:
    """Percent, with one decimal near 0 and 100 or if ``fine``; values below 1 are never shown as 100%.

    >>> percent(0.5), percent(0.0834), percent(0.9996), percent(1.0), percent(0.861, fine=True)
    ('50%', '8.3%', '>99.9%', '100%', '86.1%')
    """
    if value is None:
        return "–"
    hundred = 100 * value
    if 99.9 < hundred < 100:
        return ">99.9%"
    if 0 < hundred < 0.1:
        return "<0.1%"
    if fine:
        return f"{hundred:.1f}%".replace("-", "−")
    text = f"{hundred:.1f}" if abs(hundred) < 10 or 99 < hundred < 100 else f"{hundred:.0f}"
    return text.removesuffix(".0").replace("-", "−") + "%"


def short(text: str, most: int) -> str:
    """
    >>> short("a long name", 7), short("short", 7)
    ('a long…', 'short')
    """
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def fitted(text: str, pixels: float, size: float = 13.0) -> str:
    """Text cut so that it fits into a width in a sans-serif font, by a cautious estimate of each character.

    >>> fitted("iiiiiiiiiiii", 60), fitted("WWWWWWWWWWWW", 60), fitted("a name", 60)
    ('iiiiiiiiiiii', 'WWW…', 'a name')
    """
    total, kept = 0.0, 0
    for place, char in enumerate(text):
        wide = unicodedata.east_asian_width(char) in "WF"
        em = 1.05 if wide else 0.38 if char in "iljtfrI.,;:'!|()[] " else 0.98 if char in "mwMW@%—…" else 0.66
        total += em * size
        if total <= pixels - size:
            kept = place + 1
    return text if total <= pixels else f"{text[:kept].rstrip()}…"


def interval(figure: Figure, as_percent: bool, fine: bool = False, places: int | None = None) -> str:
    """``low to high``, empty if there is no interval; ``places`` are the decimals of a column."""
    if figure.low is None or figure.high is None:
        return ""
    show = measured if places is None else lambda end: fixed(end, places)
    low, high = (percent(end, fine) if as_percent else show(end) for end in (figure.low, figure.high))
    return f"{low} to {high}"


def headline(record: Record) -> tuple[Metric, Figure]:
    """The measure that the report begins with, and its value for the averaged model."""
    measure = metric({"classification": "accuracy", "survival": "concordance"}.get(record.task, "r2"))
    return measure, record.models[0].metrics.get(measure.key, Figure()) if record.models else Figure()


def sentences(record: Record) -> list[str]:
    """The three sentences at the top of the report, also for records without the data for one of them."""
    return [_accuracy(record), _inputs(record), _calibration(record)]


def _accuracy(record: Record) -> str:
    measure, own = headline(record)
    if own.value is None:
        return f"The model predicts “{record.target}”; its accuracy on unseen rows was not measured."
    between = interval(own, True)
    sure = f" (95% interval {between})" if between else ""
    if measure.key == "accuracy":
        start = (
            f"The model predicts “{record.target}” correctly for {percent(own.value)} of unseen rows{sure}"
        )
    elif measure.key == "concordance":
        start = (
            f"Of two unseen rows, the model tells which has “{record.target}” first for {percent(own.value)} "
            f"of pairs{sure}; 50% is chance"
        )
    elif own.value <= 0:
        start = f"The model predicts “{record.target}” no better than its mean does{sure}"
    else:
        share = percent(own.value)
        start = f"The model explains {share} of the variance of “{record.target}” in unseen rows{sure}"
    return f"{start}{_comparison(own, measure, record.baselines)}."


def _comparison(own: Figure, measure: Metric, baselines: Sequence[Any]) -> str:
    """How the model compares with the best and the worst baseline, by the differences on the same rows."""
    figures = {each.name: each.metrics.get(measure.key, Figure()) for each in baselines}
    gaps = {each.name: each.difference.get(measure.key, Figure()) for each in baselines}
    known = sorted((f.value, name) for name, f in figures.items() if f.value is not None)
    ends = dict.fromkeys([known[-1], known[0]]) if known else {}
    said = []
    for value, name in ends:
        found = verdict(gaps[name], measure.higher_is_better) or _apart(own, figures[name])
        said.append(f"{_VERDICTS[found]} {name} ({percent(value)})")
    return f": {' and '.join(said)}" if said else ""


_VERDICTS = {
    "better": "clearly better than",
    "worse": "clearly worse than",
    "open": "not clearly different from",
    "": "compared with",
}


def verdict(gap: Figure, higher_is_better: bool) -> str:
    """``better``, ``worse`` or ``open`` by the interval of a difference on the same rows; empty without one.

    >>> [verdict(Figure(0.02, low, 0.05), True) for low in (0.01, -0.01, None)]
    ['better', 'open', '']
    """
    if gap.low is None or gap.high is None:
        return ""
    if gap.low <= 0.0 <= gap.high:
        return "open"
    return "better" if (gap.low > 0.0) == higher_is_better else "worse"


def _apart(own: Figure, other: Figure) -> str:
    """The same for a record without paired differences, by whether the intervals of the two models
    overlap.
    """
    if own.low is None or own.high is None or other.low is None or other.high is None:
        return ""
    if own.low > other.high:
        return "better"
    return "worse" if own.high < other.low else "open"


def signed(value: float | None, as_percent: bool, places: int = 3) -> str:
    """A difference with its sign, in percentage points if ``as_percent``.

    >>> signed(0.031, True), signed(-0.2, False), signed(0.0, False), signed(None, True)
    ('+3.1 pp', '−0.200', '0.000', '–')
    """
    if value is None:
        return "–"
    text = f"{fixed(100 * value, 1)} pp" if as_percent else fixed(value, places)
    positive = value > 0 and any(digit in "123456789" for digit in text)
    return f"+{text}" if positive else text


def signed_interval(figure: Figure, as_percent: bool, places: int = 3) -> str:
    if figure.low is None or figure.high is None:
        return ""
    return f"{signed(figure.low, as_percent, places)} to {signed(figure.high, as_percent, places)}"


def _inputs(record: Record) -> str:
    if not record.inputs:
        return "Which inputs matter was not recorded."
    kept = [each for each in ranked(record.inputs) if each.selected]
    total, share = len(record.inputs), ""
    if record.density is not None:
        share = f" and {percent(record.density)} of the network’s connections"
    sets = [each.names for each in record.credible_sets if len(each.names) > 1]
    if not kept and sets:
        found = "; ".join(f"one of {in_a_row([f'“{name}”' for name in names[:4]])}" for names in sets[:3])
        return f"None of the {total} inputs is needed for itself, but among stand-ins some are: {found}."
    if not kept:
        return f"None of the {total} inputs is clearly needed{_sparse_model(record, share)}."
    count = f"all {total}" if len(kept) == total else f"{len(kept)} of {total}"
    most = f", most clearly {_listed(kept[:3], record)}" if len(kept) > 4 else f": {_listed(kept, record)}"
    return f"It uses {count} inputs{share}{most}."


def _sparse_model(record: Record, share: str) -> str:
    """What the sparse model uses if no input is clearly needed; empty if that is not known.

    It is a constant only if no path of kept connections reaches an output in any replicate (``stability``
    0 for every input).
    """
    known = [each.stability for each in record.inputs if each.stability is not None]
    reaching = sum(stability > 0 for stability in known)
    if reaching:
        return f", although the sparse model uses {reaching} of them{share}"
    if len(known) == len(record.inputs) and (record.network is None or not record.network.edges):
        return ": the sparse model is a constant"
    return ""


def ranked(inputs: Sequence[Any]) -> list[Any]:
    """Inputs by their gain; without one by inclusion, to three digits, then by the size of their effect."""

    def key(each: Any) -> tuple[Any, ...]:
        gain = -math.inf if each.gain is None else each.gain
        return (-gain, -round(each.inclusion or 0.0, 3), -abs(each.effect or 0.0), each.name)

    return sorted(inputs, key=key)


def _listed(inputs: Sequence[Any], record: Record) -> str:
    """Names with the direction of their effects, as a list in words."""
    does: Mapping[str, str] = {}
    if record.task == "survival":
        does = {"+": " (raises the risk)", "-": " (lowers the risk)"}
    elif record.task == "regression":
        does = {"+": " (raises it)", "-": " (lowers it)"}
    elif len(record.classes) == 2:
        does = {"+": f" (towards “{record.classes[1]}”)", "-": f" (away from “{record.classes[1]}”)"}
    names = [f"“{each.name}”{does.get(each.direction, '')}" for each in inputs]
    return in_a_row(names)


def in_a_row(names: Sequence[str]) -> str:
    """
    >>> in_a_row(["a"]), in_a_row(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _calibration(record: Record) -> str:
    inside = [
        low <= stated <= high
        for group in record.survival.groups
        for low, stated, high in zip(group.low, group.predicted, group.high)
    ]
    if inside:
        share = sum(inside) / len(inside)
        return (
            f"Predicted survival lies inside the 95% band of what was observed at {percent(share)} of the "
            "times, over all groups of risk."
        )
    if not record.points:
        return "Whether its probabilities can be trusted was not measured."
    if record.task == "classification":
        rows = sum(n for _, _, n in record.points)
        stated, observed = (sum(point[k] * point[2] for point in record.points) / rows for k in (0, 1))
        said = f"Its mean confidence is {percent(stated)}, and it is right for {percent(observed)} of rows"
    else:
        stated, observed, rows = min(record.points, key=lambda point: abs(point[0] - 0.9))
        said = f"Its {percent(stated)} intervals contain the truth for {percent(observed)} of unseen rows"
    return f"{said}: {_trust(observed - stated, stated, rows)}."


def _trust(gap: float, stated: float, rows: float) -> str:
    """Whether the gap exceeds two standard errors of a share of that many rows."""
    if abs(gap) <= 2 * math.sqrt(max(stated * (1 - stated), 1e-4) / max(rows, 1)):
        return "well calibrated, as far as these rows can show"
    return "underconfident" if gap > 0 else "overconfident"
