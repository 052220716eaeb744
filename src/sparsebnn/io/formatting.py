"""Numbers as people write them: no exponents such as 2e-06, and the same decimals down a column."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["aligned", "decimals", "plain"]

_LARGEST, _SMALLEST = 1e15, 1e-6  # beyond, a power of ten
_POWERS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def plain(value: float, digits: int = 3, zeros: bool = False) -> str:
    """``digits`` significant digits, thousands separated; ``zeros`` keeps trailing zeros.

    >>> plain(0.12345), plain(123456.0), plain(-2.19e-06), plain(0.5, zeros=True), plain(2.5e-9)
    ('0.123', '123,456', '-0.00000219', '0.500', '2.5 × 10⁻⁹')
    """
    if not math.isfinite(value):
        return "–"
    size = abs(value)
    if size and (size >= _LARGEST or size < _SMALLEST):
        mantissa, power = f"{value:.{digits - 1}e}".split("e")
        return f"{_stripped(mantissa)} × 10{str(int(power)).translate(_POWERS)}"
    if size >= 10.0 ** max(3, digits):
        return f"{value:,.0f}"
    text = f"{value:,.{decimals([value], digits) if zeros or size < 10.0**digits else 0}f}"
    return text if zeros else _stripped(text)


def _stripped(text: str) -> str:
    short = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if short in ("-0", "") else short


def decimals(values: Sequence[float], digits: int = 3) -> int:
    """The decimals that give the largest of these values ``digits`` significant digits.

    >>> decimals([0.5, 12.0]), decimals([0.012]), decimals([5000.0]), decimals([0.0])
    (1, 4, 0, 2)
    """
    largest = max((abs(v) for v in values if math.isfinite(v)), default=0.0)
    if largest == 0.0:
        return digits - 1
    # The value as rounded: 0.9996 with three digits is 1.00.
    power = int(f"{largest:.{digits - 1}e}".split("e")[1])
    return max(0, digits - 1 - power)


def aligned(values: Sequence[float], sign: bool = False, digits: int = 3) -> list[str]:
    """All values with the same decimals, so that they line up; a value that rounds to 0 is written as 0.

    >>> aligned([1.234, -2.19e-06, 0.5]), aligned([1.5, -0.25], sign=True)
    (['1.23', '0.00', '0.50'], ['+1.50', '-0.25'])
    """
    places = decimals(values, digits)
    if places > 9 or max((abs(v) for v in values if math.isfinite(v)), default=0.0) >= _LARGEST:
        return [plain(v, digits) for v in values]
    shown = []
    for value in values:
        rounded = round(value, places) + 0.0 if math.isfinite(value) else value
        shown.append(
            "–" if not math.isfinite(value) else f"{rounded:{'+' if sign and rounded else ''},.{places}f}"
        )
    return shown
