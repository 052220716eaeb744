"""What was learned, in three sentences: how well, from which inputs, and whether to trust its certainty.

A difference is called one only where the two intervals do not overlap; otherwise the sentence says that
the held-out rows do not tell the two apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sparsebnn.app.report.record import Figure, Input, Model, Record

__all__ = [
    "Metric",
    "DIRECTIONS",
    "headline",
    "ranked",
    "metric",
    "sentences",
    "number",
    "measured",
    "percent",
    "interval",
]


@dataclass(frozen=True)
class Metric:
    """How a measure is called and read."""

    key: str
    label: str
    means: str
    higher_is_better: bool
    as_percent: bool = False


_METRICS = (
    Metric("accuracy", "Accuracy", "share of rows predicted correctly", True, True),
    Metric("r2", "R²", "share of the differences between rows that is explained", True),
    Metric("rmse", "RMSE", "typical size of an error, in units of the target", False),
    Metric("mae", "Mean error", "mean absolute error, in units of the target", False),
    Metric("nll", "Log-loss", "penalty for being sure of the wrong answer", False),
    Metric("brier", "Brier score", "squared error of the probabilities", False),
    Metric("ece", "Calibration error", "mean gap between stated and observed certainty", False),
    Metric("crps", "CRPS", "error of the whole predictive distribution", False),
    Metric("coverage", "Coverage", "share of rows inside their interval", True, True),
    Metric("auc", "AUC", "chance that a row of the class ranks above one that is not", True),
    Metric(
        "balanced_accuracy", "Balanced accuracy", "accuracy with every class counting the same", True, True
    ),
)
DIRECTIONS = {"+": "raises", "-": "lowers", "mixed": "both ways"}


def metric(key: str) -> Metric:
    """What is known of a measure; an unknown one keeps its own name.

    >>> metric("nll").label, metric("pinball").label
    ('Log-loss', 'pinball')
    """
    return next((each for each in _METRICS if each.key == key), Metric(key, key, "", True))


def number(value: float | None, digits: int = 3) -> str:
    """Three significant digits, an en dash for what is missing, a true minus sign.

    >>> number(0.12345), number(-2.0), number(None), number(123456.0)
    ('0.123', '−2', '–', '123,456')
    """
    if value is None:
        return "–"
    text = f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.{digits}g}"
    return text.replace("-", "−")


def measured(value: float | None) -> str:
    """As :func:`number`, with its trailing zeros: the digits that were measured.

    >>> measured(0.5), measured(54.2), measured(5321.0)
    ('0.500', '54.2', '5,321')
    """
    if value is None or abs(value) >= 1000 or 0 < abs(value) < 1e-4:
        return number(value)
    return f"{value:.{max(0, 3 - len(str(int(abs(value)))) if abs(value) >= 1 else 3)}f}".replace("-", "−")


def percent(value: float | None, fine: bool = False) -> str:
    """Per cent, with a decimal near the ends or if ``fine``, and never 100% for what is less than all.

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


def interval(figure: Figure, as_percent: bool, fine: bool = False) -> str:
    """``low to high``, empty when there is none."""
    if figure.low is None or figure.high is None:
        return ""
    low, high = (percent(end, fine) if as_percent else measured(end) for end in (figure.low, figure.high))
    return f"{low} to {high}"


def headline(record: Record) -> Metric:
    """The measure that the first sentence speaks of."""
    return metric("accuracy" if record.task == "classification" else "r2")


def sentences(record: Record) -> list[str]:
    """The three sentences; one that the record has nothing to say about says so."""
    return [_how_well(record), _which_inputs(record), _how_sure(record)]


def _how_well(record: Record) -> str:
    measure = headline(record)
    own = record.models[0].metrics.get(measure.key) if record.models else None
    if own is None or own.value is None:
        return f"The model predicts “{record.target}”; how well it does on unseen rows was not measured."
    between = interval(own, True)
    sure = f" (95% interval {between})" if between else ""
    if measure.key == "accuracy":
        start = f"The model gets “{record.target}” right for {percent(own.value)} of unseen rows{sure}"
    elif own.value <= 0:
        start = f"The model predicts “{record.target}” no better than its mean does{sure}"
    else:
        share = percent(own.value)
        start = f"The model explains {share} of the variation of “{record.target}” in unseen rows{sure}"
    return f"{start}{_beside(own, measure, record.baselines)}."


def _beside(own: Figure, measure: Metric, baselines: Sequence[Model]) -> str:
    """How that compares with the simplest and with the best of the baselines."""
    known = [each for each in baselines if (f := each.metrics.get(measure.key)) and f.value is not None]
    if not known:
        return ""
    known.sort(key=lambda each: each.metrics[measure.key].value or 0.0)
    worst, best = known[0], known[-1]
    said = [f"{_verdict(own, best.metrics[measure.key])} {best.name} ({_shown(best, measure)})"]
    if worst is not best:
        said.append(f"{_verdict(own, worst.metrics[measure.key])} {worst.name} ({_shown(worst, measure)})")
    return ": " + " and ".join(said)


def _shown(model: Model, measure: Metric) -> str:
    return percent(model.metrics[measure.key].value)


def _verdict(own: Figure, other: Figure) -> str:
    """Better or worse only where the intervals lie apart.

    >>> _verdict(Figure(0.9, 0.88, 0.92), Figure(0.8, 0.78, 0.82))
    'clearly better than'
    >>> _verdict(Figure(0.9, 0.8, 0.95), Figure(0.92, 0.85, 0.97))
    'not clearly different from'
    """
    if own.low is None or own.high is None or other.low is None or other.high is None:
        return "beside"
    if own.low > other.high:
        return "clearly better than"
    return "clearly worse than" if own.high < other.low else "not clearly different from"


def _which_inputs(record: Record) -> str:
    if not record.inputs:
        return "Which inputs matter was not recorded."
    kept = [each for each in ranked(record.inputs) if each.selected]
    total, does = len(record.inputs), _does(record)
    share = "" if record.density is None else f", with {percent(record.density)} of the network’s connections"
    if not kept:
        return f"None of the {total} inputs is clearly needed{_used_all_the_same(record, share)}."
    if len(kept) == 1:
        return f"Of {total} inputs it needs one, {_named(kept, does)}{share}."
    lead = "all" if len(kept) == total else f"{len(kept)}"
    most = f", above all {_named(kept[:3], does)}" if len(kept) > 4 else f": {_named(kept, does)}"
    return f"Of {total} inputs it needs {lead}{share}{most}."


def _used_all_the_same(record: Record, share: str) -> str:
    """What the sparse model rests on where no input has shown its worth; nothing where that is not known.

    It is a constant only where no chain of kept connections leads from an input to an output, in any
    replicate (``stability`` 0 everywhere).
    """
    known = [each.stability for each in record.inputs if each.stability is not None]
    reaching = sum(stability > 0 for stability in known)
    if reaching:
        return f", though the sparse model uses {reaching} of them{share}"
    if len(known) == len(record.inputs) and (record.network is None or not record.network.of):
        return ": the sparse model is a constant"
    return ""


def ranked(inputs: Sequence[Input]) -> list[Input]:
    """The surest first; those equally sure to three digits by the size of their effect."""
    return sorted(inputs, key=lambda i: (-round(i.inclusion or 0.0, 3), -abs(i.effect.value or 0.0), i.name))


def _does(record: Record) -> dict[str, str]:
    """What a direction means: of a number up or down; of two classes towards the second or away from it."""
    if record.task == "regression":
        return {"+": " (pushes it up)", "-": " (pushes it down)"}
    if len(record.classes) != 2:
        return {}
    second = record.classes[1]
    return {"+": f" (towards “{second}”)", "-": f" (away from “{second}”)"}


def _named(inputs: Sequence[Input], does: dict[str, str]) -> str:
    """Names with what they do, as a list in words."""
    words = [f"“{each.name}”{does.get(each.direction or '', '')}" for each in inputs]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _how_sure(record: Record) -> str:
    if record.task == "classification":
        return _sure_of_classes(record)
    pairs = _pairs(record, "level", "coverage")
    if not pairs:
        return "Whether its stated certainty can be trusted was not measured."
    level, coverage = min(pairs, key=lambda pair: abs(pair[0] - 0.9))
    said = f"Its {percent(level)} intervals contained the truth for {percent(coverage)} of unseen rows"
    return f"{said}, so {_trust(coverage - level, level, record.test_rows)}."


def _sure_of_classes(record: Record) -> str:
    bins = list(zip(*(record.calibration.get(key, ()) for key in ("confidence", "accuracy", "rows"))))
    full = [(c, a, n) for c, a, n in bins if c is not None and a is not None and n]
    rows = sum(n for _, _, n in full)
    if not rows:
        return "Whether its stated certainty can be trusted was not measured."
    stated = sum(c * n for c, _, n in full) / rows
    right = sum(a * n for _, a, n in full) / rows
    said = f"On average it says it is {percent(stated)} sure and is right {percent(right)} of the time"
    return f"{said}, so {_trust(right - stated, stated, int(rows))}."


def _trust(gap: float, stated: float, rows: int | None) -> str:
    """Whether the gap is larger than two standard errors of a share of that many rows."""
    spread = math.sqrt(max(stated * (1 - stated), 1e-4) / max(rows or 1, 1))
    if abs(gap) <= 2 * spread:
        return "its certainty can be taken at its word, as far as these rows can tell"
    return "it is too cautious" if gap > 0 else "it is surer than it should be"


def _pairs(record: Record, first: str, second: str) -> list[tuple[float, float]]:
    both = zip(record.calibration.get(first, ()), record.calibration.get(second, ()))
    return [(a, b) for a, b in both if a is not None and b is not None]
