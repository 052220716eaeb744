"""Table 3 and the studies around it: their measures, their data, their files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import sparsebnn
from sparsebnn.init import Initial
from studies.data.columns import standardised
from studies.data.logistic import simulate_logistic
from studies.selection import fdr as selection_fdr
from studies.selection import power as selection_power
from studies.selection import table3
from studies.selection import truth as selection_truth
from studies.selection.logistic import (
    inclusions,
    layer,
    mean_and_error,
    rates,
    settings,
    train_each,
)

# --- measures and settings ---------------------------------------------------------------------------


def test_rates_are_ratios_per_fit():
    chosen = np.array([[1, 1, 0, 0], [0, 1, 1, 1]], dtype=bool)
    tpr, fpr = rates(chosen, np.array([True, True, True, False]))
    np.testing.assert_allclose(tpr, [2 / 3, 2 / 3])
    np.testing.assert_allclose(fpr, [0.0, 1.0])
    mean, error = mean_and_error([0.0, 1.0, 0.5])
    assert (mean, error) == (0.5, pytest.approx(0.5 / np.sqrt(3)))


def test_settings_are_the_papers():
    lrt, flow = settings("lrt"), settings("flow")
    assert (lrt.epochs, lrt.batch_size, lrt.shuffle, lrt.temperature) == (500, 400, False, 1.0)
    assert lrt.rate("", 0) == lrt.rate("", 499) == 0.01
    assert [flow.rate("", epoch) for epoch in (0, 249)] == [0.01, 0.01]
    assert flow.rate("", 250) == pytest.approx(0.001)
    weights = layer("flow").weights
    assert weights.conditional.inclusion_logit.min() > 1.5
    assert weights.conditional.inclusion_logit.max() < 2.5
    assert weights.z0_mean.abs().max() < 0.01
    assert (weights.z0_log_var + 9.0).abs().max() < 0.01
    assert float(weights.conditional.prior.inclusion_prob) == 0.25


@pytest.mark.parametrize("kind", ["bernoulli", "gaussian"])
def test_a_data_set_of_its_own_trains_as_the_same_data_alone(kind):
    """Rows by number from a buffer, targets folded into the outputs: as in plain training."""
    data = simulate_logistic(60, seed=1)
    x = standardised(data.x)[:, 6:]
    y = data.y if kind == "bernoulli" else x[:, 0] + 0.1 * data.y
    how = settings("lrt", 5, 20)
    twice = train_each(
        layer("lrt", 14), np.stack([x, x[::-1]]), np.stack([y, y[::-1]]), how, [3, 4], kind=kind
    )
    fixed = sparsebnn.training.loop.likelihoods.Gaussian(noise="fixed", std=1.0)
    alone = sparsebnn.train(
        layer("lrt", 14),
        (torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)),
        likelihood="bernoulli" if kind == "bernoulli" else fixed,
        settings=how,
        replicates=[3, 5],
        progress=False,
    )
    np.testing.assert_allclose(inclusions(twice)[0], inclusions(alone)[0], atol=1e-5)


def test_fdr_data_come_from_the_prior():
    spec = selection_fdr.Spec(inputs=200)
    made = [selection_fdr.simulate(selection_fdr.SCENARIOS[0], k, spec) for k in range(20)]
    share = np.mean([there.mean() for _, there in made])
    assert abs(share - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 4000)
    problem, there = made[0]
    # Slab and noise of std 1 and an intercept: what is left after the true inputs is noise.
    design = np.column_stack([problem.x[:, there], np.ones(len(problem.y))])
    left = problem.y - design @ np.linalg.lstsq(design, problem.y, rcond=None)[0]
    freedom = len(problem.y) - design.shape[1]
    assert abs((left**2).sum() / freedom - 1.0) < 4 * np.sqrt(2.0 / freedom)


# --- the commands ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Every study in its quick version, in one folder."""
    out = tmp_path_factory.mktemp("studies")
    table3.main(["--quick", "--simulate", "--out", str(out)])
    for study in (selection_truth, selection_fdr, selection_power):
        study.main(["--quick", "--out", str(out)])
    return out


@pytest.mark.parametrize("method", ["cs", "lrt", "flow"])
def test_table3_writes_a_file_per_method(quick, method):
    text = (quick / "results" / "table3" / f"{method}.json").read_text()
    record = json.loads(text)
    assert record["provenance"]["command"] == "python -m studies table3 --simulate --quick"
    assert record["provenance"]["seeds"] == [0, 1, 2]
    assert record["data"] == {"source": "simulated", "x_sha256": None}
    assert str(quick) not in text
    # TPR and FPR again from the frequencies: means of ratios with a common denominator.
    frequency, nonzero = np.array(record["inclusion_frequency"]), np.array(record["nonzero"])
    assert record["tpr"] == pytest.approx(frequency[nonzero].mean(), abs=1e-5)
    assert record["fpr"] == pytest.approx(frequency[~nonzero].mean(), abs=1e-5)


def test_quick_truth_study_has_mcmc_near_the_exact_probabilities(quick):
    record = json.loads((quick / "results" / "selection_truth" / "selection_truth.json").read_text())
    rows = record["rows"]
    exact = {(r["kind"], r["correlation"]): r for r in rows if r["method"] == "exact"}
    for row in (r for r in rows if r["method"] == "MCMC"):
        truth = exact[row["kind"], row["correlation"]]
        error = 4 * np.hypot(row["monte_carlo_error"], truth["monte_carlo_error"]) + 0.01
        assert np.abs(np.array(row["inclusion"]) - truth["inclusion"]).max() < error
        assert row["error"] == pytest.approx(
            np.abs(np.array(row["inclusion"]) - truth["inclusion"]).mean(), abs=1e-5
        )


@pytest.mark.slow
def test_relaxed_inclusions_learn_the_exact_probabilities():
    """The ``concrete`` family at its default relaxation, against enumeration."""
    spec = selection_truth.Spec(coefficients=(1.0, 0.4, 0.0, 0.0))
    problems = [selection_truth.simulate("gaussian", 0.0, number, spec) for number in range(8)]
    exact = np.stack([selection_truth.exact(problem, spec)[0] for problem in problems])
    network = selection_truth.Network("LBBNN", "lbbnn", Initial(), rate=0.05, steps=700, logit_rate=0.1)
    fitted = selection_truth.fit_network(network, problems, restarts=1, steps=1.0, seed=0)[:, 0]
    # At a relaxation of 0.001 it is 0.4: hardly an inclusion logit has a gradient there.
    assert np.abs(fitted - exact).mean() < 0.05


def test_some_methods_are_added_to_the_result_file(quick, tmp_path):
    """As they would be among all; the rest of the file stays as it was."""
    name = Path("results") / "selection_truth" / "selection_truth.json"
    before, path = json.loads((quick / name).read_text()), tmp_path / name
    path.parent.mkdir(parents=True)
    less = {**before, "rows": [row for row in before["rows"] if row["method"] != "LBBNN"]}
    path.write_text(json.dumps(less))
    selection_truth.main(["--quick", "--methods", "LBBNN", "--out", str(tmp_path)])
    after = json.loads(path.read_text())
    assert after["added"][0]["command"].endswith("selection_truth --methods LBBNN --quick")

    def by_place(rows):
        return {(row["kind"], row["correlation"], row["method"]): row for row in rows}

    assert by_place(after["rows"]) == by_place(before["rows"])
    assert after["provenance"] == before["provenance"]
