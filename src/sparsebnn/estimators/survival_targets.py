"""Times and events in the forms that people have them in, as columns: time, event, entry."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from sparsebnn.checks import invalid

__all__ = ["columns_of"]

_OWNER = "SparseBNNSurvival"
_ROLES = {
    "event": ("event", "status", "died", "death", "dead", "observed", "fail"),
    "entry": ("entry", "start", "truncation"),
    "time": ("time", "duration", "days", "weeks", "months", "years", "stop", "exit", "futime"),
}
_CENSORED = re.compile("(?<!un)(?<!non)(?<!li)cens", re.IGNORECASE)  # not "uncensored", not "license"


def columns_of(y: Any) -> np.ndarray:
    """``(rows, 3)`` times, events and times of entry.

    ``y`` is a structured array or a frame with a field of times and one of events (and maybe one of entries);
    an array with these columns in this order; or a vector of times that all end with the event.
    """
    if y is None:
        raise ValueError(f"{_OWNER} requires y to be passed, but the target y is None")
    named = _named(y)
    if named is None:
        found = np.asarray(y)
        if found.ndim == 1 or (found.ndim == 2 and found.shape[1] == 1):
            time = _numbers(found.reshape(-1), "time")
            return _checked(time, np.ones(len(time)), None)
        if found.ndim != 2 or found.shape[1] > 3:
            raise invalid("y", _OWNER, "times and events", f"an array of shape {found.shape}", _ADVICE)
        named = dict(zip(("time", "event", "entry"), found.T))
    roles = named if {"time", "event"} <= named.keys() else _roles(_without_censored(named))
    entry = roles.get("entry")
    return _checked(_numbers(roles["time"], "time"), _events(roles["event"]), entry)


_ADVICE = "Pass a structured array or a frame with the fields 'event' and 'time'."


def _named(y: Any) -> dict[str, np.ndarray] | None:
    """Fields by name, of a structured array or a frame."""
    if isinstance(y, np.ndarray) and y.dtype.names:
        return {name: y[name] for name in y.dtype.names}
    if hasattr(y, "columns") and hasattr(y, "__getitem__"):
        return {str(name): np.asarray(y[name]) for name in y.columns}
    return None


def _without_censored(named: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The fields less those that mark censored rows, which must not be read as events."""
    rest = {name: values for name, values in named.items() if not _CENSORED.search(name)}
    if len(rest) == len(named) or any(word in name.lower() for name in rest for word in _ROLES["event"]):
        return rest
    own = next(name for name in named if name not in rest)
    advice = (
        f"Pass event = not {own} as the field 'event'; if {own} is 1 where the event happened, rename it to "
        "'event'."
    )
    raise invalid("event", _OWNER, "a field that is 1 where the event happened", f"the field {own!r}", advice)


def _roles(named: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Which field is the time, which the event: by type, then by name."""
    if not 2 <= len(named) <= 3:
        raise invalid("y", _OWNER, "of two or three fields", f"{len(named)}", _ADVICE)
    roles: dict[str, np.ndarray] = {}
    rest = dict(named)
    yes_or_no = [n for n, v in named.items() if v.dtype.kind == "b"] or [
        n for n, v in named.items() if v.dtype.kind in "iuf" and np.isin(v, (0, 1)).all()
    ]
    if len(yes_or_no) == 1:
        roles["event"] = rest.pop(yes_or_no[0])
    for role, words in _ROLES.items():
        fitting = [n for n in rest if any(word in n.lower() for word in words)]
        if role not in roles and (len(rest) > 1 or role == "event") and fitting:
            roles[role] = rest.pop(fitting[0])
    if "time" not in roles and len(rest) == 1:
        roles["time"] = rest.popitem()[1]
    if not {"time", "event"} <= roles.keys() or rest:
        raise invalid("y", _OWNER, "clear about times and events", f"the fields {list(named)}", _ADVICE)
    return roles


def _numbers(values: np.ndarray, what: str) -> np.ndarray:
    try:
        found = np.asarray(values).astype(np.float64)
    except (TypeError, ValueError) as error:
        got = repr(next((v for v in np.asarray(values).tolist() if isinstance(v, str)), values.dtype))
        raise invalid(what, _OWNER, "numbers", got, "Convert dates to days first.") from error
    if not np.isfinite(found).all():
        got = "missing or infinite values (NaN or infinity)"
        raise invalid(what, _OWNER, "finite", got, "Drop those rows first.")
    return found


def _events(values: np.ndarray) -> np.ndarray:
    advice = "Convert it first, such as event = status == 'dead'."
    if values.dtype.kind in "OUST":
        text = next((v for v in values.tolist() if isinstance(v, str)), None)
        if text is not None:
            raise invalid("event", _OWNER, "True or False, or 1 and 0", f"text ({text!r})", advice)
    found = _numbers(values, "event")
    wrong = ~np.isin(found, (0.0, 1.0))
    if wrong.any():
        raise invalid("event", _OWNER, "True or False, or 1 and 0", found[wrong][0], advice)
    return found


def _checked(time: np.ndarray, event: np.ndarray, entry: np.ndarray | None) -> np.ndarray:
    start = np.zeros_like(time) if entry is None else _numbers(entry, "entry")
    if not (time > 0.0).all():
        advice = "Drop those rows, or give them half of the smallest time."
        raise invalid("time", _OWNER, "positive", time.min(), advice)
    if not ((start >= 0.0) & (start < time)).all():
        raise invalid(
            "entry", _OWNER, "from 0 to before the time", start[~((start >= 0.0) & (start < time))][0]
        )
    if not event.any():
        advice = "Without events there is no hazard to learn."
        raise invalid("event", _OWNER, "True for at least one row", "only censored rows", advice)
    return np.stack([time, event, start], axis=1)
