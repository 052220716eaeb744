"""studies/image_ood.py on pictures small in number: what is trained, what is reported, what is said."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from studies.provenance import device_name

from sparsebnn.checks import InvalidInput
from sparsebnn.training import Callback
from studies.image_ood import command as image_ood
from studies.image_ood.command import METHODS, NAMES, PROGRAMS, Spec, read, run, training
from studies.image_ood.judge import shaped
from studies.image_ood.report import LABELS, fill, markdown

ROOT = Path(__file__).resolve().parents[2]


def pictures(kind: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Ten classes, each a bright square at its own place; ``kind`` turns the picture."""
    rng = np.random.default_rng(kind)
    labels = np.arange(rows) % 10
    x = rng.integers(0, 60, (rows, 28, 28), dtype=np.uint8)
    for row, label in enumerate(labels):
        at = 2 * int(label) + 4
        x[row, at : at + 4, 6 * kind : 6 * kind + 8] = 250
    return x, labels.astype(np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("images")
    for kind, name in enumerate(NAMES):
        (x, y), (x_test, y_test) = pictures(kind, 60), pictures(kind, 40)
        np.savez(path / f"{name}.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    return path


SMALL = ["--epochs", "1", "--plain-epochs", "6", "--replicates", "2", "--members", "2", "--draws", "3"]


def test_the_command_writes_a_row_for_everything(folder, tmp_path, capsys):
    argv = ["--data", str(folder), "--out", str(tmp_path), "--device", "cpu", *SMALL]
    argv += ["--train-on", "mnist", "--rows", "60"]
    argv += ["--methods", "lrt", "dense", "dropout", "plain", "ensemble"]
    assert image_ood.main(argv) == 0
    record = json.loads((tmp_path / "results/image_ood/image_ood.json").read_text())
    assert [row["method"] for row in record["rows"]] == ["lrt", "dense", "plain", "ensemble", "dropout"]
    for row in record["rows"]:
        assert set(row["foreign"]) == {"fmnist", "kmnist"}
        assert len(row["accuracy"]) == 2
        for found in row["foreign"].values():
            assert len(found["entropy"]["auroc"]) == 2
            assert all(0.0 <= value <= 1.0 for value in found["entropy"]["auroc"])
    assert record["spec"]["epochs"] == 1
    assert record["missing"] == []
    assert record["provenance"]["device"] == device_name(torch.device("cpu"))
    assert record["provenance"]["command"] == (
        "python -m studies image_ood --data DATA --train-on mnist --methods lrt dense dropout "
        "plain ensemble --epochs 1 --plain-epochs 6 --rows 60 --replicates 2 --members 2 --draws 3"
    )
    said = capsys.readouterr().out
    assert "plain: 4 networks as one program, 6 epochs of 1 steps on mnist: 6 steps" in said


def test_methods_asked_for_later_are_added(folder, tmp_path):
    argv = ["--data", str(folder), "--out", str(tmp_path), "--device", "cpu", *SMALL]
    argv += ["--train-on", "mnist", "--rows", "60"]

    def written(*more: str) -> dict:
        assert image_ood.main([*argv, *more]) == 0
        return json.loads((tmp_path / "results/image_ood/image_ood.json").read_text())

    first = written("--methods", "dropout")
    both = written("--methods", "plain")
    assert [row["method"] for row in both["rows"]] == ["dropout", "plain"]
    assert both["rows"][0] == first["rows"][0]
    assert both["spec"]["methods"] == ["dropout", "plain"]
    assert both["earlier"] == [
        {"methods": ["dropout"], "train_on": ["mnist"], "provenance": first["provenance"]}
    ]
    again = written("--methods", "dropout")
    assert [row["method"] for row in again["rows"]] == ["plain", "dropout"]
    assert [entry["methods"] for entry in again["earlier"]] == [["plain"]]
    with pytest.raises(InvalidInput) as error:  # another study: nothing to add to
        written("--methods", "plain", "--seed", "5")
    assert str(error.value) == (
        f"The '{tmp_path / 'results/image_ood/image_ood.json'}' of the command must be a result of the "
        "settings asked for. Got seed 0 where 5 is asked for instead. Give another --out, or --force to run "
        "it again and replace the file."
    )
    other = written("--methods", "plain", "--seed", "5", "--force")
    assert [row["method"] for row in other["rows"]] == ["plain"]
    assert "--force" not in other["provenance"]["command"]


def _fake(monkeypatch, rows_of):
    """``main`` with rows instead of trainings; ``rows_of(spec)`` are rows and programs that failed."""
    sets = {name: SimpleNamespace(y_train=torch.zeros(100)) for name in NAMES}
    monkeypatch.setattr(image_ood, "read", lambda folder: sets)
    monkeypatch.setattr(image_ood, "_side_by_side", lambda spec, given, device: rows_of(spec))


def _main(out, *more: str) -> dict:
    image_ood.main(["--out", str(out), "--workers", "2", "--device", "cpu", "--epochs", "20", *more])
    return json.loads((out / "results/image_ood/image_ood.json").read_text())


def origins(record: dict) -> dict:
    """Which run each row is from, by the file's own word."""
    found = {(row["train_on"], row["method"]): record["provenance"]["commit"] for row in record["rows"]}
    for entry in record["earlier"]:
        for home in entry["train_on"]:
            for method in entry["methods"]:
                assert (home, method) in found
                found[home, method] = entry["provenance"]["commit"]
    return found


def test_every_row_is_attributed_to_the_run_that_made_it(tmp_path, monkeypatch):
    now = []

    def rows_of(spec):
        made = [{**row(m, home), "by": now[-1]} for home in spec.train_on for m in spec.methods]
        return made, []

    _fake(monkeypatch, rows_of)
    monkeypatch.setattr(image_ood.Study, "provenance", lambda self, seeds: {"commit": now[-1]})
    for name, more in (
        ("P1", ["--methods", "lrt", "flow"]),
        ("P2", ["--methods", "dense"]),
        ("P3", ["--methods", "lrt"]),
        ("P4", ["--methods", "dropout"]),
        ("P5", ["--methods", "lrt", "dense", "--train-on", "mnist"]),
        ("P6", ["--methods", "dropout", "--train-on", "kmnist"]),
    ):
        now.append(name)
        record = _main(tmp_path, *more)
        by = {(r["train_on"], r["method"]): r["by"] for r in record["rows"]}
        assert origins(record) == by
        if name == "P4":
            assert {method: of for (_, method), of in by.items()} == {
                "lrt": "P3",
                "flow": "P1",
                "dense": "P2",
                "dropout": "P4",
            }
    assert record["spec"]["train_on"] == list(NAMES)
    assert len(record["rows"]) == 12
    assert by["mnist", "lrt"] == "P5"
    assert by["fmnist", "lrt"] == "P3"


def test_rows_go_only_when_new_ones_replace_them(tmp_path, monkeypatch):
    """A worker that fails, and a run on one data set of three."""
    _fake(monkeypatch, lambda spec: ([row(m, h) for h in spec.train_on for m in spec.methods], []))
    _main(tmp_path, "--methods", "lrt", "dense")
    path = tmp_path / "results/image_ood/image_ood.json"
    before = path.read_text()
    _fake(monkeypatch, lambda spec: ([], ["lrt"]))
    assert len(_main(tmp_path, "--methods", "lrt")["rows"]) == 6
    assert path.read_text() == before
    _fake(monkeypatch, lambda spec: ([row("lrt")], ["lrt", "flow"]))
    record = _main(tmp_path, "--methods", "lrt", "flow")
    assert len(record["rows"]) == 6
    assert record["missing"] == ["flow"]
    _fake(monkeypatch, lambda spec: ([{**row("lrt", h), "new": 1} for h in spec.train_on], []))
    record = _main(tmp_path, "--methods", "lrt", "--train-on", "mnist")
    assert len(record["rows"]) == 6
    assert [r["train_on"] for r in record["rows"] if "new" in r] == ["mnist"]


def test_a_plain_network_is_the_first_member_of_its_ensemble(folder):
    sets = read(folder)
    options = {"train_on": ("mnist",), "plain_epochs": 2, "replicates": 2, "n_draws": 1}
    both = run(Spec(methods=("plain", "ensemble"), members=2, **options), sets)
    alone = run(Spec(methods=("plain",), seed=2, **{**options, "replicates": 1}), sets)
    # Seeds 0 and 1 make the first ensemble, 2 and 3 the second.
    assert both[0]["nll"][1] == pytest.approx(alone[0]["nll"][0], rel=1e-4)
    assert both[0]["epistemic"] == pytest.approx([0.0, 0.0], abs=1e-6)
    assert min(both[1]["epistemic"]) > 1e-4


def test_a_network_that_has_learned_notices_other_pictures(folder):
    spec = Spec(train_on=("mnist",), methods=("ensemble",), plain_epochs=25, replicates=1, members=3)
    (row,) = run(spec, read(folder))
    assert row["accuracy"][0] > 0.9
    for found in row["foreign"].values():
        assert found["entropy"]["auroc"][0] > 0.8
        assert found["entropy"]["flagged_outside"][0] > found["entropy"]["flagged_inside"][0]


@pytest.mark.slow
def test_processes_side_by_side_find_the_same_without_any_other_package(folder, tmp_path):
    """As on a machine with torch and numpy alone; one process per program, and all in one."""
    argv = ["--data", str(folder), "--device", "cpu", *SMALL, "--train-on", "mnist", "kmnist"]
    argv += ["--methods", "dense", "plain"]
    block = (
        "import sys\n"
        "for name in ('sklearn', 'scipy', 'matplotlib', 'pandas', 'rich', 'typer', 'safetensors'):\n"
        "    sys.modules[name] = None\n"
        "from studies import image_ood\n"
        "if __name__ == '__main__':\n"
        "    raise SystemExit(image_ood.main(sys.argv[1:]))\n"
    )
    script = tmp_path / "alone.py"
    script.write_text(block)
    for out, more in (("two", ["--workers", "2"]), ("one", [])):
        command = [sys.executable, str(script), *argv, "--out", str(tmp_path / out), *more]
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    rows = [
        json.loads((tmp_path / out / "results/image_ood/image_ood.json").read_text())["rows"]
        for out in ("two", "one")
    ]
    for one, other in zip(*rows, strict=True):
        for timed in ("train_seconds", "compile_seconds"):
            del one[timed], other[timed]
        assert one == other
    assert not (tmp_path / "two/results/image_ood/parts").exists()


def test_what_is_interrupted_is_kept(folder, tmp_path, monkeypatch):
    judged = []

    def judge(*given):
        judged.append(given)
        if len(judged) > 2:
            raise KeyboardInterrupt
        return {"accuracy": 0.5, "foreign": {}}

    monkeypatch.setattr(image_ood, "judge", judge)
    argv = ["--data", str(folder), "--out", str(tmp_path), "--device", "cpu", *SMALL, "--methods", "plain"]
    with pytest.raises(KeyboardInterrupt):
        image_ood.main(argv)
    record = json.loads((tmp_path / "results/image_ood/image_ood.json").read_text())
    assert [row["train_on"] for row in record["rows"]] == ["mnist"]
    assert record["missing"] == ["plain"]


class Poison(Callback):
    """Networks whose first parameter is no number before the first step."""

    def __init__(self, numbers):
        self.numbers = numbers

    @torch.no_grad()
    def on_train_start(self, run):
        for number in self.numbers:
            next(iter(run.replicates.parameters.values()))[number] = float("nan")


@pytest.mark.parametrize(
    ("numbers", "left"),
    [
        ((), {"plain": [0, 1, 2], "ensemble": [0, 1, 2]}),
        ((3,), {"plain": [0, 1, 2], "ensemble": [0, 2]}),  # the second member of the second ensemble
        ((2,), {"plain": [0, 2], "ensemble": [0, 2]}),
        ((0, 2, 5), {"plain": [2]}),
    ],
)
def test_a_replicate_that_stopped_is_no_result(numbers, left, folder, monkeypatch, capsys):
    real = image_ood.train

    def train(*given, callbacks, **more):
        return real(*given, callbacks=[*callbacks, Poison(numbers)], **more)

    options = {"train_on": ("mnist",), "plain_epochs": 2, "replicates": 3, "members": 2, "n_draws": 1}
    spec = Spec(methods=("plain", "ensemble"), **options)
    whole = {row["method"]: row for row in run(spec, read(folder))}
    monkeypatch.setattr(image_ood, "train", train)
    capsys.readouterr()
    found = {row["method"]: row for row in run(spec, read(folder))}
    assert list(found) == list(left)
    for method, kept in left.items():
        assert found[method]["nll"] == [whole[method]["nll"][k] for k in kept]
        mine = [n for n in numbers if method == "ensemble" or n % 2 == 0]
        assert found[method]["stopped_seeds"] == mine
        assert len(found[method]["stopped"]) == len(mine)
    told = capsys.readouterr().out
    for method in ("plain", "ensemble"):
        count = len(left.get(method, []))
        assert (f"mnist {method}: not finished, {count} of 3 replicates. Replicate" in told) == (count < 3)


@pytest.mark.parametrize("architecture", ["fc", "lenet"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_network_takes_its_images(program, architecture, folder):
    spec = Spec(architecture=architecture, epochs=10)
    network, settings, count = training(spec, program)
    data = read(folder)["mnist"]
    x = shaped(data.x_train[:2].float(), data, architecture)
    assert network(x).shape == (2, 10)
    assert count == (50 if program == "plain" else 10)
    if program in ("lrt", "flow", "dense"):
        # The paper's milestones, at the same share of the epochs.
        share = {"fc": [0.5], "lenet": [0.4, 0.8] if program == "flow" else [0.32, 0.64]}[architecture]
        assert list(settings.schedule.milestones) == [round(10 * s) for s in share]
        assert settings.learning_rate == 1e-4


def test_programs_serve_every_method():
    assert sorted(method for served in PROGRAMS.values() for method in served) == sorted(METHODS)
    assert Spec(methods=("ensemble", "lrt")).programs == ["lrt", "plain"]


def test_messages(tmp_path):
    with pytest.raises(InvalidInput) as error:
        read(tmp_path)
    assert str(error.value) == (
        "The 'name' of data.load must be a known name or a file or folder that exists. "
        f"Got {str(tmp_path / 'mnist.npz')!r} instead. Check the path."
    )
    with pytest.raises(InvalidInput) as error:
        Spec(train_on=("mnst",))
    assert str(error.value) == (
        "The 'train_on' of image_ood must be one of 'mnist', 'fmnist', 'kmnist'. "
        "Got 'mnst' instead. Did you mean 'mnist'?"
    )


def row(method: str, home: str = "mnist") -> dict:
    score = {name: [0.5, 0.7] for name in ("auroc", "fpr95", "flagged_inside", "flagged_outside")}
    scores = {name: score for name in ("entropy", "mutual_information", "max_output")}
    foreign = {other: scores for other in NAMES if other != home}
    return {"train_on": home, "method": method, "accuracy": [0.8, 0.9], "ece": [0.1, 0.1], "foreign": foreign}


def test_the_page_has_a_table_per_training_set(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- images:begin -->\nold\n<!-- images:end -->\nafter\n")
    spec = asdict(Spec(train_on=("mnist", "kmnist"), replicates=2))
    fill(page, {"spec": spec, "rows": [row(m, home) for home in ("mnist", "kmnist") for m in METHODS]})
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert text.count("| trained on ") == 2
    # 0.85 ± t(1) · sd / √2, with t(1) = 12.706 and sd = 0.0707
    assert text.count("| LBBNN-LRT | 0.850 ± 0.635 | 0.100 ± 0.000 |") == 2


def test_the_page_says_of_how_many_replicates_a_row_is():
    spec = asdict(Spec(train_on=("mnist",), replicates=3))
    text = "\n".join(markdown({"spec": spec, "rows": [row("lrt"), {**row("dense"), "accuracy": [0.8] * 3}]}))
    assert "| LBBNN-LRT (2 of 3 replicates) | 0.850 ± 0.635 |" in text
    assert "| dense BNN | 0.800 ± 0.000 |" in text


def test_the_page_says_what_the_results_file_says():
    record = json.loads((ROOT / "results/image_ood/image_ood.json").read_text())
    page = (ROOT / "docs/studies/uncertainty.md").read_text()
    assert "\n".join(markdown(record)) in page
    assert set(LABELS) == set(METHODS)
