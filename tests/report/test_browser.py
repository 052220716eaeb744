"""The page in a real browser: it renders, answers pointer and keyboard, and asks for nothing."""

from __future__ import annotations

import base64
import json
import re

import pytest

from report.browser import Browser, find
from report.records import example
from sparsebnn.app.report import render

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find() is None, reason="no Chromium found (apt-get install chromium)"),
]
NASTY = '<img src=x onerror="document.title=1"><script>document.title=2</script>'
# Text against what lies behind it, by WCAG 2's formula; what is not to be seen is left out.
CONTRAST = """(() => {
  const parse = (c) => (c.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  const poor = [];
  let count = 0;
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || e.closest("script, style, title, desc, .skip, .sr") || !e.getClientRects().length) continue;
    const style = getComputedStyle(e);
    const ink = light(parse(e instanceof SVGElement ? style.fill : style.color)), paper = light(behind(e));
    const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    count += 1;
    if (ratio < 4.5) poor.push([e.tagName, e.textContent.slice(0, 30), ratio]);
  }
  return {poor, count};
})()"""
LIT = """[...document.querySelectorAll('#network .edge.on')].map((e) => e.dataset.edge)"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(find(), tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "report.html"
    path.write_text(render(example(keep=0.4)), encoding="utf-8")
    return path


def reachable(record, source):
    """The kept weights on paths from one input, as 'layer from to': by following every path."""
    edges = [tuple(edge[:3]) for edge in record["network"]["edges"]]
    last = len(record["network"]["layers"]) - 2
    paths, whole = [[e] for e in edges if e[0] == 0 and e[1] == source], []
    for layer in range(last):
        paths = [[*p, e] for p in paths for e in edges if e[0] == layer + 1 and e[1] == p[-1][2]]
    whole = {e for p in paths for e in p}
    return {" ".join(map(str, e)) for e in whole}


def clean(browser, path):
    assert browser.problems == []
    assert browser.requests == [path.resolve().as_uri()]


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1200, 360])
def test_it_renders_and_can_be_read(browser, tmp_path, task, dark, width):
    path = tmp_path / "report.html"
    path.write_text(render(example(task, keep=0.7)), encoding="utf-8")
    browser.open(path, width=width, dark=dark)
    clean(browser, path)
    assert browser.run("document.querySelectorAll('section').length") == 10
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("innerWidth") == width  # a phone widens it when something sticks out
    found = browser.run(CONTRAST)
    assert found["count"] > 150
    assert found["poor"] == []
    paper = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", paper)[:3])) < 150) == dark


CLIPPED = """[...document.querySelectorAll('svg text')].filter((t) => {
  const [, , width, height] = t.ownerSVGElement.getAttribute('viewBox').split(' ').map(Number);
  const box = t.getBBox();
  return box.x < -0.5 || box.y < -0.5 || box.x + box.width > width + 0.5 || box.y + box.height > height + 0.5;
}).map((t) => t.textContent)"""
HARSH = [
    "WWWWWWWW MMMMMMMM a very long name of a column indeed",
    "x" * 90,
    "温度の測定値が非常に長い列の名前です",
    "i" * 60,
]


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("width", [1200, 390])
def test_no_label_is_clipped_and_no_number_has_an_exponent(browser, tmp_path, task, width):
    record = example(task, names=HARSH, keep=0.9, hidden=(30, 20))
    record["network"]["output_names"] = ["WWWWWWWWWWWWWWWWWWWWWWWWWWWWWWW", "y"]
    record["inputs"][0].update(effect=-2.19e-6, effect_low=-3e-9, effect_high=4e-12, gain=1e-7)
    record["metrics"]["average"] |= {"rmse": {"value": 2.5e9, "low": 1e-9, "high": 3.5e11}}
    record["effects"][0] |= {"grid": [-1.5e8, 3e-7, 2.5e8], "name": HARSH[0]}
    if task == "regression":
        record["residuals"] = [[1e9 * k, 1.1e9 * k, 3e8] for k in range(1, 40)]
        record["effects"][0] |= {
            "mean": [[1e7, 2e7, 3e9]],
            "low": [[9e6, 1e7, 2e9]],
            "high": [[2e7, 3e7, 4e9]],
        }
    path = tmp_path / "report.html"
    path.write_text(render(record), encoding="utf-8")
    browser.open(path, width=width)
    clean(browser, path)
    assert browser.run("document.querySelectorAll('svg text').length") > 60
    assert browser.run(CLIPPED) == []
    assert re.findall(r"\d[eE][+−-]?\d+", browser.run("document.body.innerText")) == []
    assert browser.run("innerWidth") == width
    browser.run("document.querySelector('#network text').setAttribute('x', '-40')")
    assert len(browser.run(CLIPPED)) == 1  # the check sees a label that sticks out


def test_the_table_of_columns_needs_no_scrolling_on_a_wide_screen(browser, tmp_path):
    record = example(names=["number_of_customer_service_calls", "total_international_minutes"], keep=0.9)
    path = tmp_path / "report.html"
    path.write_text(render(record), encoding="utf-8")
    browser.open(path, width=1200)
    sizes = browser.run(
        "[...document.querySelectorAll('.scroll')].filter((e) => e.innerText.includes('Stability'))"
        ".map((e) => [e.scrollWidth, e.clientWidth])"
    )
    assert len(sizes) == 1
    assert sizes[0][0] <= sizes[0][1]


def test_the_slider_shows_the_strongest_connections(browser, tmp_path):
    record = example(names=[f"x{k}" for k in range(40)], keep=0.9, hidden=(20,))
    path = tmp_path / "report.html"
    path.write_text(render(record), encoding="utf-8")
    browser.open(path)
    shown = "document.querySelectorAll('#network .edge:not(.weak)').length"
    total = browser.run("document.querySelectorAll('#network .edge').length")
    assert 150 <= browser.run(shown) < total
    slide = (
        "(() => {{ const f = document.getElementById('network-filter'); f.value = {};"
        "f.dispatchEvent(new Event('input')); }})()"
    )
    browser.run(slide.format(30))
    assert browser.run(shown) == 30
    assert browser.run("document.getElementById('network-count').textContent") == f"30 of {total}"
    browser.run(slide.format(total))
    assert browser.run(shown) == total
    before = browser.run("document.getElementById('network').getBoundingClientRect().width")
    browser.run("document.getElementById('network-in').click()")
    assert browser.run("document.getElementById('network').getBoundingClientRect().width") > 1.1 * before
    clean(browser, path)


def test_the_contrast_check_sees_poor_text(browser, page):
    browser.open(page)
    browser.run("document.querySelector('h1').style.color = '#bbb'")
    assert browser.run(CONTRAST)["poor"][0][0] in ("H1", "BDI")


def test_the_pointer_shows_an_inputs_paths(browser, page):
    record = example(keep=0.4)
    browser.open(page)
    assert browser.run(LIT) == []
    inputs = browser.run("[...document.querySelectorAll('.unit.input')].map((u) => u.dataset.unit)")
    assert len(inputs) > 3
    for unit in inputs[:3]:
        browser.move_to(f".unit[data-unit='{unit}'] text")
        assert set(browser.run(LIT)) == reachable(record, int(unit.split("-")[1]))
        note = browser.run(f"document.querySelector(\".unit[data-unit='{unit}']\").dataset.note")
        assert browser.run("document.getElementById('network-said').textContent") == note
    browser.move_to("h1")
    assert browser.run(LIT) == []
    clean(browser, page)


def test_a_click_keeps_the_paths_and_a_second_lets_go(browser, page):
    browser.open(page, width=360)
    browser.move_to(".unit.input text", press=True)
    browser.move_to("h1")
    assert browser.run(LIT)
    assert browser.run("document.querySelector('.unit.input').getAttribute('aria-pressed')") == "true"
    browser.move_to(".unit.input text", press=True)
    browser.run("document.activeElement.blur()")
    browser.move_to("h1")
    assert browser.run(LIT) == []


def test_the_keyboard_does_the_same(browser, page):
    record = example(keep=0.4)
    browser.open(page)
    browser.run("document.querySelector('#network').closest('.scroll').focus()")
    browser.key("Tab", 9)
    unit = browser.run("document.activeElement.dataset.unit")
    assert set(browser.run(LIT)) == reachable(record, int(unit.split("-")[1]))
    browser.key("ArrowDown", 40)
    after = browser.run("document.activeElement.dataset.unit")
    assert after != unit
    assert after.startswith("0-")
    assert set(browser.run(LIT)) == reachable(record, int(after.split("-")[1]))
    browser.key("Enter", 13)
    assert browser.run("document.activeElement.getAttribute('aria-pressed')") == "true"
    browser.key("Escape", 27)
    assert browser.run(LIT) == []
    browser.key("Tab", 9)
    assert browser.run("document.activeElement.classList.contains('output')")
    clean(browser, page)


def test_everything_that_can_be_reached_has_a_name(browser, page):
    """By the browser's own accessibility tree: what a screen reader is told."""
    browser.open(page)
    nodes = browser.send("Accessibility.getFullAXTree")["nodes"]
    named = {"button", "link", "region", "image", "img", "heading", "columnheader", "rowheader"}
    roles = [(n["role"]["value"], n.get("name", {}).get("value", "")) for n in nodes if not n.get("ignored")]
    assert {"heading", "button", "table", "columnheader"} <= {role for role, _ in roles}
    assert [role for role, name in roles if role in named and not name.strip()] == []
    levels = browser.run("[...document.querySelectorAll('h1,h2,h3')].map((h) => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:]))
    assert browser.run("document.documentElement.lang") == "en"


def test_markup_in_the_data_stays_text(browser, tmp_path):
    record = example(names=[NASTY, "b", "c"], keep=1.0)
    record["target"] = NASTY
    record["certain"][0]["values"] = {NASTY: NASTY}
    path = tmp_path / "report.html"
    path.write_text(render(record), encoding="utf-8")
    browser.open(path)
    clean(browser, path)
    assert browser.run("document.title") == f"{NASTY} – sparsebnn report"
    assert browser.run("document.querySelectorAll('img').length") == 0


def test_the_policy_stops_what_would_get_in(browser, page, tmp_path):
    """Were escaping ever to fail, the page still runs no script but its own and loads nothing."""
    path = tmp_path / "forged.html"
    forged = "<script>window.forged = 1</script><img src='http://127.0.0.1:9/x.png'></main>"
    path.write_text(page.read_text(encoding="utf-8").replace("</main>", forged), encoding="utf-8")
    browser.open(path)
    assert browser.run("window.forged") is None
    assert len(browser.problems) >= 2
    assert all("Content Security Policy" in json.dumps(problem) for problem in browser.problems)


def test_it_prints(browser, page):
    browser.open(page, dark=True)
    printed = base64.b64decode(browser.send("Page.printToPDF", printBackground=True)["data"])
    assert printed.startswith(b"%PDF")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 12
    browser.open(page, dark=True, media="print")
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.run("getComputedStyle(document.querySelector('.screen')).display") == "none"
    assert browser.run(CONTRAST)["poor"] == []
    browser.run("window.dispatchEvent(new Event('beforeprint'))")
    assert browser.run("document.querySelectorAll('details:not([open])').length") == 0
