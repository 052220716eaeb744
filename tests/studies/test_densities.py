"""Why these densities: drift against a simulation, the small study, its page against its file."""

from __future__ import annotations

import json

import pytest
import torch

from sparsebnn.init import Uniform
from sparsebnn.training import Settings
from sparsebnn.training.optimizers import Steps
from studies.tables import ablations, densities
from studies.tables.paper import cell


@pytest.mark.parametrize(
    ("low", "high", "distance"), [(-15.0, 10.0, 8.25), (-10.0, 15.0, 20.0), (0.0, 1.0, 0.3)]
)
def test_drift_is_the_share_that_stays_above_zero(low, high, distance):
    starts = torch.empty(40_000).uniform_(low, high, generator=torch.Generator().manual_seed(0))
    share = densities.drift_density(Uniform(low, high), distance)
    error = 4.0 * (share * (1.0 - share) / len(starts)) ** 0.5
    assert float((starts - distance > 0).double().mean()) == pytest.approx(share, abs=error + 1e-12)


def test_travel_sums_the_rates_of_the_logits():
    rates = {"inclusion_logit": 0.5}
    settings = Settings(epochs=4, learning_rate=9.0, learning_rates=rates, schedule=Steps((3,)))
    assert densities.travel(settings, 10) == pytest.approx(10 * (3 * 0.5 + 0.05))
    assert densities.travel(settings, 10, epochs=2) == pytest.approx(10.0)
    assert densities.travel(cell("lenet", "lrt").settings, 600) == pytest.approx(600 * 1e-4 * (80 + 8 + 0.9))


def test_the_ablations_change_one_thing_each():
    class Given:
        quick, epochs, draws, cases = False, None, 100, list(ablations.CASES)

    jobs = {job.stem: job for job in ablations.jobs(Given())}
    per_row, tanh, mnf = (
        jobs[s] for s in ("kmnist-fc-z-per-observation", "kmnist-fc-tanh", "mnist-lenet-mnf")
    )
    for job, architecture in ((per_row, "fc"), (tanh, "fc"), (mnf, "lenet")):
        base, changed = cell(architecture, "flow").record(), job.cell.record()
        differing = {key for key in base if base[key] != changed[key]}
        assert differing == ({"family", "prior"} if job is mnf else {"family_options"})
    assert per_row.cell.network()[0].weights.z_per == "example"
    assert tanh.cell.network()[0].weights.squash == "tanh"
    assert mnf.cell.network()[0].family == "mnf"


def test_an_ablation_beside_its_baseline(tmp_path):
    def store(study, stem, accuracy, density):
        rows = [{"accuracy_median": accuracy, "accuracy_average": accuracy + 0.01, "density": density}] * 10
        path = tmp_path / study / f"{stem}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"replicates": rows}))

    store("table2", "mnist-flow", 0.98, 0.35)
    store("ablations", "mnist-lenet-mnf", 0.985, 1.0)
    base, ours, published = ablations.rows(tmp_path)[-3:]
    assert base[1:3] == ["98.00 / 98.00 / 98.00", "0.350"]
    assert ours[2:6] == ["1", "+0.50", "+0.50 to +0.50", "99.50 / 99.50 / 99.50"]
    assert published[5] == "99.30"
