"""Expressions of a formula, and how they are written: as text, as LaTeX, in SQL, as SymPy objects."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sparsebnn.checks import check_choice, invalid

__all__ = [
    "Apply",
    "Case",
    "Expression",
    "Input",
    "Latex",
    "Missing",
    "Softmax",
    "Sql",
    "Sum",
    "Text",
    "Unit",
    "sympy_of",
    "value_of",
]

_LATEX_FUNCTIONS = {
    "tanh": r"\tanh",
    "sigmoid": r"\sigma",
    "silu": r"\operatorname{SiLU}",
    "gelu": r"\operatorname{GELU}",
}


class Expression:
    """A part of a formula. Numbers are a :class:`Sum` without terms."""


@dataclass(frozen=True)
class Input(Expression):
    """A number of the row; ``fill`` stands for a missing one, ``limits`` clip it."""

    name: str
    fill: float | None = None
    limits: tuple[float, ...] = ()


@dataclass(frozen=True)
class Missing(Expression):
    """1 where the value is missing, else 0."""

    name: str


@dataclass(frozen=True)
class Case(Expression):
    """A number for each level of a category, one for other levels, and one where it is missing."""

    name: str
    numbers: tuple[tuple[str, float], ...]
    other: float
    missing: float


@dataclass(frozen=True)
class Sum(Expression):
    """constant + Σ factor · term"""

    constant: float
    terms: tuple[tuple[float, Expression], ...] = ()


@dataclass(frozen=True)
class Apply(Expression):
    """A function of one expression: an activation; ``slope`` of a leaky ReLU."""

    function: str
    of: Expression
    slope: float = 0.0


@dataclass(frozen=True)
class Softmax(Expression):
    """exp(score k) / Σ exp(scores)"""

    scores: tuple[Expression, ...]
    place: int


@dataclass(frozen=True)
class Unit(Expression):
    """An expression with a name, which text and LaTeX define once."""

    name: str
    of: Expression


def value_of(function: str, x: float, slope: float = 0.0) -> float:
    """An activation of a number."""
    return {
        "relu": lambda: max(0.0, x),
        "leaky_relu": lambda: x if x > 0.0 else slope * x,
        "tanh": lambda: math.tanh(x),
        "sigmoid": lambda: 0.5 * (1.0 + math.tanh(0.5 * x)),
        "silu": lambda: x * 0.5 * (1.0 + math.tanh(0.5 * x)),
        "gelu": lambda: 0.5 * x * (1.0 + math.erf(x / math.sqrt(2.0))),
    }[function]()


class Writer:
    """Writes expressions; subclasses say how the parts look."""

    def __init__(self, digits: int) -> None:
        self.digits = digits

    def write(self, e: Expression) -> str:
        if isinstance(e, Sum):
            return self.total(e)
        if isinstance(e, Input):
            return self.clipped(self.input(e), e.limits) if e.limits else self.input(e)
        if isinstance(e, Missing):
            return self.missing(e.name)
        if isinstance(e, Case):
            return self.case(e)
        if isinstance(e, Softmax):
            return self.softmax(e)
        if isinstance(e, Unit):
            return self.unit(e)
        assert isinstance(e, Apply)
        return self.applied(e.function, self.write(e.of), e.slope)

    def total(self, e: Sum) -> str:
        parts = [(factor < 0.0, self.product(abs(factor), self.term(term))) for factor, term in e.terms]
        if e.constant or not parts:
            parts.append((e.constant < 0.0, self.number(abs(e.constant))))
        text = ("-" if parts[0][0] else "") + parts[0][1]
        return text + "".join(f" {'-' if minus else '+'} {part}" for minus, part in parts[1:])

    def term(self, e: Expression) -> str:
        """As a part of a sum, which may have a factor or a minus before it."""
        return self.bracketed(self.write(e)) if self.is_sum(e) else self.write(e)

    def is_sum(self, e: Expression) -> bool:
        """Whether an expression is written as a sum."""
        return isinstance(e, Sum)

    def bracketed(self, text: str) -> str:
        return f"({text})"

    def number(self, value: float) -> str:
        return f"{value:.{self.digits}g}"

    def product(self, factor: float, text: str) -> str:
        return text if factor == 1.0 else f"{self.number(factor)}*{text}"

    def input(self, e: Input) -> str:
        raise NotImplementedError

    def missing(self, name: str) -> str:
        raise NotImplementedError

    def clipped(self, text: str, limits: Sequence[float]) -> str:
        raise NotImplementedError

    def case(self, e: Case) -> str:
        raise NotImplementedError

    def applied(self, function: str, text: str, slope: float) -> str:
        raise NotImplementedError

    def softmax(self, e: Softmax) -> str:
        raise NotImplementedError

    def unit(self, e: Unit) -> str:
        return e.name


class Text(Writer):
    """Plain text that Python can evaluate, if it knows relu, sigmoid, clip, missing and pick."""

    def name(self, name: str) -> str:
        return name if name.isidentifier() else f"`{name}`"

    def input(self, e: Input) -> str:
        return self.name(e.name)

    def missing(self, name: str) -> str:
        return f"missing({self.name(name)})"

    def clipped(self, text: str, limits: Sequence[float]) -> str:
        return f"clip({text}, {self.number(limits[0])}, {self.number(limits[1])})"

    def case(self, e: Case) -> str:
        pairs = ", ".join(f"{level!r}: {self.number(value)}" for level, value in e.numbers)
        rest = f"other={self.number(e.other)}, missing={self.number(e.missing)}"
        return f"pick({self.name(e.name)}, {{{pairs}}}, {rest})"

    def applied(self, function: str, text: str, slope: float) -> str:
        more = f", {self.number(slope)}" if function == "leaky_relu" else ""
        return f"{function}({text}{more})"

    def softmax(self, e: Softmax) -> str:
        scores = [self.write(score) for score in e.scores]
        return f"exp({scores[e.place]}) / ({' + '.join(f'exp({score})' for score in scores)})"

    def unit(self, e: Unit) -> str:
        return self.name(e.name)


class Latex(Writer):
    """LaTeX with amsmath."""

    def number(self, value: float) -> str:
        text = super().number(value)
        return re.sub(r"e([+-])0*(\d+)", lambda m: rf" \cdot 10^{{{m[1].lstrip('+')}{m[2]}}}", text)

    def bracketed(self, text: str) -> str:
        return rf"\left({text}\right)"

    def product(self, factor: float, text: str) -> str:
        return text if factor == 1.0 else rf"{self.number(factor)} \, {text}"

    def name(self, name: str) -> str:
        escaped = re.sub(r"([_#$%&{}])", r"\\\1", name).replace(" ", "~")
        return rf"\mathrm{{{escaped}}}"

    def input(self, e: Input) -> str:
        return self.name(e.name)

    def missing(self, name: str) -> str:
        return rf"[{self.name(name)} \text{{ missing}}]"

    def clipped(self, text: str, limits: Sequence[float]) -> str:
        low, high = map(self.number, limits)
        return rf"\min\left(\max\left({text}, {low}\right), {high}\right)"

    def case(self, e: Case) -> str:
        lines = [rf"{self.number(v)} & {self.name(e.name)} = {self.name(level)}" for level, v in e.numbers]
        lines.append(rf"{self.number(e.missing)} & \text{{missing}}")
        lines.append(rf"{self.number(e.other)} & \text{{otherwise}}")
        return r"\begin{cases} " + r" \\ ".join(lines) + r" \end{cases}"

    def applied(self, function: str, text: str, slope: float) -> str:
        if function == "relu":
            return rf"\max\left(0, {text}\right)"
        if function == "leaky_relu":
            return rf"\operatorname{{LReLU}}_{{{self.number(slope)}}}\left({text}\right)"
        return rf"{_LATEX_FUNCTIONS[function]}\left({text}\right)"

    def softmax(self, e: Softmax) -> str:
        powers = [rf"e^{{{self.write(score)}}}" for score in e.scores]
        return rf"\frac{{{powers[e.place]}}}{{{' + '.join(powers)}}}"

    def unit(self, e: Unit) -> str:
        kind, _, number = e.name.partition("h")
        return rf"h_{{{number}}}" if not kind and number.isdigit() else self.name(e.name)


class Sql(Writer):
    """An expression of one row: ``dialect`` ``"sqlite"``, or ``"standard"`` (GREATEST and LEAST)."""

    def __init__(self, dialect: str, digits: int = 17) -> None:
        super().__init__(digits)
        check_choice(dialect, ("sqlite", "standard"), "dialect", "a formula in SQL")
        self.largest, self.least = ("max", "min") if dialect == "sqlite" else ("GREATEST", "LEAST")

    def number(self, value: float) -> str:
        text = super().number(value)
        return text if re.search("[.e]", text) else f"{text}.0"

    def name(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def input(self, e: Input) -> str:
        name = self.name(e.name)
        return name if e.fill is None else f"coalesce({name}, {self.signed(e.fill)})"

    def signed(self, value: float) -> str:
        return f"{'-' if value < 0.0 else ''}{self.number(abs(value))}"

    def missing(self, name: str) -> str:
        return f"(CASE WHEN {self.name(name)} IS NULL THEN 1.0 ELSE 0.0 END)"

    def clipped(self, text: str, limits: Sequence[float]) -> str:
        low, high = map(self.signed, limits)
        return f"{self.least}({self.largest}({text}, {low}), {high})"

    def case(self, e: Case) -> str:
        column = self.name(e.name)
        quoted = [(level.replace("'", "''"), self.signed(value)) for level, value in e.numbers]
        whens = "".join(f" WHEN {column} = '{level}' THEN {value}" for level, value in quoted)
        first = f" WHEN {column} IS NULL THEN {self.signed(e.missing)}"
        return f"(CASE{first}{whens} ELSE {self.signed(e.other)} END)"

    def applied(self, function: str, text: str, slope: float) -> str:
        if function == "relu":
            return f"{self.largest}(0.0, {text})"
        if function == "leaky_relu":
            return f"({self.largest}(0.0, {text}) + {self.number(slope)}*{self.least}(0.0, {text}))"
        sigmoid = f"(1.0/(1.0 + exp(-({text}))))"
        if function in ("sigmoid", "silu"):
            return sigmoid if function == "sigmoid" else f"(({text})*{sigmoid})"
        if function == "tanh":
            return f"(1.0 - 2.0/(1.0 + exp(2.0*({text}))))"
        raise invalid("model", "a formula in SQL", "one of functions that databases have", function)

    def softmax(self, e: Softmax) -> str:
        # 1 / Σ exp(s_k − s_c): nothing overflows before the probability is 0.
        own = self.write(e.scores[e.place])
        others = (self.write(s) for k, s in enumerate(e.scores) if k != e.place)
        return f"(1.0/(1.0 + {' + '.join(f'exp(({other}) - ({own}))' for other in others)}))"

    def is_sum(self, e: Expression) -> bool:
        return self.is_sum(e.of) if isinstance(e, Unit) else super().is_sum(e)

    def unit(self, e: Unit) -> str:
        return self.write(e.of)


def sympy_of(e: Expression) -> Any:
    """The expression in SymPy; 0/1 symbols stand for missing values, x_missing, and levels, x=level."""
    sympy = _sympy()
    if isinstance(e, Sum):
        return sympy.Float(e.constant) + sum(sympy.Float(factor) * sympy_of(term) for factor, term in e.terms)
    if isinstance(e, Input):
        symbol = sympy.Symbol(e.name, real=True)
        return sympy.Min(sympy.Max(symbol, e.limits[0]), e.limits[1]) if e.limits else symbol
    if isinstance(e, Missing):
        return sympy.Symbol(f"{e.name}_missing", real=True)
    if isinstance(e, Case):
        # 0/1 symbols for the levels and for a missing value.
        known = [(sympy.Symbol(f"{e.name}={level}", real=True), value) for level, value in e.numbers]
        gap = sympy.Symbol(f"{e.name}_missing", real=True)
        total = sum((symbol * (value - e.other) for symbol, value in known), sympy.Float(e.other))
        return total + gap * (e.missing - e.other)
    if isinstance(e, Softmax):
        powers = [sympy.exp(sympy_of(score)) for score in e.scores]
        return powers[e.place] / sum(powers)
    if isinstance(e, Unit):
        return sympy_of(e.of)
    assert isinstance(e, Apply)
    x = sympy_of(e.of)
    made: dict[str, Any] = {
        "relu": lambda: sympy.Max(0, x),
        "leaky_relu": lambda: sympy.Max(0, x) + e.slope * sympy.Min(0, x),
        "tanh": lambda: sympy.tanh(x),
        "sigmoid": lambda: 1 / (1 + sympy.exp(-x)),
        "silu": lambda: x / (1 + sympy.exp(-x)),
        "gelu": lambda: x * (1 + sympy.erf(x / sympy.sqrt(2))) / 2,
    }
    return made[e.function]()


@functools.cache
def _sympy() -> Any:
    try:
        import sympy
    except ImportError as missing:
        raise ImportError("A SymPy expression needs SymPy: pip install sympy") from missing
    return sympy
