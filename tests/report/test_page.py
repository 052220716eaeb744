"""The page: its parts, its sentences, and that data are shown and never run."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from report.records import example
from sparsebnn.app.report import drawing, render, words
from sparsebnn.app.report.record import Edge, parse

NASTY = '</script><script>alert(1)</script><img src=x onerror="alert(2)">\'"&{{ 7*7 }}'


class Elements(HTMLParser):
    """Every element and attribute, and all text outside style and script."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.texts, self._raw = [], [], None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._raw = tag if tag in ("style", "script") else None

    def handle_endtag(self, tag):
        self._raw = None

    def handle_data(self, data):
        if self._raw is None:
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    @property
    def ids(self):
        return [attrs["id"] for _, attrs in self.elements if "id" in attrs]


PARTS = {
    "how-well", "mistakes", "how-sure", "which-inputs", "stand-ins", "effects", "the-network", "which-rows",
    "training", "made-from",
}  # fmt: skip


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_every_part_is_available(task):
    page = Elements(render(example(task)))
    assert set(page.ids) >= PARTS
    assert all(name in page.text for name in ("glucose", "gradient boosting", "patients.csv"))


def test_a_bare_record_makes_a_page():
    page = Elements(render({"format_version": 1, "task": "classification", "target": "y"}))
    assert PARTS & set(page.ids) == {"made-from"}


def test_it_needs_nothing_from_elsewhere():
    page = render(example())
    outside = [value for _, attrs in Elements(page).elements for key, value in attrs.items()
               if key in ("src", "href", "srcset", "action", "xlink:href")]  # fmt: skip
    assert outside == ["data:,", "#main"]
    assert "url(" not in page
    assert "@import" not in page


def test_names_and_values_are_shown_not_run():
    record = example(names=[NASTY, "b"])
    record["target"] = record["data"]["name"] = NASTY
    record["classes"], record["notes"] = [NASTY, "x"], [NASTY]
    record["settings"][NASTY] = NASTY
    record["baselines"][0]["name"] = NASTY
    record["network"] = {
        "layers": [1, 1], "input_names": [NASTY], "output_names": [NASTY], "edges": [[0, 0, 0, 0.9, 1.0]],
    }  # fmt: skip
    for group in ("certain", "uncertain"):
        record[group] = [{"row": 1, "truth": NASTY, "prediction": NASTY, "values": {NASTY: NASTY}}]
    tame = Elements(render(example(names=["a", "b"])))
    page = Elements(render(record))
    assert [tag for tag, _ in page.elements].count("script") == 1
    assert "img" not in [tag for tag, _ in page.elements]
    names = {key for _, attrs in page.elements for key in attrs}
    assert names <= {key for _, attrs in tame.elements for key in attrs} | {"x1", "x2", "y1", "y2"}
    assert page.text.count("{{ 7*7 }}") > 10


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(names=st.lists(st.text(max_size=12), min_size=1, max_size=5), value=st.text(max_size=12))
def test_any_text_gives_a_page_of_the_same_shape(names, value):
    plain = Elements(render(_small([f"n{k}" for k in range(len(names))], "v")))
    other = render(_small(names, value))
    other.encode("utf-8")
    assert [tag for tag, _ in Elements(other).elements] == [tag for tag, _ in plain.elements]


def _small(names, value):
    record = {"format_version": 1, "task": "regression", "target": value}
    inputs = [{"name": name, "inclusion": 0.9, "selected": True} for name in names]
    values = [[str(k), value] for k in range(len(names))]
    return {**record, "inputs": inputs, "certain": [{"row": 1, "truth": value, "values": dict(values)}]}


def test_missing_numbers_are_dashes():
    record = example()
    record["inputs"][0].update(inclusion=None, effect=float("nan"), stability="often")
    record["metrics"]["average"]["accuracy"] = {"value": float("inf")}
    record["curves"][3]["loss"] = [None, float("nan"), 3.0]
    page = Elements(render(record))
    assert not {"nan", "inf", "none"} & set(page.text.lower().split())


@pytest.mark.parametrize(
    "part",
    [
        "inputs",
        "effects",
        "metrics",
        "calibration",
        "network",
        "curves",
        "certain",
        "baselines",
        "format_version",
        "task",
    ],
)
def test_a_part_of_the_wrong_shape_is_named(part):
    with pytest.raises(ValueError, match=f"The '{part}' of record.json must be"):
        render({**example(), part: "oops"})


def test_sets_of_several_columns_are_shown_with_their_probability():
    record = example()
    text = Elements(render(record)).text
    assert "At least one of these 2 columns matters" in text
    assert re.search(r"age 61% body mass 42% at least one of them 97% purity 0\.88", text)
    assert "“glucose” matters without a stand-in" in text
    # Sets of one column say nothing new.
    record["credible_sets"] = record["credible_sets"][1:]
    assert "stand-ins" not in Elements(render(record)).ids
    for each in record["inputs"]:
        each["selected"] = False
    assert "None of the 7 inputs is clearly needed" in Elements(render(record)).text
    record["credible_sets"] = [{"names": ["age", "insulin"], "inclusion": [0.5, 0.5], "coverage": 0.96}]
    assert "some are: one of “age” and “insulin”." in Elements(render(record)).text


@pytest.mark.parametrize("inclusion", [[0.5], [0.5, None], []])
def test_a_set_without_a_number_for_each_column_is_refused(inclusion):
    sets = [{"names": ["a", "b"], "inclusion": inclusion, "coverage": 0.96, "purity": 0.9}]
    with pytest.raises(ValueError, match="credible_sets"):
        parse({"format_version": 1, "task": "regression", "target": "y", "credible_sets": sets})


def test_a_curve_with_a_gap_is_refused():
    record = example()
    record["effects"][0]["low"][0][1] = None
    with pytest.raises(ValueError, match=r"The 'effects' of record\.json must be"):
        render(record)


@pytest.mark.parametrize(
    "edge", [[0, 99, 0, 1, 1], [5, 0, 0, 1, 1], [0, 0], "x", [0, None, 0, 1, 1], [0, -1, 0, 1, 1]]
)
def test_edges_outside_the_network_are_refused(edge):
    record = example()
    record["network"]["edges"].append(edge)
    with pytest.raises(ValueError, match=r"The 'edges' of record\.json must be"):
        render(record)


def test_ids_and_labels_meet():
    """Every id is used once; every label that is referred to exists; every chart has words and is XML."""
    page = render(example())
    elements, ids = Elements(page).elements, Elements(page).ids
    assert len(ids) == len(set(ids))
    wanted = " ".join(attrs.get("aria-labelledby", "") for _, attrs in elements).split()
    assert wanted
    assert set(wanted) <= set(ids)
    for tag, attrs in elements:
        if tag == "svg":
            assert {"aria-hidden", "aria-label", "aria-labelledby"} & set(attrs)
        if attrs.get("role") in ("button", "region"):
            assert attrs["aria-label"]
            assert "tabindex" in attrs
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(svg)


# The sentences


def sentences(task="classification", **parts):
    return words.sentences(parse({**example(task), **parts}))


def test_sentences_have_the_numbers_of_the_record():
    """The share of rows, its interval, the best and the worst baseline; the inputs; the calibration."""
    found = [re.findall(r"[−\d.]+%|“.*?”", text) for text in sentences()]
    assert found == [
        ["“diabetes”", "86%", "95%", "84%", "88%", "87%", "64%"],
        ["8.3%", "“glucose”", "“diabetic”", "“age”", "“diabetic”"],
        ["85%", "85%"],
    ]
    found = [re.findall(r"[−\d.]+%|“.*?”", text) for text in sentences("regression")]
    assert found[0] == ["48%", "“diabetes”", "95%", "46%", "50%", "49%", "−1%"]
    assert found[2] == ["90%", "88%"]


@pytest.mark.parametrize(
    ("value", "verdicts"),
    [(0.5, ["worse", "worse"]), (0.86, ["different", "better"]), (0.99, ["better"] * 2)],
)
def test_models_without_differences_differ_only_if_their_intervals_are_apart(value, verdicts):
    own = {"average": {"accuracy": {"value": value, "low": value - 0.02, "high": value + 0.02}}}
    others = [{**each, "difference": None} for each in example()["baselines"]]
    assert re.findall(r"clearly (\w+)", sentences(metrics=own, baselines=others)[0]) == verdicts


def test_differences_on_the_same_rows_decide():
    """R² of 0.70 and 0.88 with intervals that overlap: the difference has an interval without 0."""
    own = {"average": {"r2": {"value": 0.7, "low": 0.5, "high": 0.85}}}
    other = {"name": "boosting", "metrics": {"r2": {"value": 0.88, "low": 0.8, "high": 0.93}}}
    assert "not clearly different" in sentences("regression", metrics=own, baselines=[other])[0]
    other["difference"] = {"r2": {"value": -0.18, "low": -0.3, "high": -0.05}}
    assert "clearly worse than boosting" in sentences("regression", metrics=own, baselines=[other])[0]
    page = render({**example("regression"), "metrics": own, "baselines": [other]})
    assert '"tag">worse<' in page


def test_best_needs_a_rival_and_an_achievement():
    """No mark for a measure of our model alone, or for the calibration of a constant prediction."""
    alone = {"average": {"nll": {"value": 5.0, "low": 4.0, "high": 6.0}}}
    assert 'class="tag">best<' not in render({**example("regression"), "metrics": alone, "baselines": []})
    figures = [{"ece": {"value": value, "low": 0.0, "high": 0.1}} for value in (0.03, 0.0)]
    base = [{"name": "majority", "metrics": figures[1]}]
    page = render({**example(), "metrics": {"average": figures[0]}, "baselines": base})
    assert 'class="tag">best<' not in page


@pytest.mark.parametrize("posterior", [True, False])
def test_inclusion_comes_first_only_if_it_is_a_posterior_probability(posterior):
    page = render({**example(), "posterior": posterior})
    heads = [head for head in re.findall(r'<th scope="col"[^>]*><bdi>(.*?)</bdi>', page)]
    place = heads.index("Gain")
    assert (heads[place - 1] == "Inclusion") is posterior
    assert ("tempered" in page) is not posterior


@pytest.mark.parametrize(
    ("accuracy", "verdict"), [([0.3, 0.4, 0.5, 0.6], "overconfident"), ([1.0] * 4, "underconfident")]
)
def test_bad_calibration_is_named(accuracy, verdict):
    assert verdict in sentences(calibration={**example()["calibration"], "accuracy": accuracy})[2]


@pytest.mark.parametrize(("kept", "count"), [(0, "None of the 7"), (1, "1 of 7"), (7, "all 7")])
def test_how_many_inputs(kept, count):
    inputs = [{**each, "selected": place < kept} for place, each in enumerate(example()["inputs"])]
    assert count in sentences(inputs=inputs)[1]


def test_inputs_are_ranked_by_gain_and_without_one_by_inclusion_and_effect():
    inputs = [
        {**each, "gain": gain}
        for each, gain in zip(example()["inputs"], [0.1, 0.5, -0.2, 0.0, 0.3, 0.2, 0.4])
    ]
    gains = [each.gain for each in words.ranked(parse({**example(), "inputs": inputs}).inputs)]
    assert gains == sorted(gains, reverse=True)
    inputs = [{**each, "inclusion": 0.99999, "gain": None} for each in example()["inputs"]]
    effects = [abs(each.effect) for each in words.ranked(parse({**example(), "inputs": inputs}).inputs)]
    assert effects == sorted(effects, reverse=True)


@pytest.mark.parametrize(
    ("stability", "edges", "uses", "constant"),
    [(0.2, 4, True, False), (0.0, 0, False, True), (None, 0, False, False), (None, 4, False, False)],
)
def test_a_model_is_called_constant_only_if_no_path_is_left(stability, edges, uses, constant):
    record = example()
    inputs = [{**each, "selected": False, "stability": stability} for each in record["inputs"]]
    network = {**record["network"], "edges": record["network"]["edges"][:edges], "of": edges}
    text = sentences(inputs=inputs, network=network, credible_sets=[])[1]
    assert ("uses 7" in text, "constant" in text) == (uses, constant)


def test_best_is_marked_only_where_values_differ():
    assert render(example()).count('class="tag">best<') == 1  # accuracy; the other measures are tied


# The network


def test_drawn_edges_are_those_on_paths():
    """Compared with a search over all paths, one by one."""
    record = parse(example(hidden=(6, 5), keep=0.3, seed=4))
    edges, depth = record.network.edges, len(record.network.layers) - 1
    follow = {}
    for edge in edges:
        follow.setdefault((edge.layer, edge.source), []).append(edge)
    paths = [[edge] for edge in edges if edge.layer == 0]
    for layer in range(1, depth):
        paths = [[*path, more] for path in paths for more in follow.get((layer, path[-1].target), [])]
    on_paths = {edge for path in paths for edge in path}
    assert set(drawing.active(edges, depth)) == on_paths
    picture = drawing.draw(record)
    assert {line.edge for line in picture.lines} == on_paths
    for unit in picture.units:
        if unit.kind == "input" and not unit.absent:
            own = [path for path in paths if path[0].source == unit.index]
            ends = {path[-1].target for path in own}
            assert f": {len(own)} path" in unit.note
            assert f"to {len(ends)} of" in unit.note


def test_a_network_without_paths_is_not_drawn():
    record = {**example(), "network": {"layers": [2, 2, 1], "edges": [[0, 0, 0, 1, 1], [1, 1, 0, 1, 1]]}}
    assert drawing.draw(parse(record)) is None
    page = Elements(render(record))
    assert "the-network" in page.ids
    assert "network" not in page.ids
    assert drawing.active([Edge(0, 0, 0, 1.0, 1.0)], 1) == [Edge(0, 0, 0, 1.0, 1.0)]


def test_of_many_inputs_the_strongest_are_drawn():
    picture = drawing.draw(parse(example(names=[f"x{k}" for k in range(200)], hidden=(6,), keep=0.8)))
    assert (picture.inputs_shown, picture.inputs) == (60, 200)
    assert picture.inputs_active > 150


def test_columns_in_use_are_always_drawn():
    """Also those that the replicate drawn does not reach, and those whose paths are weak."""
    record = example(names=[f"x{k}" for k in range(120)], hidden=(20,), keep=0.6)
    for each in record["inputs"]:
        each["selected"] = each["name"] in ("x3", "x77", "x119")
    record["network"]["edges"] = [e for e in record["network"]["edges"] if e[0] or e[1] != 77]
    for edge in record["network"]["edges"]:
        edge[4] = 1e-3 if edge[0] == 0 and edge[1] == 3 else edge[4]
    picture = drawing.draw(parse(record))
    units = {unit.label: unit for unit in picture.units if unit.kind == "input"}
    assert {"x3", "x77", "x119"} <= set(units)
    assert (units["x77"].absent, units["x3"].absent) == (True, False)
    visible = {line.edge.source for line in picture.lines if line.edge.layer == 0 and not line.weak}
    assert {3, 119} <= visible


def test_visible_lines_form_whole_paths():
    """For every number of lines, each lies on a path of visible lines."""
    picture = drawing.draw(parse(example(names=[f"x{k}" for k in range(50)], hidden=(12, 9), keep=0.7)))
    assert sum(not line.weak for line in picture.lines) < len(picture.lines)
    strengths = drawing.strengths(
        [line.edge for line in picture.lines], {line.edge: abs(line.edge.weight) for line in picture.lines}
    )
    for least in sorted(strengths.values())[:: len(strengths) // 7]:
        kept = [edge for edge, strength in strengths.items() if strength >= least]
        assert set(drawing.active(kept, 3)) == set(kept)
