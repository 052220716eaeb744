"""Committed results: what the pages show, what made them, and that the code still recognizes them.

``make verify-results`` runs these; nothing is trained.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from benchmarks import page as performance
from studies.bounds import bound
from studies.estimators import column_choice, defaults, density_choice, previous
from studies.frontier import choose, command, curve, groups
from studies.frontier import report as frontier_report
from studies.image_ood import command as image_ood
from studies.image_ood import report as image_report
from studies.peers import survival, tabular_report, uci
from studies.runner import filled, read_rows
from studies.selection import (
    column_report,
    error_rates,
    fdr_report,
    finemapping,
    finemapping_cost,
    mixtures,
    nonlinear,
    power_report,
    table3_report,
    truth_report,
)
from studies.tables import ablations, cells, densities, lbbnn_schedule
from studies.tables import command as table_command
from studies.tables import report as tables
from studies.tables.paper import logits_of
from studies.uncertainty import report as uncertainty_report
from studies.uncertainty import settings as uncertainty_settings
from studies.uncertainty import starts as uncertainty_starts
from studies.uncertainty import temperature as uncertainty_temperature
from studies.uncertainty.methods import BAYESIAN, METHODS

pytestmark = pytest.mark.results
ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
TABLE3 = ("cs", "lrt", "flow", "lrt_long", "flow_long", "mcmc")


def committed(study: str, name: str | None = None) -> dict:
    return json.loads((RESULTS / study / f"{name or study}.json").read_text(encoding="utf-8"))


def rows_of(study: str) -> list[dict]:
    return read_rows(RESULTS / study / "rows.jsonl")


def page(name: str) -> str:
    return (ROOT / "docs" / "studies" / f"{name}.md").read_text(encoding="utf-8")


# --- pages -------------------------------------------------------------------------------------------


def shown() -> dict[str, tuple[str, str, str]]:
    """Study: its page, the tables that its results make, and the name of the page's part."""
    groups_files = [committed("groups", name) for name in ("digits-fc", "digits-lenet")]
    record = image_ood.read_record(RESULTS / "image_ood")
    assert record is not None
    genes = rows_of("finemapping")
    return {
        "tables": ("paper_tables", tables.markdown(RESULTS), "tables"),
        "ablations": ("ablations", tables.pipes(ablations._HEAD, ablations.rows(RESULTS)), "tables"),
        "densities": ("densities", densities.markdown(committed("densities")["rows"], RESULTS), "tables"),
        "frontier": ("frontier", frontier_report.markdown(RESULTS), "tables"),
        "groups": ("groups", groups.markdown(groups_files), "tables"),
        "defaults": ("defaults", defaults.table(committed("defaults")["rows"]), "defaults"),
        "previous": ("defaults", previous.table(rows_of("previous")), "previous"),
        "column_choice": ("defaults", column_choice.table(committed("column_choice")["rows"]), "columns"),
        "density_choice": ("defaults", density_choice.table(committed("density_choice")["rows"]), "density"),
        "uci": ("uci", uci.table(rows_of("uci")), "uci"),
        "survival": ("survival", survival.table(read_rows(RESULTS / "survival/rows.jsonl")), "survival"),
        "tabular": ("tabular", tabular_report.body(read_rows(RESULTS / "tabular/rows.jsonl")), "tabular"),
        "column_selection": (
            "column_selection",
            column_report.body(read_rows(RESULTS / "column_selection/rows.jsonl")),
            "selection",
        ),
        "mixture": ("mixture", mixtures.table(mixtures.summary(rows_of("mixture"))), "tables"),
        "error_rates": (
            "error_rates",
            error_rates.table(error_rates.summary(sorted(rows_of("error_rates"), key=error_rates._order))),
            "tables",
        ),
        "nonlinear": (
            "nonlinear",
            nonlinear.table(nonlinear.summary(sorted(rows_of("nonlinear"), key=nonlinear._order))),
            "tables",
        ),
        "finemapping": ("finemapping", finemapping.table(finemapping.summary(genes)), "tables"),
        "finemapping pairs": ("finemapping", finemapping.paired(genes), "paired"),
        "finemapping seeds": ("finemapping", finemapping.by_seed(genes), "seeds"),
        "cost": ("finemapping", finemapping_cost.table(rows_of("finemapping_cost")), "cost"),
        "image_ood": ("uncertainty", "\n".join(image_report.markdown(record)), "images"),
    }


def test_pages_show_the_results():
    tried = (RESULTS / "densities/tables.md").read_text(encoding="utf-8")
    assert tried == densities.candidates(RESULTS)
    stale = [
        study for study, (name, body, part) in shown().items() if filled(page(name), body, part) != page(name)
    ]
    assert not stale


def linked() -> dict[str, str]:
    """Study: the tables that its page only links to."""
    record = image_ood.read_record(RESULTS / "image_ood")
    assert record is not None
    return {
        "column_selection": column_report.details(rows_of("column_selection")),
        "frontier": frontier_report.details(RESULTS),
        "image_ood": "\n".join(image_report.details(record)),
        "tabular": tabular_report.details(rows_of("tabular")),
        "uci": uci.details(rows_of("uci")),
    }


def test_linked_tables_show_the_results():
    for study, text in linked().items():
        found = (RESULTS / study / "tables.md").read_text(encoding="utf-8")
        assert found.strip("\n") == text.strip("\n"), study


def test_the_page_of_performance():
    records = performance.read(RESULTS / "bench")
    text = page("performance")
    for kind in performance.KINDS:
        assert filled(text, performance.block(records, kind), kind) == text
    found = (RESULTS / "bench" / "tables.md").read_text(encoding="utf-8")
    assert performance.more(records, RESULTS / "bench") == found


def test_pages_of_selection():
    records = [committed("table3", name) for name in TABLE3]
    assert table3_report.markdown(records) in page("table3")
    assert table3_report.markdown_inputs(records) in page("table3")
    power = committed("selection_power")
    assert power_report.markdown(power["rows"]) in page("selection_power")
    assert power_report.markdown_power(power["rows"], power["nonzero"]) in page("selection_power")
    assert fdr_report.markdown(committed("selection_fdr")["rows"]) in page("selection_fdr")
    truth = committed("selection_truth")
    assert truth_report.markdown_pairs(truth["rows"]) in page("selection_truth")
    for kind in ("gaussian", "bernoulli"):
        assert truth_report.markdown(truth["summary"], kind, "error") in page("selection_truth")
    tables_file = (RESULTS / "selection_truth/tables.md").read_text(encoding="utf-8")
    assert tables_file == truth_report.details(truth["summary"])
    assert max(line["error"] for line in truth["summary"] if line["method"] == "MCMC") < 0.02


def test_the_page_of_uncertainty():
    text = page("uncertainty")
    tables_file = (RESULTS / "uncertainty/tables.md").read_text(encoding="utf-8")
    assert tables_file == "\n".join(uncertainty_report.markdown(committed("uncertainty"))) + "\n"
    record = committed("uncertainty_settings")
    assert uncertainty_settings.page(text, record) == text
    tables_file = (RESULTS / "uncertainty_settings/tables.md").read_text(encoding="utf-8")
    assert tables_file == uncertainty_settings.rate_table(record["rows"]) + "\n"
    assert uncertainty_temperature.page(text, committed("uncertainty_temperature")["rows"]) == text
    assert uncertainty_starts.page(text, committed("uncertainty_starts")["rows"]) == text


# --- what made the results ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", sorted(RESULTS.glob("*/*.json")), ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_results_come_from_a_commit(path):
    content = json.loads(path.read_text(encoding="utf-8"))
    if path.parent.name in ("bench", "across_devices"):
        return
    commit = content.get("provenance", content)["commit"]
    assert all(re.fullmatch(r"[0-9a-f]{40}(\+changes)?", one) for one in commit.split(" + "))


@pytest.mark.parametrize("study", ["table1", "table2"])
def test_the_tables_are_finished(study, tmp_path, monkeypatch, capsys):
    """The default command finds its nine cells with the settings of now and trains nothing."""
    monkeypatch.setattr(cells, "train", None)
    getattr(table_command, study)(["--out", str(ROOT), "--runs", str(tmp_path)])
    assert capsys.readouterr().out.count(": already there\n") == 9


def test_the_frontier_is_finished(tmp_path, monkeypatch, capsys):
    for module in (choose, curve, cells):
        monkeypatch.setattr(module, "train", None)
    common = ["--out", str(ROOT), "--runs", str(tmp_path)]

    def count(*asked: str) -> int:
        command.main([*common, *asked])
        return capsys.readouterr().out.count(": already there\n")

    both, stages = ("--stage", "choose", "final"), ("--stage", "choose", "final", "densities", "targets")
    assert count(*stages, "--datasets", "digits", "--methods", "lrt", "pruned") == 6
    assert count(*both, "--datasets", "digits", "kmnist", "--methods", "flow") == 4
    assert count(*stages, "--datasets", "kmnist", "--methods", "lrt", "pruned") == 6
    assert count(*both, "--datasets", "mnist", "fmnist", "--methods", "lrt") == 4
    images = ("--datasets", "mnist", "fmnist", "kmnist")
    assert count(*both, *images, "--architectures", "lenet", "--methods", "lrt") == 6


# --- what was aimed at -------------------------------------------------------------------------------


def test_the_bound_is_never_above_the_evidence():
    record = committed("bound")
    assert sum(row["above_evidence"] for row in record["rows"]) == 0
    assert [method["name"] for method in record["methods"]] == [method.name for method in bound.METHODS]


def test_table3_meets_its_targets():
    cs, lrt, flow = (committed("table3", name) for name in ("cs", "lrt", "flow"))
    assert flow["tpr"] >= 0.95
    assert flow["fpr"] <= 0.10
    assert abs(lrt["tpr"] - 0.838) <= 0.03
    assert abs(lrt["fpr"] - 0.084) <= 0.02
    assert {len(each["tpr_replicates"]) for each in (cs, lrt, flow)} == {100}


def test_exact_probabilities_keep_their_rate():
    rows = [row for row in committed("selection_fdr")["rows"] if row["scenario"] == "the model's own prior"]
    assert {row["data_sets"] for row in rows} == {200}
    assert all(row["fdr"] <= row["level"] + 2.0 * row["fdr_se"] for row in rows)


@pytest.mark.parametrize("name", defaults.BUNDLED)
def test_defaults_meet_their_aims(name):
    rows = [row for row in committed("defaults")["rows"] if row["data"] == name]
    assert {len(row["score"]) for row in rows} == {15}
    score = {row["method"]: np.mean(row["score"]) for row in rows}
    ours = score.pop(defaults.OURS)
    if name == "diabetes":
        assert ours >= score["ridge regression"] - 0.02
        return
    assert ours >= max(score.values()) - 0.01
    loss = {row["method"]: np.mean(row["log_loss"]) for row in rows}
    assert loss.pop(defaults.OURS) <= min(loss.values()) + 0.02


@pytest.mark.parametrize("stage", ["densities", "targets"])
def test_densities_on_digits_are_reached(stage):
    content = committed("frontier", f"{stage}-digits-fc-lrt")
    assert [block["target"] for block in content["rows"]] == [0.005, 0.01, 0.02, 0.05, 0.10]
    for block in content["rows"]:
        assert all(abs(row["density"] / block["target"] - 1.0) <= 0.1 for row in block["replicates"])


def test_the_uncertainty_study_has_the_chosen_settings():
    record, chosen = committed("uncertainty"), committed("uncertainty_temperature")
    assert record["methods"] == [{**asdict(method), "rates": dict(method.rates)} for method in METHODS]
    assert chosen["chosen"] == uncertainty_temperature.best(chosen["rows"])
    own = {method.key: method.temperature for method in METHODS}
    assert {key: own[key] for key in BAYESIAN} == chosen["chosen"]
    for row in record["rows"]:
        if row["replicate"] == 0 and row["method"] in own and not row["method"].count("_"):
            same = [
                r
                for r in record["rows"]
                if (r["method"], r["per_class"]) == (row["method"], row["per_class"])
            ]
            reached, bayes = (np.mean([r[n] for r in same]) for n in ("train_accuracy", "bayes_accuracy"))
            assert reached >= bayes - 0.03


@pytest.mark.parametrize("place", [("fc", "kmnist"), ("lenet", "kmnist"), ("lenet", "fmnist")])
def test_lbbnns_schedule_is_the_one_the_validation_rows_chose(place):
    """The rule over all candidates of the result files, those with constant rates included."""
    architecture, dataset = place
    rows = []
    for path in (RESULTS / "lbbnn_schedule").glob(f"{dataset}-{architecture}*.json"):
        content = committed("lbbnn_schedule", path.stem)
        rows += [{**row, "steady": bool(content["spec"].get("steady"))} for row in content["rows"]]
    best = rows[lbbnn_schedule.choose(rows, content["most_density"])]
    logits = logits_of(architecture, dataset)
    assert [logits.start.low, logits.start.high] == best["start"]
    assert (logits.rate, logits.steady) == (best["rate"], best["steady"])


def test_models_moved_between_devices_predict_the_same():
    assert committed("across_devices")["same"]
