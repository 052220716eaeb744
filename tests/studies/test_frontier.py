"""The frontier in its small version: rows, rule, both posteriors, densities, tables."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from sparsebnn import metrics
from sparsebnn.checks import InvalidInput
from sparsebnn.inference.calibration import Correction, correction
from sparsebnn.io.data import load
from sparsebnn.likelihoods import Categorical
from sparsebnn.nn.description import density
from sparsebnn.training import train
from studies.frontier import choose, command, curve, plan, report, stored
from studies.frontier.plan import Candidate
from studies.runner import read_rows
from studies.tables import evaluation
from studies.tables import report as tables

MODELS = ("average", "median")
MEASURES = [f"{n}_{m}" for n in ("accuracy", "nll", "ece") for m in MODELS]


def words(folder: Path, *more: str) -> list[str]:
    own = ["--quick", "--device", "cpu", "--quiet", "--out", str(folder), "--runs", str(folder / "runs")]
    return [*own, "--draws", "3", "--methods", "lrt", "pruned", "--epochs", "6", "--seeds", "1", *more]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """All stages of one small cell."""
    made = tmp_path_factory.mktemp("frontier")
    command.main(words(made))
    return made


def result(folder: Path, stage: str, method: str = "lrt") -> dict:
    found = stored.read(folder / "results", stage, "digits", "fc", method)
    assert found is not None
    return found


def test_the_choice_measures_both_posteriors_on_validation_rows(folder):
    content = result(folder, "choose")
    tried = {(row["cut"], row["average_of"]) for row in content["rows"]}
    assert tried == {(c, s) for c in ("late", "phased") for s in ("free", "refitted")}
    assert set(content["chosen"]) == {field.name for field in fields(Candidate)}
    for row in content["rows"]:
        assert row["density"] == pytest.approx(0.99 * 0.05, abs=1e-3)
        for name in MEASURES:
            assert row[name] == pytest.approx(np.mean([one[name] for one in row["replicates"]]), rel=1e-5)
        # A share of 300 rows: what was measured is the validation part.
        right = 300 * row["replicates"][0]["accuracy_median"]
        assert right == pytest.approx(round(right), abs=1e-3)
        for model in MODELS:  # corrected by what the same rows chose
            assert row[f"nll_{model}"] <= row[f"nll_{model}_plain"] + 1e-9
    free, refitted = content["rows"][:2]
    assert free["accuracy_average_refitted"] == refitted["accuracy_average"]
    assert free["accuracy_average"] == refitted["accuracy_average_free"]


def test_an_interrupted_choice_continues(folder, tmp_path, monkeypatch):
    """Stopped in the second program: the first is not trained again, and the rows are the same."""
    real, trained = choose._program, []

    def interrupted(given, setup, program, label):
        trained.append(program.cut)
        if len(trained) == 2:
            raise KeyboardInterrupt
        return real(given, setup, program, label)

    monkeypatch.setattr(choose, "_program", interrupted)
    argv = [*words(tmp_path, "--stage", "choose"), "--methods", "lrt"]
    with pytest.raises(KeyboardInterrupt):
        command.main(argv)
    command.main(argv)
    assert trained == ["late", "phased", "phased"]
    ours, theirs = (result(where, "choose") for where in (tmp_path, folder))
    assert ours["chosen"] == theirs["chosen"]
    for one, other in zip(ours["rows"], theirs["rows"], strict=True):
        assert {name: one[name] for name in MEASURES} == {name: other[name] for name in MEASURES}


def test_finished_stages_are_not_run_again(folder, monkeypatch, capsys):
    before = read_rows(folder / "results/frontier/rows.jsonl")
    monkeypatch.setattr(choose, "train", None)
    monkeypatch.setattr(curve, "train", None)
    command.main(words(folder, "--stage", "choose", "final", "densities", "targets"))
    assert capsys.readouterr().out.count("already there") == 6
    assert read_rows(folder / "results/frontier/rows.jsonl") == before


def test_the_test_rows_are_corrected_by_what_was_chosen(folder):
    content, choice = result(folder, "final"), result(folder, "choose")["chosen"]
    for row in content["replicates"]:
        for model in MODELS:
            for name in ("sharpness", "doubt"):
                assert row[f"{name}_{model}"] == pytest.approx(choice[f"{name}_{model}"], rel=1e-4)
            assert row[f"nll_{model}"] != row[f"nll_{model}_plain"]


def test_corrections_are_applied_to_probabilities():
    data, made = load("digits"), plan.cell_of("fc", "lrt", "digits", quick=True)
    network, rest = made.network(), (made, 3, 1)
    x, y = data.x_test[:50], data.y_test[:50]
    p = evaluation.probs(network, x, made, "median", 3, 1)
    row = evaluation.evaluate(network, x, y, *rest, {"median": Correction(2.0, 0.1)})
    by_hand = 0.9 * p**2 / (p**2).sum(-1, keepdim=True) + 0.01
    assert row["nll_median"] == pytest.approx(metrics.nll(by_hand, y), rel=1e-6)
    assert row["nll_median_plain"] == metrics.nll(p, y)
    assert evaluation.evaluate(network, x, y, *rest)["nll_median"] == row["nll_median_plain"]


def test_a_candidates_seeds_choose_one_correction_together():
    random = torch.Generator().manual_seed(0)
    y = torch.randint(3, (40,), generator=random)

    def said() -> plan.Outcome:
        p = {model: torch.softmax(torch.randn(40, 3, generator=random), -1) for model in MODELS}
        return plan.Outcome(torch.nn.Identity(), p)

    found = [{"free": said(), "refitted": said()} for _ in range(2)]
    made = plan.fitted(found, y)
    for state in ("free", "refitted"):
        for model in MODELS:
            together = torch.cat([found[0][state].probs[model], found[1][state].probs[model]])
            assert made[state][model] == correction(together, torch.cat([y, y]))


@pytest.mark.parametrize("cut", ["late", "gradual", "phased"])
def test_both_posteriors_are_what_they_are_called(cut):
    """Averaging is measured before the refit, the median model after it: against direct evaluations."""
    data = load("digits")
    made = plan.cell_of("fc", "lrt", "digits", quick=True, epochs=4)
    made = plan.with_candidate(made, Candidate(0.1, 1e-2, 3e-2, 0.25, cut), 0.1)
    before, *cutting = plan.watchers(cut, 0.1)
    run = train(
        made.network(),
        (data.x_train, data.y_train),
        likelihood=Categorical(10),
        settings=made.settings,
        replicates=2,
        device="cpu",
        callbacks=[before, *cutting],
        progress=False,
    )
    row = plan.measured(plan.outcomes(run, before, 1, data.x_test, made, 3), data.y_test)
    own = plan.of_state(row, "free")
    free = evaluation.evaluate(before.networks[1], data.x_test, data.y_test, made, 3, 1)
    refitted = evaluation.evaluate(run.networks[1], data.x_test, data.y_test, made, 3, 1)
    for name in ("accuracy", "nll", "ece", "brier"):
        assert own[f"{name}_average"] == free[f"{name}_average"]
        assert own[f"{name}_median"] == refitted[f"{name}_median"]
        assert own[f"{name}_average_refitted"] == refitted[f"{name}_average"]
        assert own[f"{name}_median_free"] == free[f"{name}_median"]
    assert own["density"] == density(run.networks[1]).overall == pytest.approx(0.1, abs=1e-3)
    # The other two leave the posterior that is averaged alone; the controller has brought it down.
    assert own["density_free"] == (pytest.approx(0.1, rel=0.5) if cut == "gradual" else 1.0)


def test_curves_reach_their_targets(folder):
    for method in ("lrt", "pruned"):
        content = result(folder, "densities", method)
        assert [block["target"] for block in content["rows"]] == [0.02, 0.1]
        for block in content["rows"]:
            assert len(block["replicates"]) == 2
            for row in block["replicates"]:
                assert row["density"] == pytest.approx(block["target"], rel=0.1)
    assert all(row["accuracy_dense"] > 0.6 for row in block["replicates"])
    for block in result(folder, "targets")["rows"]:  # six epochs: the controller has had three to get there
        assert all(row["density"] == pytest.approx(block["target"], rel=0.5) for row in block["replicates"])


def test_pruning_gets_as_many_steps_as_ours(folder):
    ours = result(folder, "densities")["settings"]["settings"]
    theirs = result(folder, "densities", "pruned")["settings"]
    assert theirs["dense"]["epochs"] + theirs["refit"]["epochs"] == ours["epochs"]
    assert theirs["batch_size"] == ours["batch_size"]
    assert theirs["dense"]["learning_rate"] == result(folder, "choose", "pruned")["chosen"]["rate"]


@pytest.mark.parametrize("method", ["lrt", "pruned"])
def test_seeds_of_a_curve_do_not_depend_on_the_others(folder, method):
    found = {}
    for seeds in ("3,5", "3-5"):
        argv = words(folder, "--targets", "0.1", "--replicates", seeds)
        asked = curve.plan(command._arguments(argv), "digits", "fc", method)
        run = curve._pruned if method == "pruned" else curve._ours
        found[seeds] = run(command._arguments(argv), load("digits"), asked)[0]
    wanted = [row["nll_median"] for row in found["3-5"] if row["seed"] != 4]
    assert [row["seed"] for row in found["3,5"]] == [3, 5]
    assert [row["nll_median"] for row in found["3,5"]] == pytest.approx(wanted, rel=1e-3)


def test_the_rule():
    """Limit 0.05, best accuracy 0.9 of 900 rows: half a standard error is 0.005."""

    def rows(*triples):
        both = [({f"accuracy_{m}": a for m in MODELS}, d, n) for d, a, n in triples]
        return [{"density": d, "nll_average": n, "nll_median": n, **a} for a, d, n in both]

    near = rows((0.06, 0.99, 0.1), (0.05, 0.90, 0.4), (0.04, 0.8955, 0.3), (0.04, 0.8945, 0.2))
    assert stored.choose(near, 0.05, 900) == 2
    assert stored.choose(rows((0.3, 0.9, 0.1), (0.2, 0.5, 0.9)), 0.05, 900) == 1


def test_choices_of_other_data_sets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="--stage choose"):
        command.main(words(tmp_path, "--stage", "final"))
    path = tmp_path / "results" / "frontier" / "choose-mnist-fc-lrt.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"chosen": {"temperature": 0.7}}))
    found = stored.chosen(tmp_path, "kmnist", "fc", "flow", "mnist")
    assert found == (Candidate(0.7), "choose-mnist-fc-lrt")
    with pytest.raises(InvalidInput, match="'--programs'"):
        command.main([*words(tmp_path, "--stage", "choose"), "--programs", "2"])


def test_tables_and_picture_show_the_stored_figures(folder):
    text = report.markdown(folder / "results")
    rows = result(folder, "final")["replicates"]
    assert tables.spread([100 * row["accuracy_average"] for row in rows]) in text
    ours, cut = (result(folder, "densities", m)["rows"][1]["replicates"] for m in ("lrt", "pruned"))
    gap = np.median([r["accuracy_median"] for r in ours]) - np.median([r["accuracy_median"] for r in cut])
    assert tables.signed(100 * float(gap)) in text
    assert (folder / "docs" / "images" / "frontier.png").stat().st_size > 10_000
