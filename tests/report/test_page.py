"""The page: what it says, that it says it in words only data could have, and that data stay data."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from report.records import example
from sparsebnn.app.report import drawing, render, words, write
from sparsebnn.app.report.__main__ import main
from sparsebnn.app.report.charts import wilson
from sparsebnn.app.report.record import Edge, parse

NASTY = '</script><script>alert(1)</script><img src=x onerror="alert(2)">\'"&{{ 7*7 }}'


class Elements(HTMLParser):
    """Every element and attribute, and every text outside style and script."""

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


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_every_part_is_available(task):
    page = Elements(render(example(task)))
    headings = [
        "How well it predicts",
        "Can its certainty be trusted?",
        "Which inputs matter",
        "The network that is left",
        "The rows it is most and least sure of",
        "How training went",
        "What this was made from",
    ]
    assert all(heading in page.text for heading in headings)
    assert all(
        name in page.text for name in ("glucose", "gradient boosting", "patients.csv", "Least certain")
    )


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
    record["classes"] = [NASTY, "x"]
    record["settings"][NASTY] = NASTY
    record["baselines"][0]["name"] = NASTY
    record["network"] = {
        "layers": [1, 1], "input_names": [NASTY], "output_names": [NASTY], "edges": [[0, 0, 0, 0.9, 1.0]],
    }  # fmt: skip
    for group in ("certain", "uncertain"):
        record[group] = [{"row": 1, "truth": NASTY, "prediction": NASTY, "values": {NASTY: NASTY}}]
    record["curves"] = [{"epoch": k, NASTY: [1.0 + k]} for k in range(3)]
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


def test_equally_sure_inputs_come_by_effect_and_notes_are_shown():
    record = example()
    for each in record["inputs"]:
        each.update(inclusion=0.99999, selected=True)
    record["notes"] = ["two spellings of <yes>"]
    parsed = parse(record)
    effects = [abs(each.effect.value) for each in words.ranked(parsed.inputs)]
    assert effects == sorted(effects, reverse=True)
    page = Elements(render(record)).text
    first = words.ranked(parsed.inputs)[0].name
    assert f"needs all, with 8.3% of the network’s connections, above all “{first}”" in page
    assert "two spellings of <yes>" in page


def test_a_bare_record_makes_a_page():
    page = Elements(render({"format_version": 1, "task": "classification", "target": "y"}))
    assert "was not measured" in page.text
    assert "was not recorded" in page.text
    assert "The network that is left" not in page.text


def test_missing_numbers_are_dashes():
    record = example()
    record["inputs"][0].update(inclusion=None, effect=float("nan"), stability="often")
    record["metrics"]["average"]["accuracy"] = {"value": float("inf")}
    record["curves"][3]["loss"] = [None, float("nan"), 3.0]
    page = Elements(render(record))
    assert "nan" not in page.text.lower().split()
    assert "inf" not in page.text.lower().split()


@pytest.mark.parametrize(
    "part", ["inputs", "metrics", "calibration", "network", "curves", "certain", "baselines"]
)
def test_a_part_of_the_wrong_shape_is_named(part):
    with pytest.raises(ValueError, match=f"The '{part}' of record.json must be"):
        render({**example(), part: "oops"})


@pytest.mark.parametrize(
    "edge", [[0, 99, 0, 1, 1], [5, 0, 0, 1, 1], [0, 0], "x", [0, None, 0, 1, 1], [0, -1, 0, 1, 1]]
)
def test_edges_outside_the_network_are_refused(edge):
    record = example()
    record["network"]["edges"].append(edge)
    with pytest.raises(ValueError, match=r"The 'edges' of record\.json must be"):
        render(record)


def test_another_version_is_refused():
    message = (
        "The 'format_version' of record.json must be 1. Got 2 instead. "
        "Make the report with the release that fitted the model."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        render({**example(), "format_version": 2})


def test_write_and_its_command(tmp_path, capsys):
    assert main([str(tmp_path)]) == 1
    assert "Make one with: sparsebnn fit" in capsys.readouterr().err
    (tmp_path / "record.json").write_text("{", encoding="utf-8")
    assert main([str(tmp_path)]) == 1
    assert "must be JSON" in capsys.readouterr().err
    (tmp_path / "record.json").write_text(json.dumps(example()), encoding="utf-8")
    assert write(tmp_path) == tmp_path / "report.html"
    first = (tmp_path / "report.html").read_bytes()
    assert main([str(tmp_path), "--out", str(tmp_path / "new" / "page.html")]) == 0
    assert (tmp_path / "new" / "page.html").read_bytes() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "record.json", "report.html"]


def test_ids_and_labels_meet():
    """Every id is used once; every label that is referred to exists; every chart has words."""
    elements = Elements(render(example())).elements
    ids = [attrs["id"] for _, attrs in elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    wanted = " ".join(attrs.get("aria-labelledby", "") for _, attrs in elements).split()
    assert wanted
    assert set(wanted) <= set(ids)
    for tag, attrs in elements:
        if tag == "svg":
            assert (
                attrs.get("aria-hidden") == "true" or attrs.get("aria-label") or attrs.get("aria-labelledby")
            )
        if attrs.get("role") in ("button", "region"):
            assert attrs["aria-label"]
            assert "tabindex" in attrs


def test_the_drawings_are_well_formed():
    for svg in re.findall(r"<svg.*?</svg>", render(example()), re.DOTALL):
        ElementTree.fromstring(svg)


# The sentences


def test_sentences_of_a_classification():
    assert words.sentences(parse(example())) == [
        "The model gets “diabetes” right for 86% of unseen rows (95% interval 84% to 88%): not clearly "
        "different from gradient boosting (87%) and clearly better than majority class (64%).",
        "Of 7 inputs it needs 2, with 8.3% of the network’s connections: “glucose” (towards “diabetic”) "
        "and “age” (away from “diabetic”).",
        "On average it says it is 85% sure and is right 85% of the time, so its certainty can be taken at "
        "its word, as far as these rows can tell.",
    ]


def test_sentences_of_a_regression():
    first, second, third = words.sentences(parse(example("regression")))
    assert first.startswith("The model explains 48% of the variation of “diabetes” in unseen rows")
    assert "“glucose” (pushes it up)" in second
    assert third.startswith("Its 90% intervals contained the truth for 88% of unseen rows")


@pytest.mark.parametrize(
    ("accuracy", "verdict"),
    [([0.3, 0.4, 0.5, 0.6], "surer than it should be"), ([1.0, 1.0, 1.0, 1.0], "too cautious")],
)
def test_bad_calibration_is_said(accuracy, verdict):
    record = example()
    record["calibration"]["accuracy"] = accuracy
    assert verdict in words.sentences(parse(record))[2]


def test_a_worse_model_is_called_worse():
    record = example()
    record["metrics"]["average"]["accuracy"] = {"value": 0.5, "low": 0.48, "high": 0.52}
    assert "clearly worse than gradient boosting" in words.sentences(parse(record))[0]


@pytest.mark.parametrize(("kept", "said"), [(0, "None of the 7"), (1, "it needs one"), (7, "it needs all")])
def test_how_many_inputs(kept, said):
    record = example()
    for place, each in enumerate(record["inputs"]):
        each["selected"] = place < kept
    assert said in words.sentences(parse(record))[1]


@pytest.mark.parametrize(
    ("stability", "edges", "said"),
    [
        (
            0.2,
            4,
            "None of the 7 inputs is clearly needed, though the sparse model uses 7 of them, "
            "with 8.3% of the network’s connections.",
        ),
        (0.0, 0, "None of the 7 inputs is clearly needed: the sparse model is a constant."),
        (None, 0, "None of the 7 inputs is clearly needed."),
        (None, 4, "None of the 7 inputs is clearly needed."),
    ],
)
def test_a_model_is_called_constant_only_where_no_path_is_left(stability, edges, said):
    record = example()
    for each in record["inputs"]:
        each |= {"selected": False, "stability": stability}
    record["network"]["edges"] = record["network"]["edges"][:edges]
    record["network"] |= {"shown": edges, "of": edges}
    assert words.sentences(parse(record))[1] == said


def test_best_is_marked_only_where_it_can_be_told():
    page = render(example())
    assert page.count('class="tag">best<') == 1  # accuracy; every other measure is tied


def test_wilson_holds_the_true_share():
    """The interval is the set of shares p with |share − p| ≤ z √(p(1−p)/n): both ends solve it."""
    for share, rows in ((0.0, 8), (0.3, 20), (1.0, 5)):
        for end in wilson(share, rows):
            if 0 < end < 1:
                assert abs(share - end) == pytest.approx(1.959964 * (end * (1 - end) / rows) ** 0.5, abs=1e-9)


# The network


def test_drawn_edges_are_those_on_paths():
    """Against a search over all paths, one by one."""
    record = parse(example(hidden=(6, 5), keep=0.3, seed=4))
    edges, depth = record.network.edges, len(record.network.layers) - 1
    follow = {}
    for edge in edges:
        follow.setdefault((edge.layer, edge.source), []).append(edge)
    paths = [[edge] for edge in edges if edge.layer == 0]
    for layer in range(1, depth):
        paths = [[*path, more] for path in paths for more in follow.get((layer, path[-1].target), [])]
    assert set(drawing.active(edges, depth)) == {edge for path in paths for edge in path}
    picture = drawing.draw(record)
    drawn = {(line.layer, line.source, line.target) for line in picture.lines}
    assert drawn == {(e.layer, e.source, e.target) for path in paths for e in path}
    for unit in picture.units:
        if unit.kind == "input":
            own = [path for path in paths if path[0].source == unit.index]
            ends = {path[-1].target for path in own}
            assert f": {len(own)} path" in unit.note
            assert f"to {len(ends)} of" in unit.note


def test_a_network_without_paths_is_not_drawn():
    record = parse(
        {**example(), "network": {"layers": [2, 2, 1], "edges": [[0, 0, 0, 1, 1], [1, 1, 0, 1, 1]]}}
    )
    assert drawing.draw(record) is None
    assert "No path of kept connections" in Elements(render(record)).text
    assert drawing.active([Edge(0, 0, 0, 1.0, 1.0)], 1) == [Edge(0, 0, 0, 1.0, 1.0)]


def test_of_many_inputs_the_strongest_are_drawn():
    record = example(names=[f"x{k}" for k in range(200)], hidden=(6,), keep=0.8)
    picture = drawing.draw(parse(record))
    assert (picture.inputs_shown, picture.inputs) == (60, 200)
    assert picture.inputs_active > 150
    assert "the 60 with the largest weights" in Elements(render(record)).text
