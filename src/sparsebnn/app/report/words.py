"""The report's text: numbers as shown, and three sentences on accuracy, inputs and calibration.

Two models are called different only if their 95% intervals do not overlap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sparsebnn.app.report.record import Figure, Record
from sparsebnn.io.formatting import decimals, plain

__all__ = ["headline", "interval", "measured", "metric", "number", "percent", "ranked", "sentences", "short"]

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


def interval(figure: Figure, as_percent: bool, fine: bool = False) -> str:
    """``low to high``, empty if there is no interval."""
    if figure.low is None or figure.high is None:
        return ""
    low, high = (percent(end, fine) if as_percent else measured(end) for end in (figure.low, figure.high))
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
    """How the model compares with the best and the worst baseline."""
    figures = {each.name: each.metrics.get(measure.key, Figure()) for each in baselines}
    known = sorted((f.value, name) for name, f in figures.items() if f.value is not None)
    ends = dict.fromkeys([known[-1], known[0]]) if known else {}
    said = [f"{_verdict(own, figures[name])} {name} ({percent(value)})" for value, name in ends]
    return f": {' and '.join(said)}" if said else ""


def _verdict(own: Figure, other: Figure) -> str:
    """
    >>> _verdict(Figure(0.9, 0.88, 0.92), Figure(0.8, 0.78, 0.82))
    'clearly better than'
    >>> _verdict(Figure(0.9, 0.8, 0.95), Figure(0.92, 0.85, 0.97))
    'not clearly different from'
    """
    if own.low is None or own.high is None or other.low is None or other.high is None:
        return "compared with"
    if own.low > other.high:
        return "clearly better than"
    return "clearly worse than" if own.high < other.low else "not clearly different from"


def _inputs(record: Record) -> str:
    if not record.inputs:
        return "Which inputs matter was not recorded."
    kept = [each for each in ranked(record.inputs) if each.selected]
    total, share = len(record.inputs), ""
    if record.density is not None:
        share = f" and {percent(record.density)} of the network’s connections"
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
    """Inputs by inclusion, to three digits, then by the size of their effect."""
    return sorted(inputs, key=lambda i: (-round(i.inclusion or 0.0, 3), -abs(i.effect or 0.0), i.name))


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
