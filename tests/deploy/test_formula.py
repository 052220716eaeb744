"""Formulas compute what the median model does: text, LaTeX, SymPy and SQL are evaluated."""

from __future__ import annotations

import math
import re
import sqlite3

import numpy as np
import pandas as pd
import pytest
import sympy
import torch

import sparsebnn
from contracts.members import generator
from sparsebnn.checks import InvalidInput
from sparsebnn.deploy import formula
from sparsebnn.deploy.expressions import Input, Latex, Sql, Sum, Text, Unit, sympy_of
from sparsebnn.estimators import SparseBNNClassifier, SparseBNNRegressor
from sparsebnn.likelihoods import Bernoulli, Categorical, Gaussian
from sparsebnn.nn.compaction import compact, median_weights

CLOSE = 1e-5


def small(sizes, seed, share=0.35, **options):
    """A network of a few dozen weights."""
    network = sparsebnn.mlp(sizes, **options)
    g = generator(seed)
    with torch.no_grad():
        for name, p in network.named_parameters():
            if name.endswith("inclusion_logit"):
                p.copy_(torch.where(torch.rand(p.shape, generator=g) < share, 4.0, -4.0))
            elif name.endswith(".mean"):
                p.copy_(torch.randn(p.shape, generator=g))
    return network.eval()


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


FUNCTIONS = {
    "relu": lambda x: max(0.0, x),
    "tanh": math.tanh,
    "sigmoid": sigmoid,
    "exp": math.exp,
    "clip": lambda x, low, high: min(max(x, low), high),
    "pick": lambda x, numbers, other, missing: missing if x is None else numbers.get(x, other),
}


def by_text(text, row):
    """Each line in turn; names in backquotes are looked up as they are."""
    known, lines = dict(row), text.splitlines()
    if lines[-1].startswith("if missing: "):
        for pair in lines.pop().removeprefix("if missing: ").split(", "):
            name, _, value = pair.rpartition(" = ")
            if known[name.strip("`")] is None:
                known[name.strip("`")] = float(value)
    found = {}
    for line in lines:
        left, _, right = line.partition(" = ")
        code = re.sub(r"missing\(`?([^`)]*)`?\)", lambda m: str(float(row[m[1]] is None)), right)
        code = re.sub(r"`([^`]*)`", lambda m: f"_known[{m[1]!r}]", code)
        found[left] = known[left] = eval(code, {**FUNCTIONS, **known, "_known": known})
    return found


BRACED = r"\{((?:[^{}]|\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})*)\}"


def by_latex(text, row):
    """A reader of the LaTeX that formulas of numbers use."""
    known = dict(row)
    found = {}

    def name(m):
        return f"_known[{m[1].replace('~', ' ').replace(chr(92), '')!r}]"

    for line in text.splitlines()[1:-1]:
        left, _, right = line.removesuffix(r" \\").partition(" &= ")
        code = right
        while r"\frac" in code:
            code = re.sub(rf"\\frac{BRACED}{BRACED}", r"((\1)/(\2))", code)
        code = re.sub(r"e\^\{((?:[^{}]|\{[^{}]*\})*)\}", r"exp(\1)", code)
        code = re.sub(r" \\cdot 10\^\{(-?\d+)\}", r"*10**(\1)", code)
        code = re.sub(r"\\mathrm\{((?:[^{}\\]|\\.)*)\}", name, code).replace(r" \, ", "*")
        code = re.sub(r"h_\{(\d+)\}", r"_known['h\1']", code)
        code = code.replace(r"\left", "").replace(r"\right", "")
        code = code.replace(r"\max", "max").replace(r"\min", "min")
        code = code.replace(r"\tanh", "tanh").replace(r"\sigma", "sigmoid")
        label = re.sub(r"h_\{(\d+)\}", r"h\1", left)
        label = re.sub(r"\\mathrm\{(.*)\}", r"\1", label).replace("~", " ").replace("\\", "")
        found[label] = known[label] = eval(code, {**FUNCTIONS, "_known": known})
    return found


def by_sympy(expressions, row):
    values = {sympy.Symbol(name, real=True): value for name, value in row.items()}
    return {name: float(sympy.sympify(e).xreplace(values).evalf()) for name, e in expressions.items()}


def by_sqlite(expressions, frame):
    with sqlite3.connect(":memory:") as base:
        frame.to_sql("rows", base, index=False)
        found = base.execute(f"SELECT {', '.join(expressions.values())} FROM rows").fetchall()
    return [dict(zip(expressions, each)) for each in found]


def wanted(network, form, x):
    y = compact(network).network(x).detach()
    if isinstance(form, Gaussian):
        return {f"target {i}" if y.shape[1] > 1 else "target": y[:, i] for i in range(y.shape[1])}
    if isinstance(form, Bernoulli):
        return {"log odds of 1": y[:, 0], "P(1)": torch.sigmoid(y[:, 0])}
    probs = torch.softmax(y, 1)
    scores = {f"score of {c}": y[:, c] for c in range(y.shape[1])}
    return {**scores, **{f"P({c})": probs[:, c] for c in range(y.shape[1])}}


FORMS = [lambda: Categorical(3), Bernoulli, lambda: Gaussian(1, std=0.3), lambda: Gaussian(2, std=0.3)]


@pytest.mark.parametrize("seed", range(54))
def test_all_four_forms(seed):
    form = FORMS[seed % 4]()
    outputs = {0: 3, 1: 1, 2: 1, 3: 2}[seed % 4]
    sizes = [4, 3, outputs] if seed % 3 else [3, 3, 2, outputs]
    activation = ("relu", "sigmoid", "tanh")[seed // 2 % 3]
    network = small(sizes, seed, input_skip=seed % 5 < 3, activation=activation)
    x = torch.randn(4, sizes[0], generator=generator(seed))
    names = ["age", "dose", "body mass", "x_3"][: sizes[0]]
    found = formula(network, names=names, likelihood=form)
    layers = [layer for _, layer in sparsebnn.nn.bayesian_layers(network)]
    included = sum(int((median_weights(layer)[0] != 0).sum()) for layer in layers)
    assert found.n_weights == compact(network).nonzero <= included
    goal = wanted(network, form, x)
    frame = pd.DataFrame(x.numpy(), columns=names)
    text, latex, symbols = found.text(), found.latex(), found.sympy()
    in_sql = by_sqlite(found.sql(), frame)
    for i, row in enumerate(frame.to_dict("records")):
        for values in (by_text(text, row), by_latex(latex, row), by_sympy(symbols, row), in_sql[i]):
            for name, value in goal.items():
                assert values[name] == pytest.approx(float(value[i]), abs=CLOSE, rel=CLOSE)


RANDOM = np.random.default_rng(0)
ROWS = 160
TABLE = pd.DataFrame(
    {
        "size of it": RANDOM.normal(2000.0, 30.0, ROWS),
        "kind": RANDOM.choice(["flat", "it's a house", "hut"], ROWS),
        "new": RANDOM.choice(["yes", "no"], ROWS),
        "height": RANDOM.normal(0.0, 1.0, ROWS),
    }
)
TABLE.loc[RANDOM.random(ROWS) < 0.2, "height"] = None
TABLE.loc[RANDOM.random(ROWS) < 0.2, "kind"] = None
PRICE = (
    0.05 * (TABLE["size of it"] - 2000)
    + 2.0 * (TABLE["kind"] == "hut")
    + 3.0 * TABLE["height"].isna()
    + 1.5 * (TABLE["new"] == "yes")
).to_numpy()


@pytest.fixture(scope="module", params=["two", "three", "numbers"])
def fitted(request):
    options = {"replicates": 1, "epochs": 40, "random_state": 0, "hidden": (6,), "target_density": 0.3}
    if request.param == "numbers":
        return SparseBNNRegressor(**options).fit(TABLE, PRICE)
    ends = [0.5, np.inf] if request.param == "two" else [0.3, 0.7, np.inf]
    labels = np.array(["low", "mid", "high"])[np.searchsorted(np.quantile(PRICE, ends[:-1]), PRICE)]
    return SparseBNNClassifier(**options).fit(TABLE, labels)


def predicted(model, rows):
    """What the median models of an estimator predict at their posterior means, by output."""
    x = torch.from_numpy(model._encoder.transform(sparsebnn.estimators.Table.of(rows)))
    with torch.no_grad():
        outputs = torch.stack([compact(network).network(x) for network in model._ensemble.doubled()])
    if hasattr(model, "classes_"):
        outputs = model.logit_scale_ * outputs
        yes = torch.sigmoid(outputs)
        probs = torch.cat([1 - yes, yes], 2) if outputs.shape[2] == 1 else torch.softmax(outputs, 2)
        return {f"P({name})": probs.mean(0)[:, k] for k, name in enumerate(model.classes_)}
    means = outputs.mean(0) * torch.from_numpy(model._y_std) + torch.from_numpy(model._y_mean)
    names = [f"target {t}" for t in range(means.shape[1])] if means.shape[1] > 1 else ["target"]
    return {name: means[:, t] for t, name in enumerate(names)}


def test_raw_columns_of_an_estimator(fitted):
    """Standardization, levels, unknown levels and missing values are in the formula."""
    rows = TABLE[:25].copy()
    rows.loc[0, "kind"], rows.loc[1, "new"], rows.loc[2, "new"] = "castle", "maybe", None
    rows.loc[3, "size of it"] = None
    rows.loc[4:5, "size of it"] = [-1e4, 1e4]  # outside the training range
    found = formula(fitted, most=200)
    goal = predicted(fitted, rows)
    in_sql = by_sqlite(found.sql(), rows)
    text = found.text(12)
    for i, row in enumerate(rows.astype(object).where(rows.notna(), None).to_dict("records")):
        symbols = dict(row)
        for name, column in zip(rows, fitted._encoder.columns):
            symbols[f"{name}_missing"] = float(row[name] is None)
            levels = (*column.levels, column.reference)
            symbols |= {f"{name}={level}": float(row[name] == level) for level in levels}
            if column.kind == "number" and row[name] is None:
                symbols[name] = found.fills.get(name, 0.0)
        numbers = {k: v for k, v in symbols.items() if isinstance(v, float)}
        for values in (by_text(text, row), in_sql[i], by_sympy(found.sympy(), numbers)):
            for name, value in goal.items():
                if name in values:
                    assert values[name] == pytest.approx(float(value[i]), abs=2e-5, rel=2e-5)
        assert set(goal) & set(in_sql[i])


@pytest.mark.parametrize("replicates", [1, 2, 3])
@pytest.mark.parametrize("kind", ["one target", "two targets", "two classes", "three classes"])
def test_replicates_of_an_estimator(kind, replicates):
    x = pd.DataFrame(np.random.default_rng(1).normal(size=(120, 3)), columns=["age", "dose", "x_3"])
    signal = 40.0 * x["age"] * (x["dose"] > 0.0) + 100.0
    options = {"epochs": 30, "random_state": 0, "hidden": (4,), "target_density": 0.5}
    if kind.endswith("classes"):
        ends = [1.0 / 2.0] if kind.startswith("two") else [1.0 / 3.0, 2.0 / 3.0]
        y = np.array(["low", "mid", "high"])[np.searchsorted(np.quantile(signal, ends), signal)]
        model = SparseBNNClassifier(replicates=replicates, **options).fit(x, y)
    else:
        y = signal if kind.startswith("one") else np.stack([signal, -0.1 * x["dose"]], 1)
        model = SparseBNNRegressor(replicates=replicates, **options).fit(x, y)
    assert len(model.networks_) == replicates
    found, rows = formula(model, most=200), x[:5].copy()
    rows.iloc[0] = [1e3, -1e3, 50.0]  # outside the training range
    goal, text, latex, symbols = predicted(model, rows), found.text(), found.latex(), found.sympy()
    in_sql = by_sqlite(found.sql(), rows)
    for i, row in enumerate(rows.to_dict("records")):
        for values in (by_text(text, row), by_latex(latex, row), by_sympy(symbols, row), in_sql[i]):
            shown = set(goal) & set(values)
            assert shown
            for name in shown:
                assert values[name] == pytest.approx(float(goal[name][i]), abs=2e-5, rel=2e-5)


def test_sums_in_sums_have_brackets():
    a, b = Input("a"), Input("b")
    inner = Sum(0.5, ((3.0, a), (-1.0, b)))
    e = Sum(1.0, ((-2.0, inner), (1.0, Unit("u", Sum(-1.0, ((1.0, a),)))), (4.0, Sum(-2.0)), (0.5, Sum(0.0))))
    row = {"a": 0.7, "b": -1.3}
    u = 0.7 - 1.0
    value = 1.0 - 2.0 * (0.5 + 3.0 * 0.7 + 1.3) + u - 8.0
    latex = f"\n\\mathrm{{e}} &= {Latex(8).write(e)}\n"
    assert by_text(f"e = {Text(8).write(e)}", row | {"u": u})["e"] == pytest.approx(value)
    assert by_latex(latex + "end", row | {"u": u})["e"] == pytest.approx(value)
    assert by_sqlite({"e": Sql("sqlite").write(e)}, pd.DataFrame([row]))[0]["e"] == pytest.approx(value)
    assert by_sympy({"e": sympy_of(e)}, row)["e"] == pytest.approx(value)


def test_limits_of_the_training_range():
    """Beyond them a number counts as their end, in a prediction and in a formula."""
    x = pd.DataFrame({"a": np.linspace(0.0, 1.0, 101)})
    options = {"replicates": 1, "epochs": 60, "random_state": 0, "hidden": ()}
    model = SparseBNNRegressor(**options).fit(x, 3.0 * x["a"])
    rows = pd.DataFrame({"a": [3.0, -2.0, 0.4, 300.0]})
    found = [row["target"] for row in by_sqlite(formula(model).sql(), rows)]
    assert found == pytest.approx(predicted(model, rows)["target"].tolist(), abs=CLOSE)
    assert found == pytest.approx(model.predict(rows, model="median").tolist(), abs=0.2)
    assert found[0] == found[3] < 4.0
    assert found[1] > -1.0


@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_levels_coded_by_the_target(kind):
    random = np.random.default_rng(2)
    place = random.permutation(np.arange(400) % 40)
    table = pd.DataFrame({"town": [f"t'{k}" for k in place], "size": random.normal(size=400)})
    signal = 0.2 * place + table["size"]
    table.loc[random.random(400) < 0.1, "town"] = None
    options = {"replicates": 2, "epochs": 40, "random_state": 0, "hidden": (4,), "target_density": 0.6}
    if kind == "numbers":
        model = SparseBNNRegressor(**options).fit(table, signal)
    else:
        model = SparseBNNClassifier(**options).fit(table, np.digitize(signal, [2.5, 5.0]))
    (column,) = (column for column in model._encoder.columns if column.name == "town")
    assert np.shape(column.codes) == (40, 1 if kind == "numbers" else 3)
    rows = table[:30].astype({"town": object})
    rows.loc[0, "town"], rows.loc[1, "town"] = "elsewhere", None
    found, goal = formula(model, most=200), predicted(model, rows)
    in_sql, text, symbols = by_sqlite(found.sql(), rows), found.text(12), found.sympy()
    for i, row in enumerate(rows.where(rows.notna(), None).to_dict("records")):
        known = {f"town={level}": float(row["town"] == level) for level in column.levels}
        known |= {"size": row["size"], "town_missing": float(row["town"] is None)}
        for values in (in_sql[i], by_text(text, row), by_sympy(symbols, known) if i < 4 else in_sql[i]):
            shown = set(goal) & set(values)
            assert shown
            for name in shown:
                assert values[name] == pytest.approx(float(goal[name][i]), abs=2e-5, rel=2e-5)
    assert len({str(row) for row in in_sql}) > 20


def test_replicates_are_averaged():
    x, y = torch.randn(60, 2, generator=generator(0)), torch.arange(60) % 2
    settings = sparsebnn.Settings(epochs=2)
    options = {"settings": settings, "replicates": 2, "progress": False, "likelihood": "bernoulli"}
    run = sparsebnn.train(sparsebnn.mlp([2, 2, 1]), (x, y), **options)
    probs = torch.stack([torch.sigmoid(compact(n).network(x[:3])) for n in run.networks]).mean(0).detach()
    found = by_sqlite(formula(run, most=200).sql(), pd.DataFrame(x[:3].numpy(), columns=["x0", "x1"]))
    assert [row["P(1)"] for row in found] == pytest.approx(probs[:, 0].tolist(), abs=CLOSE)


def test_a_refusal_names_the_networks_that_predict():
    """Of two kinds there are twice as many networks as replicates."""
    x = np.random.default_rng(0).normal(size=(200, 3))
    options = {"replicates": 2, "epochs": 40, "random_state": 0, "hidden": (10,)}
    model = SparseBNNRegressor(**options).fit(x, np.sin(2.0 * x[:, 0]) * x[:, 1])
    assert len(model.predictors_) == 2
    with pytest.raises(InvalidInput, match=r"in 4 networks \(\w+ networks and \w+ networks\) instead"):
        formula(model)
    model = SparseBNNRegressor(target_density=0.9, **options).fit(x, x[:, 0])
    with pytest.raises(InvalidInput, match="in 2 networks of the target density instead"):
        formula(model, most=1)


def test_refusals():
    network = small([20, 30, 1], 0, share=1.0)
    with pytest.raises(InvalidInput, match=r"at most 60 active weights. Got one of 630 .*target_density"):
        formula(network)
    with pytest.raises(InvalidInput, match="'names' of formula"):
        formula(small([3, 1], 0), names=["a"])
    with pytest.raises(InvalidInput, match="'model' of formula"):
        formula(sparsebnn.lenet())
    dated = pd.DataFrame({"when": pd.date_range("2020-01-01", periods=60)})
    options = {"replicates": 1, "epochs": 3, "random_state": 0, "hidden": ()}
    model = SparseBNNRegressor(**options).fit(dated, np.arange(60.0))
    with pytest.raises(InvalidInput, match="the date when"):
        formula(model)
    with pytest.raises(InvalidInput, match="'dialect' of a formula in SQL"):
        formula(small([3, 1], 0)).sql("oracle")
