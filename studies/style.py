"""One style for all figures: one font size, one set of colours and line styles, one map for heights.

Every method has a colour and a dash, so that figures read without colour too; ``cividis`` looks the same
to every kind of colour vision and keeps its order in grey.
"""

from __future__ import annotations

from typing import Any

__all__ = ["ALARM", "COLOURS", "MAP", "line", "plain"]

# Okabe and Ito's palette, distinguishable with every kind of color vision.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000", "#F0E442")
MAP = "cividis"
ALARM = COLOURS[5]
_ORDER = ("lrt", "flow", "dense", "dropout", "ensemble", "plain")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
_COLOURS = (COLOURS[0], COLOURS[5], COLOURS[2], COLOURS[6], COLOURS[3], COLOURS[1])
_SETTINGS: Any = {
    "font.size": 8.0,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "savefig.dpi": 160,
    "figure.constrained_layout.use": True,
}


def plain() -> Any:
    """Matplotlib's ``pyplot`` inside this style: ``with plain() as plt``."""
    import contextlib
    from collections.abc import Iterator

    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("Figures need matplotlib: pip install 'sparsebnn[plot]'") from error

    @contextlib.contextmanager
    def scope() -> Iterator[Any]:
        with plt.rc_context(_SETTINGS):
            yield plt
            plt.close("all")

    return scope()


def line(method: str) -> dict[str, Any]:
    """Colour and dash of a method's line.

    >>> line("lrt")["color"]
    '#0072B2'
    """
    # Variants of a method share its style: they appear in separate figures.
    at = _ORDER.index(method.split("_")[0])
    return {"color": _COLOURS[at], "linestyle": _DASHES[at]}
