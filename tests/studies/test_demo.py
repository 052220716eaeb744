"""The demo: what it writes, what it says, how it starts; slowly, that it keeps what it promises."""

import builtins
import json
import statistics
import subprocess
import sys

import pytest
import torch

import sparsebnn
from sparsebnn.app import cli
from sparsebnn.checks import InvalidInput
from sparsebnn.io import saving
from sparsebnn.io.data import load
from sparsebnn.nn.networks import bayesian_layers
from sparsebnn.training import Interrupted
from studies.demo import command as demo
from studies.demo import picture as demo_picture


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """A run of a few epochs and one seed."""
    spec = demo.Spec(epochs=2, replicates=1, n_draws=10)
    return demo.run(spec, tmp_path_factory.mktemp("demo") / "out", quiet=True)


def test_files_are_written(quick):
    assert quick.model.exists()
    assert quick.picture.read_bytes().startswith(b"\x89PNG")
    record = json.loads(quick.table.read_text())
    assert record["rows"][1]["accuracy"] == pytest.approx(quick.rows[1].accuracy, rel=1e-5)
    assert record["provenance"]["command"] == "python -m studies demo --seed 0 --epochs 2"
    assert record["provenance"]["seeds"] == [0]
    assert record["settings"]["temperature"] == 0.1


def test_the_saved_model_predicts_what_the_table_says(quick):
    """Loaded into a fresh template, it gives the very figures of the run."""
    network = demo.network()
    metadata = saving.load(quick.model, network).metadata
    data = load("digits")
    for row, model in zip(quick.rows, ("average", "median")):
        predicted = demo._predict(network, data.x_test, quick.spec, model)
        assert [sparsebnn.metrics.nll(predicted.probs, data.y_test)] == row.nll
        assert [sparsebnn.metrics.accuracy(predicted.probs, data.y_test)] == row.accuracy
    assert metadata["sizes"] == list(demo.SIZES)
    assert metadata["seed"] == 0


def test_the_same_seed_gives_the_same_figures(quick, tmp_path):
    assert demo.run(quick.spec, tmp_path, quiet=True).rows == quick.rows


def test_every_inclusion_logit_starts_above_zero():
    for seed in range(3):
        network = demo.network()
        sparsebnn.initialize(network, seed)
        logits = [p for n, p in network.named_parameters() if n.endswith("inclusion_logit")]
        assert len(logits) == len(demo.SIZES) - 1
        assert sum(p.numel() for p in logits) == 17_400
        assert min(p.min().item() for p in logits) > 0.0


def test_the_number_of_threads_is_put_back(quick, tmp_path, monkeypatch):
    """A failing run must not leave the caller's torch on one thread."""

    def fails(*_):
        raise RuntimeError("stop here")

    monkeypatch.setattr(demo, "_train", fails)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(RuntimeError, match="stop here"):
            demo.run(quick.spec, tmp_path, quiet=True)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_validation_never_sees_the_test_part():
    data, held = load("digits"), demo._validation(load("digits"))
    known = {tuple(row) for row in data.x_train.tolist()}
    ours = [tuple(row) for row in torch.cat([held.x_train, held.x_test]).tolist()]
    assert sorted(ours) == sorted(tuple(row) for row in data.x_train.tolist())
    assert len(known) == len(ours) == len(data.y_train)
    assert len(held.y_test) == 337


# -- what is printed --------------------------------------------------------------------------------


def _result(tmp_path, seeds=3):
    values = [0.97, 0.98, 0.96][:seeds]
    rows = [
        demo.Row("full model averaging", values, [0.1, 0.2, 0.3][:seeds], values, values),
        demo.Row("median probability model", values, [0.1, 0.2, 0.3][:seeds], values, values),
        demo.Row("deterministic network", values, [1.0] * seeds, values, values),
    ]
    places = [tmp_path / name for name in ("model", "picture", "table")]
    return demo.Result(demo.Spec(replicates=seeds), rows, 12.3, *places)


PLAIN = """\
  test digits               accuracy     density      NLL          calibration
                                                                   error
  ────────────────────────────────────────────────────────────────────────────
  full model averaging      0.970        –            0.970        0.970
                            0.960–0.980               0.960–0.980  0.960–0.980

  median probability model  0.970        0.200        0.970        0.970
                            0.960–0.980  0.100–0.300  0.960–0.980  0.960–0.980

  deterministic network     0.970        1            0.970        0.970
                            0.960–0.980               0.960–0.980  0.960–0.980
"""


def _without(monkeypatch, *packages):
    real = builtins.__import__

    def refuse(name, *rest, **options):
        if name.split(".")[0] in packages:
            raise ImportError(f"No module named {name!r}")
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)


def test_the_table_without_rich(tmp_path, monkeypatch, capsys):
    _without(monkeypatch, "rich")
    demo.show(_result(tmp_path))
    printed = capsys.readouterr().out
    assert printed.startswith(PLAIN)
    assert "Median of 3 seeds; lowest–highest below." in printed
    assert "a tempered posterior, not the Bayes posterior" in printed
    for name in ("model", "picture", "table"):
        assert str(tmp_path / name) in printed


def test_the_table_with_rich_says_the_same(tmp_path, capsys):
    pytest.importorskip("rich")
    demo.show(_result(tmp_path))
    printed = capsys.readouterr().out
    for number in ("0.970", "0.960–0.980", "0.200", "0.100–0.300"):
        assert printed.count(number) == PLAIN.count(number)
    assert max(map(len, printed.split("Median")[0].splitlines())) <= 80


def test_one_seed_has_no_spread(tmp_path, capsys):
    demo.show(_result(tmp_path, seeds=1))
    printed = capsys.readouterr().out
    assert "One seed." in printed
    assert "0.970–" not in printed


def test_progress_without_a_terminal(tmp_path, capsys):
    demo.run(demo.Spec(epochs=2, replicates=1, n_draws=2), tmp_path)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    assert all("nll" in line and "density 1.000" in line for line in lines)


# -- the picture ------------------------------------------------------------------------------------


def test_only_units_on_a_path_are_live():
    """By hand: pixel 0 → unit 0 → class 1; pixel 1 → unit 1 ends there; unit 2 has no pixel."""
    first = torch.tensor([[True, False], [False, True], [False, False]])
    second = torch.tensor([[False, False, True], [True, False, False]])
    layers = [demo_picture.Connections(kept, kept.float()) for kept in (first, second)]
    live = demo_picture.live_units(layers)
    assert [each.tolist() for each in live] == [[True, False], [True, False, False], [False, True]]


def test_connections_are_those_of_the_median_model(quick):
    network = demo.network()
    saving.load(quick.model, network)
    with torch.no_grad():
        logit = network[0].weights.conditional.inclusion_logit
        logit[:, 10:] = -1.0
    found = demo_picture.connections(network)
    assert torch.equal(found[0].kept, network[0].weights.inclusion_prob() > 0.5)
    assert not found[0].kept[:, 10:].any()
    assert (found[0].strength[:, 10:] == 0).all()
    assert [c.kept.shape for c in found] == [c.weights.shape for _, c in bayesian_layers(network)]


def test_a_network_with_nothing_left_can_still_be_drawn(quick, tmp_path):
    network = demo.network()
    saving.load(quick.model, network)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("inclusion_logit"):
                parameter.fill_(-1.0)
    data = load("digits")
    prediction = demo._predict(network, data.x_test, quick.spec, "average")
    picture = demo_picture.draw(network, data, prediction, "nothing", tmp_path / "picture.png")
    assert picture.stat().st_size > 1000


# -- bad input and the command line -----------------------------------------------------------------


@pytest.mark.parametrize("field", ["epochs", "replicates", "n_draws"])
def test_counts_must_be_positive(field):
    with pytest.raises(InvalidInput) as error:
        demo.Spec(**{field: 0})
    assert str(error.value) == (
        f"The '{field}' of the demo must be a whole number of at least 1. Got 0 instead."
    )


def test_out_must_be_a_folder(tmp_path):
    taken = tmp_path / "file"
    taken.write_text("")
    with pytest.raises(InvalidInput) as error:
        demo.run(out=taken)
    assert str(error.value) == (
        f"The 'out' of the demo must be a folder that can be made. Got '{taken}' (File exists) instead."
    )


def test_a_missing_package_is_named_before_training(tmp_path, monkeypatch):
    real = demo.importlib.util.find_spec
    monkeypatch.setattr(
        demo.importlib.util, "find_spec", lambda name: None if name == "matplotlib" else real(name)
    )
    with pytest.raises(ImportError) as error:
        demo.run(out=tmp_path)
    assert str(error.value) == "The demo needs 'matplotlib': pip install 'sparsebnn[all]'"


def _command(monkeypatch, *words):
    """The exit status of the command line."""
    monkeypatch.setattr(sys, "argv", ["sparsebnn", *words])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code


def test_the_version(monkeypatch, capsys):
    assert _command(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"sparsebnn {sparsebnn.__version__}\n"


def test_an_error_is_one_line(monkeypatch, capsys):
    assert _command(monkeypatch, "demo", "--epochs", "0") == 1
    expected = "Error: The 'epochs' of the demo must be a whole number of at least 1. Got 0 instead.\n"
    assert capsys.readouterr().err == expected


def test_debug_shows_the_traceback(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["sparsebnn", "demo", "--epochs", "0", "--debug"])
    with pytest.raises(InvalidInput):
        cli.main()


def test_an_interrupt_says_how_to_go_on(monkeypatch, capsys):
    def interrupted(*_):
        raise Interrupted("Interrupted in epoch 3. Nothing was saved, because no folder was given.")

    monkeypatch.setattr(demo, "run", interrupted)
    assert _command(monkeypatch, "demo") == 130
    assert capsys.readouterr().err.strip().startswith("Interrupted in epoch 3.")


def test_an_unknown_command(monkeypatch, capsys):
    assert _command(monkeypatch, "demoo") == 2
    assert "demoo" in capsys.readouterr().err


def test_options_reach_the_demo(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(demo, "run", lambda *given: seen.append(given))
    monkeypatch.setattr(demo, "show", lambda result: None)
    _command(monkeypatch, "demo", "--seed", "5", "--epochs", "7", "--out", str(tmp_path), "--quiet")
    assert seen == [(demo.Spec(seed=5, epochs=7), tmp_path, True)]
    seen.clear()
    demo.main(["--seed", "5", "--epochs", "7", "--out", str(tmp_path), "--quiet"])
    assert seen == [(demo.Spec(seed=5, epochs=7), str(tmp_path), True)]


def test_the_defaults_of_the_command_are_those_of_the_spec(monkeypatch):
    seen = []
    monkeypatch.setattr(demo, "run", lambda *given: seen.append(given))
    monkeypatch.setattr(demo, "show", lambda result: None)
    _command(monkeypatch, "demo")
    demo.main([])
    assert [given[0] for given in seen] == [demo.Spec(), demo.Spec()]
    assert [str(given[1]) for given in seen] == ["runs/demo", "runs/demo"]


def test_without_typer(monkeypatch, capsys):
    _without(monkeypatch, "typer")
    assert _command(monkeypatch, "demo") == 1
    assert capsys.readouterr().err == (
        "Error: the command line needs 'typer': pip install 'sparsebnn[cli]'. "
        "Every experiment also runs without it: python -m studies demo\n"
    )


def test_the_experiment_runs_without_the_command_line(tmp_path):
    words = [sys.executable, "-m", "studies", "demo", "--epochs", "0", "--out", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "Error: The 'epochs' of the demo must be a whole number of at least 1. Got 0 instead.\n"
    )


# -- what it promises -------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_whole_demo_keeps_its_promise(tmp_path):
    """Both predictors at least 0.96 right at a density of at most 0.35, medians of three seeds."""
    result = demo.run(out=tmp_path, quiet=True)
    averaged, median, _ = result.rows
    assert len(averaged.accuracy) == 3
    assert statistics.median(averaged.accuracy) >= 0.96
    assert statistics.median(median.accuracy) >= 0.96
    assert 0.01 < statistics.median(median.density) <= 0.35
    assert result.seconds < 120


def test_what_the_priors_learned_is_shown(tmp_path, capsys):
    from dataclasses import replace

    from sparsebnn.nn.networks import PriorValues

    learned = (PriorValues("0", 0.213, 0.1, True), PriorValues("2", 0.5, 0.1, True))
    demo.show(replace(_result(tmp_path), priors=learned))
    assert (
        "Prior: inclusion 0.1; slab std learned by the layers (seed 0): 0.21, 0.50.\n"
        in capsys.readouterr().out
    )
