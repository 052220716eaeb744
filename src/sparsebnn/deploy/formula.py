r"""A small network as an equation: text, LaTeX, SymPy and SQL that compute what the median model does.

A network of a few dozen active weights can be read. Each hidden unit becomes a line, outputs follow; for an
estimator the standardization of its columns and the limits of the training range are folded in, so that the
formula takes raw values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from sparsebnn.checks import check_count, invalid
from sparsebnn.deploy.expressions import (
    Apply,
    Case,
    Expression,
    Input,
    Latex,
    Missing,
    Softmax,
    Sql,
    Sum,
    Text,
    Unit,
    sympy_of,
    value_of,
)
from sparsebnn.deploy.model import Exported, exported
from sparsebnn.estimators.columns import Column
from sparsebnn.nn.compaction import Take, compact
from sparsebnn.nn.networks import InputSkip, chain

__all__ = ["Formula", "formula"]

_MOST = 60
_FUNCTIONS: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.LeakyReLU: "leaky_relu",
    nn.Tanh: "tanh",
    nn.Sigmoid: "sigmoid",
    nn.SiLU: "silu",
    nn.GELU: "gelu",
}


@dataclass(frozen=True)
class Formula:
    """The median model at its posterior means as equations.

    ``outputs`` are expressions by name: probabilities of classes and the scores they are made of, or targets.
    ``units`` are the hidden units; ``n_weights`` is the number of active weights. ``fills`` are the values
    that missing numbers count as, which SQL does by itself.
    """

    units: tuple[Unit, ...]
    outputs: dict[str, Expression]
    n_weights: int
    fills: dict[str, float]

    def text(self, digits: int = 8) -> str:
        """One line per hidden unit and output."""
        writer = Text(digits)
        lines = [f"{unit.name} = {writer.write(unit.of)}" for unit in self.units]
        lines += [f"{name} = {writer.write(_body(e))}" for name, e in self.outputs.items()]
        fills = [f"{writer.name(name)} = {value:.{digits}g}" for name, value in self.fills.items()]
        return "\n".join(lines + ([f"if missing: {', '.join(fills)}"] if fills else []))

    def latex(self, digits: int = 8) -> str:
        """An ``align*`` of the same lines."""
        writer = Latex(digits)
        lines = [rf"{writer.unit(unit)} &= {writer.write(unit.of)}" for unit in self.units]
        lines += [rf"{writer.name(name)} &= {writer.write(_body(e))}" for name, e in self.outputs.items()]
        return "\\begin{align*}\n" + " \\\\\n".join(lines) + "\n\\end{align*}"

    def sql(self, dialect: str = "sqlite") -> dict[str, str]:
        """An expression for every output, hidden units written out; columns in double quotes."""
        return {name: Sql(dialect).write(e) for name, e in self.outputs.items()}

    def sympy(self) -> dict[str, Any]:
        """A SymPy expression for every output; categories and missing values are 0/1 symbols."""
        return {name: sympy_of(e) for name, e in self.outputs.items()}

    def __str__(self) -> str:
        return self.text(4)


def _body(e: Expression) -> Expression:
    return e.of if isinstance(e, Unit) else e


def formula(
    model: Any,
    *,
    names: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    likelihood: Any = None,
    most: int = _MOST,
) -> Formula:
    """The median model of a fitted estimator, a run or a network as equations.

    An estimator's formula takes raw columns. Of a network, ``names`` are its inputs (x0, x1, …), ``outputs``
    its classes or targets; with a ``likelihood`` there are probabilities, without one only its outputs.
    A network with more than ``most`` active weights is refused.

    >>> import sparsebnn, torch
    >>> network = sparsebnn.mlp([2, 1], family="gaussian", bias=False)
    >>> with torch.no_grad():
    ...     _ = network[0].weights.mean.copy_(torch.tensor([[1.5, -0.5]]))
    >>> print(formula(network, names=["age", "dose"]))
    output = 1.5*age - 0.5*dose
    """
    check_count(most, "most", "formula")
    if isinstance(model, nn.Module) and likelihood is None:
        networks, form = [model], None
    else:
        form = exported(model, "median", None, None, None, likelihood)
        networks = list(form.predictor.networks())
    small = [_small(network) for network in networks]
    active = sum(int((p != 0).sum()) for n in small for p in n.parameters() if p.dim() > 1)
    if active > most:
        advice = "Train with target_density (and replicates=1), or raise most."
        expected = f"a network of at most {most} active weights"
        several = f" in {_networks_of(model, len(small))}" if len(small) > 1 else ""
        raise invalid("model", "formula", expected, f"one of {active:,}{several}", advice)
    columns = None if form is None else form.columns
    inputs = _named_inputs(model, names) if columns is None else _of_columns(columns)
    builder = _Builder()
    scores = [builder.run(network, inputs) for network in small]
    found = _outputs(scores, form, outputs)
    fills = {c.name: c.centre[0] for c in columns or () if c.kind == "number" and c.name in builder.used}
    return Formula(tuple(builder.units), found, active, fills)


def _networks_of(model: Any, count: int) -> str:
    """What several networks are; an estimator may predict with several kinds, each with all replicates."""
    kinds = getattr(model, "predictors_", ["replicates"])
    if len(kinds) == 1 and not kinds[0].startswith("the "):
        return f"{count} {kinds[0]}"
    return f"{count} networks ({' and '.join(kinds)})"


def _small(network: nn.Module) -> nn.Module:
    """The compacted network, which a predictor of one network is already."""
    already = any(isinstance(module, Take) for module in chain(network))
    return network if already else compact(network).network


def _named_inputs(model: Any, names: Sequence[str] | None) -> list[Expression]:
    network = model if isinstance(model, nn.Module) else model.networks[0]
    first: Any = next((module for module in chain(network) if not isinstance(module, nn.Flatten)), None)
    if not hasattr(first, "in_features"):
        raise invalid("model", "formula", "a network of dense layers", type(network).__name__)
    count = int(first.in_features)
    given = [f"x{i}" for i in range(count)] if names is None else list(map(str, names))
    if len(given) != count or len(set(given)) < count:
        raise invalid("names", "formula", f"{count} different names", f"{len(given)}")
    return [Input(name) for name in given]


def _of_columns(columns: Sequence[Column]) -> list[Expression]:
    """The standardized inputs of a table, as expressions of its raw columns."""
    found: list[Expression] = []
    for column in columns:
        if column.kind == "date":
            # Refused when it is used: a network may not need it.
            found += [Apply("date", Input(column.name))] * len(column.inputs)
        elif column.kind == "number":
            own = Input(column.name, column.centre[0], column.ends)
            found.append(_scaled(own, column.centre[0], column.scale[0]))
        elif column.codes:
            found += [_of_code(column, i) for i in range(len(column.codes[0]))]
        elif column.kind == "category":
            found += [_of_level(column, i) for i in range(len(column.levels))]
        if column.gaps and column.kind != "date":
            found.append(_scaled(Missing(column.name), column.centre[-1], column.scale[-1]))
    return found or [Sum(0.0)]


def _scaled(e: Expression, centre: float, scale: float) -> Expression:
    return Sum(-centre / scale, ((1.0 / scale, e),))


def _of_level(column: Column, place: int) -> Expression:
    """A standardized indicator of a level; a missing value is the average, 0."""
    own, none = ((raw - column.centre[place]) / column.scale[place] for raw in (1.0, 0.0))
    level = column.levels[place]
    if column.reference is None:
        return Case(column.name, ((level, own),), none, 0.0)
    return Case(column.name, ((level, own), (column.reference, none)), 0.0, 0.0)


def _of_code(column: Column, place: int) -> Expression:
    """A standardized code of the levels; unknown levels and missing values are the average, 0."""
    scaled = [(own[place] - column.centre[place]) / column.scale[place] for own in column.codes]
    # A level without rows has no code.
    known = [(level, 0.0 if math.isnan(own) else own) for level, own in zip(column.levels, scaled)]
    return Case(column.name, tuple(known), 0.0, 0.0)


class _Builder:
    """Runs a compacted network on expressions and collects its hidden units."""

    def __init__(self) -> None:
        self.units: list[Unit] = []
        self.used: set[str] = set()

    def run(self, network: nn.Module, values: list[Expression]) -> list[Expression]:
        for module in chain(network):
            if isinstance(module, Take):
                values = [values[i] for i in module.index.tolist()]
            elif isinstance(module, nn.Linear):
                values = self._layer(module, values)
            elif isinstance(module, InputSkip):
                values = self._skip(module, values)
            elif type(module) in _FUNCTIONS:
                values = [self._bent(module, value) for value in values]
            elif not isinstance(module, nn.Identity | nn.Flatten):
                expected = "made of dense layers and activations"
                raise invalid("model", "formula", expected, type(module).__name__)
        return values

    def _skip(self, module: InputSkip, x: list[Expression]) -> list[Expression]:
        h = self._layer(module.layers[0], x)
        for layer in module.layers[1:]:
            h = self._layer(layer, [self._bent(module.activation, value) for value in h] + x)
        return h

    def _layer(self, layer: Any, values: list[Expression]) -> list[Expression]:
        weight, bias = layer.weight.detach().double(), layer.bias.detach().double()
        found = []
        for own, row in zip(bias.tolist(), weight):
            used = row.nonzero().flatten().tolist()
            found.append(self._sum(own, [(float(row[i]), values[i]) for i in used]))
        return found

    def _sum(self, constant: float, terms: Sequence[tuple[float, Expression]]) -> Expression:
        found = _sum(constant, terms)
        for _, part in found.terms:
            if isinstance(part, Apply) and part.function == "date":
                expected, advice = "a model of numbers and categories", "Give ages or years as numbers."
                raise invalid("model", "formula", expected, f"the date {Text(8).write(part.of)}", advice)
            if isinstance(part, Input | Missing | Case):
                self.used.add(part.name)
        return found

    def _bent(self, module: nn.Module, value: Expression) -> Expression:
        if isinstance(module, nn.Identity):
            return value
        function, slope = _FUNCTIONS[type(module)], float(getattr(module, "negative_slope", 0.0))
        if getattr(module, "approximate", "none") != "none":
            raise invalid("model", "formula", "one of exact GELUs", str(module))
        if isinstance(value, Sum) and not value.terms:
            return Sum(value_of(function, value.constant, slope))
        unit = Unit(f"h{len(self.units) + 1}", Apply(function, value, slope))
        self.units.append(unit)
        return unit


def _outputs(
    scores: list[list[Expression]], form: Exported | None, names: Sequence[str] | None
) -> dict[str, Expression]:
    """Names and expressions of what a formula gives; several replicates are averaged."""
    count = len(scores[0])
    if form is None:
        given = _output_names(names, count, "output")
        return dict(zip(given, scores[0]))
    head = form.predictor.head
    if head.kind == "gaussian":
        count = head.likelihood.n_targets  # type: ignore[assignment]
        given = _output_names(names, count, "target")
        scale, shift = head.y_std.tolist(), head.y_mean.tolist()
        means = [_mean([own[t] for own in scores]) for t in range(count)]
        return {name: _linear(mean, scale[t], shift[t]) for t, (name, mean) in enumerate(zip(given, means))}
    classes = names if form.classes is None else [str(each) for each in form.classes]
    scores = [[_linear(score, head.scale, 0.0) for score in own] for own in scores]
    found: dict[str, Expression] = {}
    several = len(scores) > 1
    if head.kind == "bernoulli":
        yes = _output_names(classes, 2, "")[1] if classes is not None else "1"
        own = [Unit(_numbered(f"log odds of {yes}", k, several), each[0]) for k, each in enumerate(scores)]
        found |= {unit.name: unit for unit in own}
        return found | {f"P({yes})": _mean([Apply("sigmoid", unit) for unit in own])}
    labels = _output_names(classes, count, "")
    sets = [
        [Unit(_numbered(f"score of {label}", k, several), score) for label, score in zip(labels, each)]
        for k, each in enumerate(scores)
    ]
    found |= {unit.name: unit for own in sets for unit in own}
    for place, label in enumerate(labels):
        found[f"P({label})"] = _mean([Softmax(tuple(own), place) for own in sets])
    return found


def _numbered(name: str, replicate: int, several: bool) -> str:
    return f"{name}, replicate {replicate + 1}" if several else name


def _output_names(names: Sequence[str] | None, count: int, prefix: str) -> list[str]:
    if names is None:
        return [prefix] if count == 1 and prefix else [f"{prefix} {i}".strip() for i in range(count)]
    if len(names) != count:
        raise invalid("outputs", "formula", f"{count} names", f"{len(names)}")
    return [str(name) for name in names]


def _sum(constant: float, terms: Sequence[tuple[float, Expression]]) -> Sum:
    """Σ with sums inside it written out; a term that occurs twice is one."""
    factors: dict[Expression, float] = {}
    for factor, term in terms:
        inner = term if isinstance(term, Sum) else Sum(0.0, ((1.0, term),))
        constant += factor * inner.constant
        for own, part in inner.terms:
            factors[part] = factors.get(part, 0.0) + factor * own
    return Sum(constant, tuple((factor, part) for part, factor in factors.items() if factor))


def _linear(e: Expression, factor: float, shift: float) -> Expression:
    return _sum(shift, [(factor, e)])


def _mean(expressions: Sequence[Expression]) -> Expression:
    if len(expressions) == 1:
        return expressions[0]
    return _sum(0.0, [(1.0 / len(expressions), e) for e in expressions])
