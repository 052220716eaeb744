"""How the uncertainty study chose its settings and temperatures."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from studies.uncertainty import temperature as uncertainty_temperature
from studies.uncertainty.command import Spec as StudySpec
from studies.uncertainty.command import problems
from studies.uncertainty.methods import METHODS, fit, posterior
from studies.uncertainty.settings import Slabs
from studies.uncertainty.temperature import Spec, best, folds, held_out, table

ROOT = Path(__file__).resolve().parents[2]
SMALL = Spec(data_sets=2, hidden=8, steps=3)
OF = {method.key: method for method in METHODS}


# -- rates, steps and slabs ---------------------------------------------------------------------------


def test_slabs_of_width_one_are_the_study():
    """The same prior and the same start: the same network, to the last digit."""
    torch.manual_seed(0)
    own = Slabs("lrt", "", "spike_slab", 0.1, 1).network(6)
    torch.manual_seed(0)
    study = posterior("lrt").network(6)
    for a, b in zip(own.parameters(), study.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


# -- the temperature ----------------------------------------------------------------------------------


def test_folds_have_equally_many_rows_of_every_class():
    labels = torch.arange(5).repeat_interleave(10)
    of_row = folds(labels, 5, seed=3)
    for label in range(5):
        assert of_row[labels == label].bincount().tolist() == [2] * 5
    assert torch.equal(of_row, folds(labels, 5, seed=3))
    assert not torch.equal(of_row, folds(labels, 5, seed=4))


def test_cross_validation_sees_the_training_rows_of_the_study():
    inputs, labels, _ = uncertainty_temperature._rows(SMALL)
    data = problems(StudySpec(replicates=2), 10)
    assert torch.equal(inputs, torch.stack([problem.x for problem in data]))
    assert torch.equal(labels, data[0].y)


def test_held_out_rows_are_held_out():
    """Fold by fold and row by row, each network trained alone, without the rows it is asked about."""
    inputs, labels, of_row = uncertainty_temperature._rows(SMALL)
    method = replace(posterior("dense"), temperature=0.1, rate=0.3)
    found = held_out(method, inputs, labels, of_row, SMALL)
    for k in range(2):
        total = 0.0
        for fold in range(5):
            away = of_row[k] == fold
            seed = 5 * k + fold
            (networks,), _ = fit(method, inputs[k : k + 1, ~away], labels[~away], 8, 50, seed, 3)
            for x, y in zip(inputs[k][away].split(10), labels[away].split(10)):
                probs = method.predict(networks, x, 10, 0).probs
                total += float(probs[torch.arange(len(y)), y].double().log().sum())
        assert found[k] == pytest.approx(total / 50, rel=1e-4)


def test_a_best_temperature_at_the_edge_is_followed(monkeypatch):
    top = {"lrt": 0.1, "dense": 0.01}

    def score(key, temperature, spec):
        return {"method": key, "temperature": temperature, "log_density": [-abs(temperature - top[key])]}

    monkeypatch.setattr(uncertainty_temperature, "_score", score)
    rows = uncertainty_temperature.run(replace(SMALL, methods=("lrt", "dense")))
    assert min(row["temperature"] for row in rows) == 0.01
    rows = uncertainty_temperature.run(replace(SMALL, methods=("lrt", "dense"), further=5))
    assert best(rows) == top
    assert [row["temperature"] for row in rows if row["method"] == "lrt"] == [1.0, 0.3, 0.1, 0.03]
    assert [row["temperature"] for row in rows if row["method"] == "dense"] == [
        1.0,
        0.3,
        0.1,
        0.03,
        0.01,
        0.003,
    ]
    lines = table([{**row, "log_density": [row["log_density"][0]] * 2} for row in rows]).splitlines()
    assert "| **0.000 ± 0.000** |" in lines[2].replace("-0.000", "0.000")
    assert lines[2].endswith("| – | – |")


def test_the_command(tmp_path, capsys):
    assert uncertainty_temperature.main(["--quick", "--out", str(tmp_path), "--workers", "1"]) == 0
    path = tmp_path / "results/uncertainty_temperature/uncertainty_temperature.json"
    rows = json.loads(path.read_text())["rows"]
    assert {row["method"] for row in rows} == {"lrt"}
    assert all(len(row["log_density"]) == 2 for row in rows)
    assert "| LBBNN-LRT |" in capsys.readouterr().out
