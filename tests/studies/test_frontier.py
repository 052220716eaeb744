"""The frontier on its small version: its files, its rule, both posteriors, the densities it reaches."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sparsebnn import metrics
from sparsebnn.checks import InvalidInput
from sparsebnn.inference.calibration import Correction, correction
from sparsebnn.io.data import load
from sparsebnn.likelihoods import Categorical
from sparsebnn.nn.networks import density
from sparsebnn.training import train
from studies import (
    classification,
    evaluation,
    frontier,
    frontier_choose,
    frontier_curve,
    frontier_picture,
    frontier_plan,
    frontier_report,
    frontier_tried,
    pages,
    tables,
)
from studies.frontier_plan import Candidate

ROOT = Path(__file__).resolve().parents[2]
MEASURES = [f"{n}_{m}" for n in ("accuracy", "nll", "ece", "brier") for m in ("average", "median")]


def words(folder: Path, *more: str) -> list[str]:
    own = ["--quick", "--device", "cpu", "--quiet", "--out", str(folder), "--runs", str(folder / "runs")]
    return [*own, "--draws", "3", "--methods", "lrt", "pruned", "--epochs", "6", "--seeds", "1", *more]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """All stages of one small cell."""
    made = tmp_path_factory.mktemp("frontier")
    frontier.main(words(made))
    return made


def result(folder: Path, stem: str) -> dict:
    return json.loads((folder / "results" / "frontier" / f"{stem}.json").read_text())


def test_the_choice_measures_both_posteriors_on_validation_rows(folder):
    content = result(folder, "choose-digits-fc-lrt")
    tried = {(row["cut"], row["average_of"]) for row in content["rows"]}
    assert tried == {(c, s) for c in ("late", "phased") for s in ("free", "refitted")}
    assert content["held_out"] == 300
    assert set(content["chosen"]) == {field.name for field in fields(Candidate)}
    for row in content["rows"]:
        assert row["density"] == pytest.approx(0.99 * 0.05, abs=1e-3)
        for name in MEASURES[:6]:
            assert row[name] == pytest.approx(np.mean([one[name] for one in row["replicates"]]), rel=1e-5)
        # A share of 300 rows: what was measured is the validation part.
        assert float(300 * row["replicates"][0]["accuracy_median"]) == pytest.approx(
            round(300 * row["replicates"][0]["accuracy_median"]), abs=1e-3
        )
    free, refitted = content["rows"][:2]
    assert free["accuracy_average_refitted"] == refitted["accuracy_average"]
    assert free["accuracy_average"] == refitted["accuracy_average_free"]
    assert free["accuracy_median"] == refitted["accuracy_median"]


def test_an_interrupted_choice_keeps_its_programs(folder, tmp_path, monkeypatch):
    """Stopped in the second program: the first is not trained again, and the file is the same."""
    real, trained = frontier_choose._program, []

    def interrupted(given, setup, program, label):
        trained.append(program.cut)
        if len(trained) == 2:
            raise KeyboardInterrupt
        return real(given, setup, program, label)

    monkeypatch.setattr(frontier_choose, "_program", interrupted)
    argv = [*words(tmp_path, "--stage", "choose"), "--methods", "lrt"]
    with pytest.raises(KeyboardInterrupt):
        frontier.main(argv)
    parts = tmp_path / "results" / "frontier" / "parts"
    assert [path.name for path in parts.iterdir()] == ["choose-digits-fc-lrt.0.json"]
    frontier.main(argv)
    assert trained == ["late", "phased", "phased"]
    assert not parts.exists()
    assert result(tmp_path, "choose-digits-fc-lrt")["rows"] == result(folder, "choose-digits-fc-lrt")["rows"]


def test_programs_of_a_choice_add_up(folder, tmp_path, monkeypatch, capsys):
    """One after the other, in any order: the same rows as all at once, none trained twice, all said."""
    real, trained = frontier_choose._program, []

    def program(given, setup, program, label):
        trained.append(program.cut)
        return real(given, setup, program, label)

    monkeypatch.setattr(frontier_choose, "_program", program)
    argv = [*words(tmp_path, "--stage", "choose"), "--methods", "lrt"]
    whole = result(folder, "choose-digits-fc-lrt")
    frontier.main([*argv, "--programs", "1"])
    first = result(tmp_path, "choose-digits-fc-lrt")
    assert first["rows"] == whole["rows"][2:]
    assert first["command"].endswith("--epochs 6 --programs 1 --seeds 1")
    assert [part["program"] for part in first["parts"]] == [1]
    frontier.main([*argv, "--programs", "1"])
    assert "choose-digits-fc-lrt: already there" in capsys.readouterr().out
    frontier.main([*argv, "--programs", "0"])
    both = result(tmp_path, "choose-digits-fc-lrt")
    assert (both["rows"], both["chosen"]) == (whole["rows"], whole["chosen"])
    assert both["command"] == whole["command"]
    assert "--programs" not in both["command"]
    assert both["train_seconds"] == pytest.approx(sum(p["train_seconds"] for p in both["parts"]), abs=2e-3)
    frontier.main(argv)
    assert trained == ["phased", "late"]
    frontier.main([*argv, "--force", "--programs", "1"])
    assert trained == ["phased", "late", "phased"]
    assert result(tmp_path, "choose-digits-fc-lrt")["rows"] == whole["rows"]
    with pytest.raises(InvalidInput) as error:
        frontier.main([*argv, "--programs", "2"])
    assert str(error.value) == (
        "The '--programs' of the command must be programs of digits-fc-lrt, from 0 to 1. Got 2 instead."
    )


def test_a_choice_that_cannot_be_added_to(folder, tmp_path, monkeypatch):
    """As files were before they named their programs; what an interrupted run of other settings left, too."""
    content = result(folder, "choose-digits-fc-lrt")
    del content["parts"], content["seed"]
    path = tmp_path / "results" / "frontier" / "choose-digits-fc-lrt.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(content))
    monkeypatch.setattr(frontier_choose, "train", None)
    argv = [*words(tmp_path, "--stage", "choose"), "--methods", "lrt"]
    frontier.main(argv)
    path.write_text(json.dumps({**content, "rows": content["rows"][:2]}))
    frontier.main([*argv, "--programs", "0"])
    with pytest.raises(InvalidInput) as error:
        frontier.main(argv)
    assert str(error.value) == (
        f"The '{path}' of the command must be a choice among programs 0 1, or one that can be added to. Got "
        "one of programs 0 instead. Ask for no more than --programs 0, or give another --out, or --force to "
        "choose anew and replace the file."
    )
    # It names its programs, but its predictors were corrected by less.
    old = [{n: v for n, v in row.items() if "doubt" not in n} for row in content["rows"][:2]]
    path.write_text(json.dumps({**result(folder, "choose-digits-fc-lrt"), "rows": old}))
    with pytest.raises(InvalidInput, match="or one that can be added to"):
        frontier.main(argv)
    path.unlink()
    given = frontier._options(argv)
    program = frontier_plan.programs_of("fc", "lrt", "digits", True)[0]
    part = frontier_tried.part_of(given, "digits", "fc", "lrt", program)
    left = frontier_tried.part_file(given, 0, "digits", "fc", "lrt")
    left.parent.mkdir()
    left.write_text(json.dumps({"of": {**part, "draws": 7}}))
    with pytest.raises(InvalidInput, match="Got draws 7 where 10 is asked for"):
        frontier.main(argv)


@pytest.mark.parametrize(
    ("stage", "option", "found"),
    [
        ("choose", "--seeds 2", "seeds_each 1 where 2"),
        ("choose", "--choose-draws 7", "draws 10 where 7"),
        ("choose", "--seed 3", "seed 0 where 3"),
        ("choose", "--epochs 5", "settings.epochs 6 where 5"),
        ("final", "--draws 4", "draws 3 where 4"),
        ("densities", "--targets 0.3", r"targets \[0.02, 0.1\] where \[0.3\]"),
        ("densities", "--methods pruned --targets 0.3", r"targets \[0.02, 0.1\] where \[0.3\]"),
        ("densities", "--methods pruned --replicates 3", r"seeds \[0, 1\] where \[0, 1, 2\]"),
        ("targets", "--seeds 2", r"seeds \[0, 1\] where \[0, 1, 2, 3\]"),
    ],
)
def test_files_of_other_settings_are_left_alone(folder, monkeypatch, stage, option, found):
    """Said before any work: nothing is loaded, and no stage before has begun."""
    monkeypatch.setattr(frontier, "_data", None)
    monkeypatch.setattr(frontier, "_choose", None)
    before = {path: path.read_text() for path in folder.glob("results/*/*.json")}
    stages = ["--stage", stage] if stage == "choose" else ["--stage", "final", stage]
    with pytest.raises(InvalidInput, match=found) as error:
        frontier.main([*words(folder), *stages, *option.split()])
    assert str(error.value).endswith("Give another --out, or --force to run it again and replace the file.")
    assert {path: path.read_text() for path in folder.glob("results/*/*.json")} == before


@pytest.mark.parametrize("stage", ["choose", "final", "densities", "targets"])
def test_a_rehearsal_never_replaces_a_result(folder, tmp_path, monkeypatch, stage):
    """Not even by force; said before any work."""
    monkeypatch.setattr(frontier, "_data", None)
    shutil.copytree(folder / "results", tmp_path / "results")
    before = {}
    for path in tmp_path.glob("results/*/*.json"):
        content = json.loads(path.read_text())
        path.write_text(json.dumps({**content, "command": content["command"].replace(" --quick", "")}))
        before[path] = path.read_text()
    with pytest.raises(InvalidInput, match=r"must be a result of --quick too\. Got one of 'python -m "):
        frontier.main([*words(tmp_path, "--seed", "3"), "--stage", stage, "--force"])
    assert {path: path.read_text() for path in tmp_path.glob("results/*/*.json")} == before


def test_what_is_committed_is_finished(tmp_path, monkeypatch, capsys):
    """Commands for what is there train nothing; two choices are of one program, one is of fewer draws."""
    monkeypatch.setattr(frontier, "_data", None)
    monkeypatch.setattr(classification, "train", None)
    common = ["--out", str(ROOT), "--runs", str(tmp_path)]
    done = ": already there\n"

    def count(*asked: str) -> int:
        frontier.main([*common, *asked])
        return capsys.readouterr().out.count(done)

    both, stages = ("--stage", "choose", "final"), ("--stage", "choose", "final", "densities", "targets")
    assert count(*stages, "--datasets", "digits", "--methods", "lrt", "pruned") == 6
    assert count(*both, "--datasets", "digits", "kmnist", "--methods", "flow") == 4
    assert count(*both, "--datasets", "kmnist", "--methods", "lrt") == 2
    assert count(*stages, "--datasets", "kmnist", "--methods", "pruned") == 2
    assert count(*both, "--datasets", "mnist", "fmnist", "--methods", "lrt", "--programs", "0") == 4
    images = ("--datasets", "mnist", "fmnist", "kmnist")
    assert count(*both, *images, "--architectures", "lenet", "--methods", "lrt") == 6
    flow = ("--datasets", "kmnist", "--architectures", "lenet", "--methods", "flow")
    assert count("--stage", "choose", *flow, "--choose-draws", "20") == 1
    for dataset in ("mnist", "fmnist"):
        assert result(ROOT, f"choose-{dataset}-fc-lrt")["command"].endswith("--methods lrt --programs 0")


def test_kmnists_curves_are_of_the_choice_of_now():
    """Of its settings to the letter; from another choice they would be refused."""
    given = frontier._options(["--out", str(ROOT), "--datasets", "kmnist"])
    for stage, method in (("densities", "lrt"), ("targets", "lrt"), ("densities", "pruned")):
        path = frontier_plan.file_of(given, frontier_curve.stem("kmnist", "fc", method, stage))
        assert frontier_curve.finished(path, frontier_curve.plan(given, "kmnist", "fc", method, stage))


def test_commands_name_every_option_that_differs():
    def of(stage: str, text: str, programs=None) -> str:
        return " ".join(frontier_plan.options_of(frontier._options(text.split()), stage, programs))

    every = "--epochs 6 --seed 2 --replicates 3 --draws 7 --chosen-on mnist --targets 0.2 0.3"
    every += " --seeds 4 --choose-draws 9"
    assert of("choose", every, [0, 2]) == "--epochs 6 --seed 2 --programs 0 2 --seeds 4 --choose-draws 9"
    rest = "--epochs 6 --seed 2 --replicates 3 --draws 7 --chosen-on mnist --targets 0.2 0.3"
    assert of("densities", every) == rest
    assert of("targets", every) == f"{rest} --seeds 4"
    for stage in ("choose", "densities", "targets"):
        assert of(stage, "") == of(stage, "--quick") == ""


def _with_choices(folder: Path, tmp_path: Path) -> Path:
    results = tmp_path / "results" / "frontier"
    results.mkdir(parents=True)
    for path in folder.glob("results/frontier/choose-*.json"):
        shutil.copy(path, results)
    return tmp_path


def test_final_cells_name_whose_choice_they_took(folder, tmp_path):
    made = _with_choices(folder, tmp_path)
    frontier.main([*words(made, "--stage", "final", "--chosen-on", "mnist"), "--replicates", "1"])
    assert "--methods lrt --chosen-on mnist --replicates 1" in result(made, "digits-fc-lrt")["command"]


def test_curves_are_of_the_seeds_they_name(folder, tmp_path):
    """Seeds 3 and 5 alone are those of 3 to 5, for ours and for pruning, before and after the cut."""
    found = {}
    for seeds in ("3,5", "3-5"):
        made = _with_choices(folder, tmp_path / seeds)
        more = ["--stage", "densities", "--targets", "0.1", "--replicates", seeds]
        frontier.main(words(made, *more))
        for method in ("lrt", "pruned"):
            found[seeds, method] = result(made, f"densities-digits-fc-{method}")
    for method in ("lrt", "pruned"):
        some, all_three = (found[seeds, method] for seeds in ("3,5", "3-5"))
        assert (some["seeds"], all_three["seeds"]) == ([3, 5], [3, 4, 5])
        assert "--replicates 3,5 " in some["command"]
        pairs = [(some["rows"][0]["replicates"], all_three["rows"][0]["replicates"], "nll_median")]
        if method == "pruned":
            pairs.append((*(one["settings"]["dense_network"] for one in (some, all_three)), "nll"))
            assert [row["refit_seed"] for row in pairs[0][0]] == [3, 5]
        for ours, theirs, name in pairs:
            assert [row["seed"] for row in ours] == [3, 5]
            wanted = [row[name] for row in theirs if row["seed"] != 4]
            assert [row[name] for row in ours] == pytest.approx(wanted, rel=1e-3)
            assert abs(wanted[0] - wanted[1]) > 1e-2 * wanted[0]


def test_files_name_the_seeds_of_their_rows(folder):
    for where in (folder, ROOT):
        for path in [*where.glob("results/frontier/densities-*"), *where.glob("results/frontier/targets-*")]:
            content = json.loads(path.read_text())
            rows = [row["seed"] for block in content["rows"] for row in block["replicates"]]
            assert content["seeds"] == list(dict.fromkeys(rows))


def test_replicates_of_a_curve_that_stopped_are_left_out(folder, tmp_path, monkeypatch):
    """One of the second target's, and all of the first's: the tables have a block less."""
    made = _with_choices(folder, tmp_path)
    real = frontier_curve.train

    def train(*given, **options):
        heat = [1e300, 1e300, 0.1, 1e300]
        return real(*given, **{**options, "per_replicate": {**options["per_replicate"], "temperature": heat}})

    monkeypatch.setattr(frontier_curve, "train", train)
    frontier.main([*words(made, "--stage", "densities"), "--methods", "lrt"])
    content = result(made, "densities-digits-fc-lrt")
    assert [[row["seed"] for row in block["replicates"]] for block in content["rows"]] == [[], [2]]
    assert content["seeds"] == [0, 1, 2, 3]
    assert len(content["stopped"]) == 3
    assert "| 10% |" in frontier_report.curve_table(made / "results")
    assert "| 2% |" not in frontier_report.curve_table(made / "results")
    assert frontier_picture.draw(made / "results", made / "one.png")
    frontier.main([*words(made, "--stage", "densities"), "--methods", "lrt"])  # there, and said to be


def test_the_final_cell_has_the_tables_fields_and_the_choice(folder):
    content, choice = result(folder, "digits-fc-lrt"), result(folder, "choose-digits-fc-lrt")["chosen"]
    assert (content["dataset"], content["architecture"], content["method"]) == ("digits", "fc", "lrt")
    assert content["settings"]["settings"]["temperature"] == choice["temperature"]
    assert content["settings"]["settings"]["refit"] == choice["refit"]
    assert content["settings"]["average_of"] == choice["average_of"]
    assert content["settings"]["cut"] == choice["cut"]
    assert content["settings"]["density"] == pytest.approx(0.99 * 0.05)
    assert content["settings"]["prior"] == "empirical"
    assert [row["seed"] for row in content["replicates"]] == [0, 1]
    for row in content["replicates"]:
        assert {*MEASURES, "density", "density_per_layer", "prediction_seed"} <= set(row)
        assert row["density"] <= 0.05
    wanted = {"device", "versions", "commit", "command", "train_seconds", "compile_seconds", "history"}
    assert wanted <= set(content)
    assert "--stage final" in content["command"]


def test_predictors_are_corrected_as_the_validation_rows_chose(folder):
    """The choice's numbers are in the settings, and the measures are those of the corrected probabilities."""
    content, choice = result(folder, "digits-fc-lrt"), result(folder, "choose-digits-fc-lrt")["chosen"]
    for name, none in (("sharpness", 1.0), ("doubt", 0.0)):
        wanted = {model: choice[f"{name}_{model}"] for model in ("average", "median")}
        told = {"average": none, "median": none, **content["settings"].get(name, {})}
        assert told == pytest.approx(wanted, rel=1e-4)
        for row in content["replicates"]:
            for model in ("average", "median"):
                assert row[f"{name}_{model}"] == pytest.approx(wanted[model], rel=1e-4)
                assert row[f"nll_{model}"] != row[f"nll_{model}_plain"]
    for row in result(folder, "choose-digits-fc-lrt")["rows"]:  # fitted to the rows it is measured on
        for model in ("average", "median"):
            assert row[f"nll_{model}"] <= row[f"nll_{model}_plain"] + 1e-9


def test_corrections_are_applied_to_probabilities():
    data, made = load("digits"), frontier_plan.cell_of("fc", "lrt", "digits", quick=True)
    network, rest = made.network(), (made, 3, 1)
    x, y = data.x_test[:50], data.y_test[:50]
    p = evaluation.probs(network, x, made, "median", 3, 1)
    row = evaluation.evaluate(network, x, y, *rest, {"median": Correction(2.0, 0.1)})
    by_hand = 0.9 * p**2 / (p**2).sum(-1, keepdim=True) + 0.01
    assert row["nll_median"] == pytest.approx(metrics.nll(by_hand, y), rel=1e-6)
    assert (row["sharpness_median"], row["doubt_median"]) == (2.0, 0.1)
    assert row["nll_median_plain"] == metrics.nll(p, y)
    assert "sharpness_average" not in row
    assert evaluation.evaluate(network, x, y, *rest)["nll_median"] == row["nll_median_plain"]


def test_a_candidates_seeds_choose_one_correction_together():
    """That of all their rows, each seed's beside the others', for either posterior."""
    random = torch.Generator().manual_seed(0)
    y = torch.randint(3, (40,), generator=random)

    def said() -> frontier_plan.Outcome:
        p = {model: torch.softmax(torch.randn(40, 3, generator=random), -1) for model in evaluation.MODELS}
        return frontier_plan.Outcome(torch.nn.Identity(), p)

    found = [{"free": said(), "refitted": said()} for _ in range(2)]
    made = frontier_plan.fitted(found, y)
    for state in ("free", "refitted"):
        for model in evaluation.MODELS:
            together = torch.cat([found[0][state].probs[model], found[1][state].probs[model]])
            assert made[state][model] == correction(together, torch.cat([y, y]))
    assert made["free"] != made["refitted"]


def test_moved_images_are_candidates_of_their_own():
    """A candidate's shift is the settings', and a row without one is of a program that moves nothing."""
    base = frontier_plan.cell_of("lenet", "lrt", "kmnist")
    still, moved = (frontier_plan.Candidate(0.03, shift=shift) for shift in (0, 2))
    assert frontier_plan.with_candidate(base, moved, 0.05).settings.shift == 2
    assert "shift" not in frontier_plan.with_candidate(base, still, 0.05).record()["settings"]
    assert frontier_plan.with_candidate(base, moved, 0.05).record()["settings"]["shift"] == 2
    programs = [frontier_plan.Program(0.2, "late", 1.0, (candidate,)) for candidate in (moved, still)]
    row = asdict(moved)
    assert frontier_tried.program_of(row, programs) == 0
    del row["shift"]
    assert frontier_tried.program_of(row, programs) == 1


def test_a_finished_cell_is_left_alone(folder, capsys):
    path = folder / "results" / "frontier" / "digits-fc-lrt.json"
    before = path.stat().st_mtime_ns
    frontier.main(words(folder, "--stage", "choose", "final", "densities", "targets"))
    said = capsys.readouterr().out
    assert said.count("already there") == 6
    assert path.stat().st_mtime_ns == before


@pytest.mark.parametrize("cut", ["late", "gradual", "phased"])
def test_both_posteriors_are_what_they_are_called(cut):
    """Averaging is measured before the refit, the median model after it: against direct evaluations."""
    data = load("digits")
    made = frontier_plan.cell_of("fc", "lrt", "digits", quick=True, epochs=4)
    made = frontier_plan.with_candidate(made, Candidate(0.1, 1e-2, 3e-2, 0.25, cut), 0.1)
    before, *cutting = frontier_plan.watchers(cut, 0.1)
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
    row = frontier_plan.measured(frontier_plan.outcomes(run, before, 1, data.x_test, made, 3), data.y_test)
    own = frontier_plan.of_state(row, "free")
    free = evaluation.evaluate(before.networks[1], data.x_test, data.y_test, made, 3, 1)
    refitted = evaluation.evaluate(run.networks[1], data.x_test, data.y_test, made, 3, 1)
    for name in ("accuracy", "nll", "ece", "brier"):
        assert own[f"{name}_average"] == free[f"{name}_average"]
        assert own[f"{name}_median"] == refitted[f"{name}_median"]
        assert own[f"{name}_average_refitted"] == refitted[f"{name}_average"]
        assert own[f"{name}_median_free"] == free[f"{name}_median"]
    assert free["nll_average"] != refitted["nll_average"]
    assert own["density"] == density(run.networks[1]).overall == pytest.approx(0.1, abs=1e-3)
    # The other two leave the posterior that is averaged alone; the controller has brought it down.
    assert own["density_free"] == (pytest.approx(0.1, rel=0.5) if cut == "gradual" else 1.0)
    assert frontier_plan.of_state(row, "refitted") is row


def test_curves_reach_their_targets(folder):
    for method in ("lrt", "pruned"):
        content = result(folder, f"densities-digits-fc-{method}")
        assert [block["target"] for block in content["rows"]] == [0.02, 0.1]
        for block in content["rows"]:
            assert len(block["replicates"]) == 2
            for row in block["replicates"]:
                assert row["density"] == pytest.approx(block["target"], rel=0.1)
    dense = content["settings"]["dense_network"]
    assert [row["seed"] for row in dense] == [0, 1]
    assert all(row["accuracy"] > 0.6 for row in dense)
    assert content["settings"]["dense"]["epochs"] + content["settings"]["refit"]["epochs"] == 6


def test_the_controller_alone_reaches_its_targets(folder):
    content = result(folder, "targets-digits-fc-lrt")
    assert content["settings"]["cut"] == "gradual"
    assert content["settings"]["settings"]["refit"] == 0.0
    for block in content["rows"]:
        assert len(block["replicates"]) == 1
        # Six epochs: the controller has had three to get there.
        assert all(row["density"] == pytest.approx(block["target"], rel=0.5) for row in block["replicates"])
    assert f"{100 * content['rows'][0]['target']:g}%" in frontier_report.target_table(folder / "results")


def rows_of(*triples):
    def row(kept, accuracy, nll):
        both = {f"accuracy_{m}": accuracy for m in ("average", "median")}
        return {"density": kept, "nll_average": nll, "nll_median": nll, **both}

    return [row(*triple) for triple in triples]


def test_the_rule():
    """Limit 0.05, best accuracy 0.9 of 900 rows: half a standard error is 0.005."""
    near = rows_of((0.06, 0.99, 0.1), (0.05, 0.90, 0.4), (0.04, 0.8955, 0.3), (0.04, 0.8945, 0.2))
    assert frontier_choose.choose(near, 0.05, 900) == 2
    assert frontier_choose.choose(rows_of((0.3, 0.9, 0.1), (0.2, 0.5, 0.9)), 0.05, 900) == 1


def test_limits_are_parts_of_the_papers_densities():
    assert frontier_plan.most_density("fc", "mnist") == pytest.approx(0.074 / 3)
    assert frontier_plan.most_density("lenet", "fmnist") == pytest.approx(0.367 / 5)
    for architecture in ("fc", "lenet"):
        for dataset in ("kmnist", "mnist", "fmnist"):
            target = frontier_plan.target_of(architecture, dataset)
            assert 0.98 < target / frontier_plan.most_density(architecture, dataset) < 1.0
            assert frontier_plan.cell_of(architecture, "flow", dataset).settings.epochs <= 100


@pytest.mark.parametrize("place", list(frontier_plan.PROGRAMS))
def test_programs_fit_a_machine_and_share_their_refit(place):
    for program in frontier_plan.PROGRAMS[place]:
        assert 2 * len(program.candidates) <= 24
        assert {candidate.refit for candidate in program.candidates} == {program.refit}
        assert {candidate.cut for candidate in program.candidates} == {program.cut}
        assert {candidate.heat for candidate in program.candidates} == {program.heat}
        assert len({candidate.shift for candidate in program.candidates}) == 1


def test_without_a_choice_the_command_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput) as raised:
        frontier.main(words(tmp_path, "--stage", "final"))
    assert str(raised.value) == (
        "Nothing has been chosen yet for digits-fc-lrt. Run it with --stage choose first, or name with "
        "--chosen-on a data set whose choice is there."
    )


def test_another_data_sets_choice_can_serve(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = frontier._options(["--out", str(tmp_path), "--chosen-on", "mnist"])
    path = tmp_path / "results" / "frontier" / "choose-mnist-fc-lrt.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"chosen": {"temperature": 0.7}}))
    assert frontier_choose.chosen(given, "kmnist", "fc", "flow") == (Candidate(0.7), "choose-mnist-fc-lrt")


def test_pruning_gets_as_many_steps_as_we(folder):
    ours = result(folder, "densities-digits-fc-lrt")["settings"]["settings"]
    theirs = result(folder, "densities-digits-fc-pruned")["settings"]
    assert theirs["dense"]["epochs"] + theirs["refit"]["epochs"] == ours["epochs"]
    assert theirs["batch_size"] == ours["batch_size"]
    choice = result(folder, "choose-digits-fc-pruned")
    assert theirs["dense"]["learning_rate"] == choice["chosen"]["rate"]
    assert {row["rate"] for row in choice["rows"]} == {1e-2, 3e-3}
    assert all(row["density"] <= 0.05 for row in choice["rows"])


def test_tables_and_picture_say_what_the_files_say(folder):
    text = frontier_report.markdown(folder / "results")
    rows = result(folder, "digits-fc-lrt")["replicates"]
    assert tables.spread([100 * row["accuracy_average"] for row in rows]) in text
    ours = result(folder, "densities-digits-fc-lrt")["rows"][1]["replicates"]
    cut = result(folder, "densities-digits-fc-pruned")["rows"][1]["replicates"]
    gap = np.median([r["accuracy_median"] for r in ours]) - np.median([r["accuracy_median"] for r in cut])
    assert tables.signed(100 * float(gap)) in text
    tried = result(folder, "choose-digits-fc-lrt")["rows"]
    row = next(r for r in tried if r["cut"] == "phased" and r["average_of"] == "free")
    assert f"| 0.1 | {row['density_free']:.3f} | {100 * row['accuracy_average']:.2f} | " in text
    assert (folder / "docs" / "images" / "frontier.png").stat().st_size > 10_000


def test_methods_are_compared_as_they_are_after_correction(tmp_path):
    """The difference is that of the corrected figures, whatever they were before."""
    common = {f"{n}_{m}": 0.3 for n in ("accuracy", "nll", "ece") for m in ("average", "median")}
    corrected = {**common, "nll_average": 0.1, "nll_average_plain": 0.5, "ece_median": 0.25}
    folder = tmp_path / "frontier"
    folder.mkdir()
    for method, row in (("lrt", corrected), ("flow", common)):
        (folder / f"digits-fc-{method}.json").write_text(json.dumps({"replicates": [row, row]}))
    line = next(line for line in frontier_report.pair_table(tmp_path).splitlines() if "digits" in line)
    nll, none, ece = (f"{text} ({text} to {text})" for text in ("+0.2000", "+0.0000", "+0.0500"))
    assert line.endswith(f"| {nll} | {none} | {none} | {ece} |")


def test_calibration_is_set_beside_the_reproduction(tmp_path):
    """Before correction in brackets; the difference from the reproduction's FLOW, with its interval."""
    measured = {f"{n}_{m}": 0.25 for n in ("accuracy", "nll", "ece") for m in ("average", "median")}
    ours = {**measured, "density": 0.03, "nll_average": 0.2, "nll_average_plain": 0.5, "ece_median": 0.125}
    for folder, name, row in (("frontier", "kmnist-fc-lrt", ours), ("table1", "kmnist-flow", measured)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.json").write_text(json.dumps({"replicates": [row, row]}))
    head, _, line = frontier_report.final_tables(tmp_path).split("\n\n")[1].splitlines()[:3]
    below, none, half = (f"{text} ({text} to {text})" for text in ("−0.0500", "+0.0000", "−0.1250"))
    cells = [f"0.2000 (0.5000) | {below}", f"0.2500 | {none}", f"0.2500 | {none}", f"0.1250 | {half}"]
    assert line == f"| KMNIST, fully connected, LBBNN-LRT | {' | '.join(cells)} |"
    assert "| ECE median model | ECE median model − our FLOW's |" in head


def test_curves_say_what_they_were_trained_with(folder):
    own = result(folder, "densities-digits-fc-lrt")["settings"]["settings"]
    said = f"temperature {own['temperature']:g}, rate {own['learning_rate']:g}"
    curve, target = (
        make(folder / "results") for make in (frontier_report.curve_table, frontier_report.target_table)
    )
    assert f"digits, fully connected, LBBNN-LRT ({said}" in curve
    assert f"| digits, fully connected, LBBNN-LRT ({said}) |" in target


def test_a_report_of_nothing(tmp_path):
    text = frontier_report.markdown(tmp_path)
    assert "No final cells yet." in text
    assert "No curves yet." in text
    assert frontier_picture.draw(tmp_path, tmp_path / "none.png") is False


def test_targets_can_be_given(tmp_path):
    given = frontier._options(["--quick", "--targets", "0.3"])
    assert frontier_curve.targets_of(given) == (0.3,)
    assert frontier_curve.targets_of(frontier._options([])) == (0.005, 0.01, 0.02, 0.05, 0.10)


def test_digits_differ_from_images_in_what_is_said_only():
    digits, images = (frontier_plan.cell_of("fc", "lrt", d) for d in ("digits", "kmnist"))
    same = replace(
        digits.settings,
        learning_rate=1e-3,
        learning_rates={"inclusion_logit": 1e-2},
    )
    assert same == images.settings
    assert torch.tensor(images.sizes).tolist() == [784, 400, 600, 10]


def test_the_page_shows_what_the_files_say():
    page = (ROOT / "docs" / "studies" / "frontier.md").read_text(encoding="utf-8")
    assert pages.filled(page, frontier_report.markdown(ROOT / "results")) == page, (
        "run: python -m studies frontier --stage page"
    )


@pytest.mark.parametrize("stage", ["densities", "targets"])
def test_densities_on_digits_are_reached(stage):
    """Targets from 0.5% to 10%, every seed within a tenth."""
    content = json.loads((ROOT / "results" / "frontier" / f"{stage}-digits-fc-lrt.json").read_text())
    assert [block["target"] for block in content["rows"]] == [0.005, 0.01, 0.02, 0.05, 0.10]
    for block in content["rows"]:
        assert all(abs(row["density"] / block["target"] - 1.0) <= 0.1 for row in block["replicates"])
