"""The exact law against enumeration and against the library's draws; what examples share."""

from __future__ import annotations

import json
import math

import pytest
import torch

import sparsebnn
from studies.bounds import lrt_gap
from studies.bounds.exact_regression import all_structures
from studies.bounds.lrt_gap import Spec, Unit, distances, drawn_distances, exact_law, make_unit


def unit_of(width: int, density: float, polarised: bool = False, seed: int = 0) -> Unit:
    generator = torch.Generator().manual_seed(seed)
    return make_unit(width, density, polarised, 0.1, generator)


def mixture(unit: Unit) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mass, mean and standard deviation of the pre-activation given each structure."""
    structures = all_structures(len(unit.x))
    inclusion = unit.inclusion
    mass = torch.where(structures.bool(), inclusion, 1.0 - inclusion).prod(1)
    mean = structures @ (unit.x * unit.mean)
    std = (structures @ (unit.x * unit.std) ** 2).sqrt()
    return mass, mean, std


def enumerated(unit: Unit, at: torch.Tensor, strict: bool) -> torch.Tensor:
    """P(h < at) or P(h ≤ at) as a sum over structures; the empty one is an atom at 0."""
    mass, mean, std = mixture(unit)
    found = mass[0] * ((at > 1e-12) if strict else (at >= -1e-12))
    for m, centre, spread in zip(mass[1:], mean[1:], std[1:]):
        found = found + m * torch.special.ndtr((at - centre) / spread)
    return found


CASES = [
    (1, 0.3, False),
    (2, 0.05, False),
    (5, 0.5, True),
    (8, 0.25, False),
    (8, 0.9, False),
    (10, 0.1, True),
]


@pytest.mark.parametrize(("width", "density", "polarised"), CASES)
def test_exact_law_is_the_sum_over_all_structures(width, density, polarised):
    unit = unit_of(width, density, polarised)
    law = exact_law(unit)
    centre, scale = unit.local_moments()
    at = centre + scale * law.at
    assert float((law.below - enumerated(unit, at, strict=True)).abs().max()) < 1e-4
    assert float((law.upto - enumerated(unit, at, strict=False)).abs().max()) < 1e-4


@pytest.mark.parametrize(("width", "density", "polarised"), CASES)
def test_local_moments_are_those_of_the_enumeration(width, density, polarised):
    unit = unit_of(width, density, polarised)
    mass, mean, std = mixture(unit)
    expected = (mass * mean).sum()
    variance = (mass * (std**2 + mean**2)).sum() - expected**2
    centre, scale = unit.local_moments()
    assert centre == pytest.approx(float(expected), abs=1e-10)
    assert scale**2 == pytest.approx(float(variance), abs=1e-10)


def test_a_single_uncertain_weight_has_the_distance_of_a_two_point_law():
    """With a tiny std h is 0 or xμ; the Gaussian's distance from two points is known."""
    one = torch.ones(1, dtype=torch.float64)
    unit = Unit(one, 0.01 * one, torch.logit(0.3 * one), one)
    std = math.sqrt(0.3 * 0.7)
    below = torch.special.ndtr(torch.tensor(-0.3 / std, dtype=torch.float64))
    between = torch.special.ndtr(torch.tensor(0.7 / std, dtype=torch.float64))
    expected = max(0.7 - float(below), float(below), float(between) - 0.7, 1.0 - float(between))
    assert distances(unit)[0] == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("polarised", [False, True])
def test_draws_of_the_layer_follow_the_exact_law(polarised):
    draws = 20_000
    # Dvoretzky, Kiefer and Wolfowitz: exceeded once in a million.
    limit = math.sqrt(math.log(2.0 / 1e-6) / (2.0 * draws))
    unit = unit_of(16, 0.1, polarised)
    from_gaussian, from_exact = drawn_distances(unit, draws, seed=5)
    assert from_exact < limit
    assert abs(from_gaussian - distances(unit)[0]) < limit
    assert from_gaussian > 5 * limit


def test_examples_share_whole_weights_and_nothing_else():
    """Correlation of two examples under drawn weights: Σ x_a x_b Var w over the root of the variances."""
    layer = sparsebnn.Linear(8, 1, bias=False, dtype=torch.float64)
    x = torch.rand(2, 8, dtype=torch.float64)
    row = lrt_gap._both_ways(layer, x, Spec(joint_draws=20_000))
    var = layer.weights.moments().var[0].detach()
    expected = (x[0] * x[1] * var).sum() / ((x[0] ** 2 * var).sum() * (x[1] ** 2 * var).sum()).sqrt()
    assert row["correlation_weights"] == pytest.approx(float(expected), abs=4 / math.sqrt(20_000))
    assert row["correlation_local"] == pytest.approx(0.0, abs=4 / math.sqrt(20_000))


def test_quick_study_runs_and_distances_fall_with_width(tmp_path):
    lrt_gap.main(["--quick", "--out", str(tmp_path)])
    text = (tmp_path / "results" / "lrt_gap" / "lrt_gap.json").read_text()
    record = json.loads(text)
    assert record["provenance"]["command"] == "python -m studies lrt_gap --quick"
    assert str(tmp_path) not in text
    by_cell = {(r["polarised"], r["density"], r["width"]): r["kolmogorov"] for r in record["distances"]}
    for polarised in (False, True):
        for density in (0.05, 0.5):
            assert by_cell[polarised, density, 64] < by_cell[polarised, density, 1]
    picture = (tmp_path / "docs" / "images" / "lrt_gap.png").stat().st_size
    assert 5_000 < picture < 150_000
