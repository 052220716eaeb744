"""The benchmarks: what is timed, how it survives failures, and that tables say what the file says."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import gradients, kinks, page, parity, plan, pool, resnet, tables
from benchmarks.peers import PEERS, installed, peer
from benchmarks.reference import deterministic, step_of
from benchmarks.subjects import Task
from sparsebnn.io.files import locked
from sparsebnn.nn import layers

ROOT = Path(__file__).resolve().parents[1]


def _row(code, architecture="fc", method=None, replicates=1, ms=1.0, **more):
    row = {"code": code, "architecture": architecture, "method": method, "replicates": replicates, "ms": ms}
    return {
        name: value for name, value in {**row, "peak_mebibytes": 100.0, **more}.items() if value is not None
    }


RECORD = {
    "provenance": {
        "command": "python -m benchmarks",
        "commit": "0123456789abcdef",
        "versions": {"torch": "9"},
        "kind": "cuda",
        "device": "a device",
        "threads": 1,
        "seconds": 12.3,
    },
    "spec": {"parts": ["steps", "predict"], "replicates": [1, 10]},
    "scaling": {"together": 10},
    "gradients": [
        {"moment": "start", "epochs": 0, "sizes": [3, 2], "n_draws": 4, "local": 10.0, "local_se": 1.0}
        | {"drawn": 50.0, "drawn_se": 5.0, "ratio": 5.0, "ratio_se": 0.7}
    ],
    "rows": [
        _row("deterministic", ms=0.5),
        _row("ours", method="lrt", ms=0.2),
        _row("ours", method="lrt", replicates=10, ms=0.4),
        _row("ours", method="lrt", replicates=10, hidden=[400], ms=0.3),
        _row("ours", method="lrt", replicates=10, hidden=[400, 400], ms=0.6),
        _row("ours", method="lrt", replicates=10, hidden=[800, 1200], ms=1.5),
        _row("reference", method="lrt", ms=8.0),
        _row("torchbnn", ms=2.0),
        _row("predict", method="lrt", replicates=10, ms=2000.0, model="average", images=10_000),
        {"code": "ours", "architecture": "fc", "method": "flow", "replicates": 1, "failed": "it broke"},
    ],
}


def _table(title):
    return next(table for table in tables.tables(RECORD) if table.title.startswith(title))


LINES = {
    # Ratios are per replicate: 0.4 ms for ten is 0.08 of a plain step, 200 times faster than 8 ms.
    "A training step": (0, ("0.200", "0.400", "0.40×", "0.08×", "40.0×", "200×")),
    # Epochs are 600 steps.
    "Seconds per epoch": (0, ("4", "0.120", "0.240")),
    "Milliseconds per step and": (0, ("8.56", "0.200", "0.040", "42.8×", "214×")),
    "What it is": (-1, ("2.00", "4.00×", "10.0×")),
    "Prediction": (0, ("10,000", "10", "2.00", "50,000", "·", "·")),
    "Variance": (0, ("10 ± 1", "50 ± 5", "5.0 ± 0.7")),
}


@pytest.mark.parametrize("title", LINES)
def test_tables_show_the_rows(title):
    place, wanted = LINES[title]
    assert _table(title).lines[place][2:] == wanted


def test_what_failed_and_how_it_scales():
    assert tables.failures(RECORD) == ["ours fc flow 1: it broke"]
    assert set(_table("A training step").lines[1][2:]) == {"·"}
    curves = tables.scaling_curves(RECORD)
    assert curves["replicates"] == [(1, 0.2, 1), (10, 0.4, 10)]
    assert curves["width"] == [(1.0, 0.4, 10), (2.0, 1.5, 10)]
    assert curves["depth"] == [(1, 0.3, 10), (2, 0.6, 10)]
    # 0.4 ms for ten where one takes 0.2: a fifth of ten times as much.
    assert _table("LBBNN-LRT, fully connected").lines[-1] == ("10", "0.20", "0.400", "40.0")
    for table in tables.tables(RECORD):
        text, marked = table.text(), table.markdown()
        assert all(cell in text and cell in marked for line in table.lines for cell in line)


def test_a_page_is_refreshed_between_its_marks(tmp_path):
    path = tmp_path / "page.md"
    cuda, cpu = "<!-- cuda:begin -->\nold\n<!-- cuda:end -->", "<!-- cpu:begin --><!-- cpu:end -->"
    path.write_text(f"before\n{cuda}\nbetween\n{cpu}\nafter\n", encoding="utf-8")
    page.refresh(path, {"cuda": RECORD}, tmp_path)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    cuda, cpu = text.split("\nbetween\n")
    assert page.block({"cuda": RECORD}, "cuda") in cuda
    assert "Not measured yet: `python -m benchmarks --device cpu --scaling`." in cpu
    assert "| fully connected | LBBNN-LRT | 0.200 | 0.400 |" in cuda
    assert "images/scaling.png" in cuda


# -- the plan -----------------------------------------------------------------------------------------


def test_every_task_is_planned_once():
    tasks = plan.plan(plan.PARTS, ["fc", "lenet"], [1, 10], peers=list(PEERS), scale=True)
    assert len(tasks) == len(set(tasks))
    ours = [task for task in tasks if task.code == "ours"]
    # 12 cells; K = 1 and 10 and width 1 of the scaling are among them.
    points = len(plan.REPLICATES) - 2 + len(plan.WIDTHS) - 1 + len(plan.DEPTHS)
    assert len(ours) == 12 + points
    assert {task.replicates for task in ours if task.hidden is None} == set(plan.REPLICATES)
    assert [task.method for task in tasks[:4]] == ["flow"] * 4
    assert all(task.code != "ours" for task in tasks[len(ours) :])


# -- the pool -----------------------------------------------------------------------------------------


def test_the_pool_outlives_its_tasks():
    """Of two that get ready together, one fails; the other is timed."""
    good, bad = Task("deterministic", "fc"), Task("ours", "fc", "nonsense")
    conditions = pool.Conditions(jobs=2, seconds=0.02, threads=1, patience=120.0)
    rows = {row["code"]: row for row in pool.run([bad, good], conditions)}
    assert rows["ours"]["failed"].startswith("InvalidInput: The 'method' of cell must be one of")
    timed = rows["deterministic"]
    assert 0.0 < timed["ms_lowest"] <= timed["ms"] <= timed["ms_highest"]
    assert "failed" not in timed


def test_a_stuck_task_is_given_up():
    tasks = [Task("deterministic", "fc"), Task("reference", "fc", "lrt")]
    first, second = pool.run(tasks, pool.Conditions(jobs=1, held=2, patience=0.01))
    assert first["failed"].startswith("not ready after")
    assert second["failed"].startswith("not begun")
    worker = pool._Worker(tasks[0], pool.Conditions())
    worker.process.kill()
    assert worker.hear()["failed"] == "the process ended with exit code -9"
    assert "failed" in worker.ask("time", 1.0)
    worker.end()


def test_timings_wait_for_the_lock(tmp_path, monkeypatch):
    """It is free while tasks get ready, and held while they are timed."""
    path, seen = tmp_path / "gpu.lock", []
    real = pool._Worker.ask

    def look():
        with locked(path, wait=False) as free:
            return free

    monkeypatch.setattr(pool._Worker, "ask", lambda *a: (seen.append((a[1], look())), real(*a))[1])
    conditions = pool.Conditions(seconds=0.04, threads=1, turns=2, patience=120.0, lock=path)
    (row,) = pool.run([Task("deterministic", "fc")], conditions)
    assert row["ms"] > 0
    assert seen == [("time", False), ("time", False), ("row", False)]
    assert look()


def test_step_times_counts_the_steps(monkeypatch):
    """A step of known length is found, whatever number of steps a round has; one that is long, once."""
    now, taken = [0.0], []
    monkeypatch.setattr(pool.time, "perf_counter", lambda: now[0])

    def advance(milliseconds):
        def steps(count):
            taken.append(count)
            now[0] += 0.001 * milliseconds * count

        return steps

    times = pool.step_times(advance(2), torch.device("cpu"), 0.1)
    assert times == pytest.approx([2.0] * 7)
    assert taken == [1, 5] + [7] * 7
    assert pool.step_times(advance(20), torch.device("cpu"), 0.01) == pytest.approx([20.0])


def test_parts_are_added_to_a_file(tmp_path, monkeypatch, capsys):
    """Rows that are not measured again stay, with where they come from; those that are take their place."""
    times = iter(range(1, 100))
    rest = {"peak_mebibytes": 1.0, "compile_seconds": 0.0, "mode": "eager"}
    monkeypatch.setattr(
        command, "run", lambda tasks, _: ({**t.row(), "ms": next(times), **rest} for t in tasks)
    )

    def measured(*words: str) -> dict:
        argv = ["--device", "cpu", "--out", str(tmp_path), "--replicates", "1", *words]
        command.main(argv)
        capsys.readouterr()
        return json.loads((tmp_path / "bench-cpu.json").read_text())

    first = measured("--parts", "steps")
    both = measured("--parts", "predict", "--add")
    assert both["rows"][: len(first["rows"])] == first["rows"]
    assert {row["code"] for row in both["rows"][len(first["rows"]) :]} == {"predict"}
    assert both["spec"]["parts"] == ["steps", "predict"]
    assert both["earlier"] == [{**first["provenance"], "rows": len(first["rows"])}]
    again = measured("--parts", "steps", "--add")
    assert len(again["rows"]) == len(both["rows"])
    assert [row for row in again["rows"] if row["code"] == "predict"] == both["rows"][len(first["rows"]) :]
    assert len(measured("--parts", "steps")["rows"]) == len(first["rows"])
    assert "of the timings earlier" in page.block({"cpu": again}, "cpu")


def test_rows_are_written_as_they_come(tmp_path, monkeypatch, capsys):
    """A run that is killed keeps what it had, and says that it is not complete."""

    def rows(tasks, conditions):
        yield RECORD["rows"][0]
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run", rows)
    monkeypatch.setenv("SPARSEBNN_COMMIT", "told")
    monkeypatch.setattr(command, "commit", lambda: None)
    with pytest.raises(KeyboardInterrupt):
        command.main(["--device", "cpu", "--out", str(tmp_path), "--parts", "steps"])
    record = json.loads((tmp_path / "bench-cpu.json").read_text(encoding="utf-8"))
    assert record["rows"] == [RECORD["rows"][0]]
    assert record["provenance"]["commit"] == "told"
    assert record["provenance"]["complete"] is False
    assert record["provenance"]["command"] == "python -m benchmarks --device cpu --parts steps"


# -- the variance of the gradient ---------------------------------------------------------------------


def _linear(x, y):
    """A Gaussian layer y = x·w with squared loss: both variances in closed form."""
    layer = layers.Linear(x.shape[1], 1, bias=False, family="gaussian").double()
    with torch.no_grad():
        layer.weights.mean.normal_()
        layer.weights.raw_std.uniform_(-2.0, 0.0)
    var = layer.weights.std.detach()[0] ** 2
    # d/dw of ½Σ(x·w − y)² is Σᵢ (xᵢ·w − yᵢ) xᵢ: the batch shares w, or example i has an xᵢ·w of its own.
    drawn = float((((x.T @ x) ** 2) * var).sum())
    local = float(((x**2 @ var)[:, None] * x**2).sum())
    return layer, drawn, local


def test_variances_of_a_linear_layer():
    torch.manual_seed(1)
    x, y = torch.randn(12, 3).double(), torch.randn(12, 1).double()
    layer, drawn, local = _linear(x, y)
    found, again = (
        gradients.of_passes(layer, x, lambda out: 0.5 * ((out - y) ** 2).sum(), n_draws=1000) for _ in "ab"
    )
    assert abs(found["drawn"] - drawn) < 4 * found["drawn_se"]
    assert abs(found["local"] - local) < 4 * found["local_se"]
    assert abs(found["ratio"] - drawn / local) < 4 * found["ratio_se"]
    assert found["drawn_se"] < 0.1 * drawn
    assert found["local_se"] < 0.1 * local
    assert again == found


# -- what is compared with ----------------------------------------------------------------------------


def _parameters(network):
    """How many numbers are trained; blitz holds each under two names."""
    return sum({p.data_ptr(): p.numel() for p in network.parameters()}.values())


@pytest.mark.parametrize("name", PEERS)
def test_peers_have_the_same_shape(name):
    """A mean and a spread for every weight of the plain network; one step moves them."""
    if name not in installed():
        pytest.skip(f"{name} is not installed")
    network = peer(name, "lenet")
    assert _parameters(network) == 2 * _parameters(deterministic("lenet"))
    x, y = torch.rand(4, 1, 28, 28), torch.randint(0, 10, (4,))
    before = copy.deepcopy(network.state_dict())
    out, kl = network(x)
    assert (out.shape, kl.shape) == ((4, 10), ())
    assert kl.item() > 0
    step_of(network, x, y, 600)()
    assert all(bool((network.state_dict()[n] != before[n]).any()) for n, _ in network.named_parameters())


# -- parity -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "cases"),
    [
        ("cpu", ["mlp, LBBNN-LRT", "mlp, LBBNN"]),
        pytest.param(
            "cuda", ["mlp, LBBNN-LRT", "mlp, LBBNN", "mlp, LBBNN-FLOW, smooth"], marks=pytest.mark.gpu
        ),
    ],
)
def test_fast_eager_and_single_runs_end_in_the_same_place(device, cases, tmp_path, monkeypatch, capsys):
    """Ten seeds that meet no kink. On a CPU the step is run as it is recorded for the compiler."""
    if device == "cpu":
        monkeypatch.setattr(torch, "compile", lambda graph, **_: graph)
    path = tmp_path / "parity.json"
    assert parity.main(["--device", device, "--cases", *cases, "--out", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [row["case"] for row in rows] == cases
    for row in rows:
        assert row["fast – eager"]["largest"] <= 1e-5
        assert row["fast – alone"]["beyond"] == 0
        # Rounding's own share: seen, and small.
        assert 0.0 < row["CPU – double"]["largest"] <= 1e-4
        if device == "cpu":
            assert 0.0 < row["CPU – nudged"]["largest"] <= 1e-4
    assert "fast – eager" in capsys.readouterr().out


def test_what_differs_is_counted_by_parameters_and_by_seeds():
    """Two of three replicates, from the second on; one has two numbers over the limit, one no number."""
    ours = {"a": torch.zeros(3, 4), "b": torch.zeros(3)}
    theirs = {"a": torch.zeros(2, 4), "b": torch.zeros(2)}
    assert parity.difference(ours, theirs, 1)["seeds"] == 0
    ours["a"][1, 2:] = torch.tensor([2e-5, 3e-5])
    ours["a"][0] = 1.0  # a replicate that the other run does not have
    found = parity.difference(ours, theirs, 1)
    assert found["largest"] == pytest.approx(3e-5)
    assert (found["where"], found["beyond"], found["parameters"]) == ("a", 2, 10)
    assert (found["seeds"], found["replicates"]) == (1, 2)
    ours["b"][2] = torch.nan
    found, known = parity.difference(ours, theirs, 1), found
    assert (found["seeds"], found["where"]) == (2, "b")
    assert math.isnan(found["largest"])
    two = [{**known, "loss": 2e-7}, {**known, "largest": 1.0, "where": "b", "loss": 1e-7}]
    both = parity._together(two)
    assert (both["largest"], both["where"], both["loss"]) == (1.0, "b", 2e-7)
    assert (both["beyond"], both["seeds"], both["replicates"]) == (4, 2, 4)


def test_a_step_that_is_wrong_is_told_from_a_kink():
    def row(case, seeds, double=None):
        pairs = {pair: {"seeds": seeds} for pair in ("fast – eager", "fast – alone")}
        return {"case": case, **pairs, **({} if double is None else {"fast – eager, double": double})}

    good = {"largest": 1e-13, "mode": "compiled"}
    assert not parity._is_off(row("mlp, LBBNN", 2))
    assert parity._is_off(row("mlp, LBBNN", 3))
    assert parity._is_off(row("mlp, LBBNN-FLOW, smooth", 1))
    assert not parity._is_off(row("LeNet, LBBNN-LRT", 8, good))
    for wrong in ({"largest": 1e-9}, {"largest": math.nan}, {"mode": "eager"}):
        assert parity._is_off(row("LeNet, LBBNN-LRT", 0, {**good, **wrong}))


def test_the_first_sign_that_differs_and_how_many_at_the_end():
    """Three steps of two ReLUs: the second of step 2 differs in one place, those of step 3 in three."""
    single = [torch.tensor([0.5, -0.25, 1e-7, 2.0]) * sign for sign in (1, 1, 1, -1, 1, 1)]
    double = [x.clone().double() for x in single]
    double[3][2] = 3e-8
    double[4][:2] *= -1
    double[5][2] = 0.0
    found = kinks.parted(single, double, 2)
    assert (found["step"], found["last"]) == (2, 3)
    assert found["inputs"] == pytest.approx([-1e-7, 3e-8])
    assert found["median"] == 0.25
    assert kinks.parted(single, single, 2) == {"step": None, "last": 0}
    with pytest.raises(ValueError, match="shorter"):
        kinks.parted(single, double[:-1], 2)


def test_kinks_are_told_and_kept(tmp_path, monkeypatch, capsys):
    """A small network meets none; where a run has another start, the first step tells it."""
    path = tmp_path / "kinks.json"
    words = ["--cases", "mlp, LBBNN-LRT", "--seeds", "1", "--out", str(path)]
    kinks.main(words)
    (row,) = json.loads(path.read_text())["rows"]
    assert row["step"] is None
    assert max(row["apart"], row["smooth"]) < 1e-5
    assert capsys.readouterr().out.startswith("mlp, LBBNN-LRT, seed 1: no ReLU differs; apart ")
    assert f"| mlp, LBBNN-LRT | 1 | none | – | – | 0 | {row['apart']:.1e} |" in kinks.block(tmp_path)
    real = parity.in_double
    monkeypatch.setattr(parity, "in_double", lambda network, seeds: real(network, [seeds[0] + 1]))
    kinks.main(words)
    assert json.loads(path.read_text())["rows"][0]["step"] == 1
    assert "seed 1: step 1: input " in capsys.readouterr().out
    assert "| step 1 | " in kinks.block(tmp_path)
    assert kinks.block(tmp_path / "nowhere") == ""


def test_resnet_steps_are_compared_with_plain_ones(tmp_path, monkeypatch, capsys):
    """A whole run at toy size: ratios are those of the rows of the same batch."""
    out = tmp_path / "resnet.json"
    options = ["--depth", "8", "--batches", "2", "--steps", "1", "--rows", "4", "--device", "cpu"]
    monkeypatch.setattr("sys.argv", ["resnet", *options, "--out", str(out)])
    resnet.main()
    record = json.loads(out.read_text())
    step = {(row["method"], row["cudnn_benchmark"]): row["step_ms"] for row in record["rows"]}
    assert {method for method, _ in step} == {"lrt", "dense", "plain", "pytorch"}
    lines = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("lrt") and "plain" in line
    ]
    ratio = float(lines[0].split(" × plain")[0].split()[-1])
    assert ratio == pytest.approx(step["lrt", True] / step["plain", True], abs=0.02)
    apart = record["precision"]
    assert apart["kl_eager"] == pytest.approx(1.0, abs=1e-6)
    assert apart["cosine_mean_eager"] > 0.99
    assert record["kernels_lrt"][-1]["kernel"] == "all"
