"""The gap between the two auxiliary estimates against their definitions."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch.distributions import Normal

from sparsebnn.random.noise import RandomNoise
from studies.bounds import auxiliary_gap
from studies.bounds.auxiliary_gap import TRAINED_LIKE, Shape, Spec, gap, make_family, one_number

SIGMAS = 4.0
SQUARE = Shape("3×2", (3, 2))
CONVOLUTION = Shape("conv", (3, 2, 2, 2))


def log_r(family, z: torch.Tensor, s: torch.Tensor, squash: bool) -> torch.Tensor:
    """log r(z | s) for rows of z and of s, from the paper's formula."""
    s_bar = (s.clamp(-1.0, 1.0) if squash else s).mean(1, keepdim=True)
    z_b, log_det = family.r_flow(z)
    std = torch.exp(0.5 * family.auxiliary_log_var * s_bar)
    return Normal(family.auxiliary_mean * s_bar, std).log_prob(z_b).sum(1) + log_det


@torch.no_grad()
@pytest.mark.parametrize("shape", [SQUARE, CONVOLUTION])
def test_gap_is_the_difference_of_the_two_definitions(shape):
    torch.manual_seed(3)
    spec, draws = Spec(most_draws=20_000), 20_000
    family = make_family(shape, "moments", spec, TRAINED_LIKE)
    # An r that leans on the weights and weights that bend the hard-tanh: a gap that cannot be missed.
    family.conditional.mean.uniform_(0.5, 1.5)
    family.conditional.inclusion_logit.uniform_(-3.0, -1.0)
    family.auxiliary_direction.uniform_(0.5, 1.5)
    family.auxiliary_mean.uniform_(2.0, 4.0)
    family.auxiliary_log_var.uniform_(-6.0, -4.0)
    found = gap(family, shape, spec, budget=20_000 * 24, seed=0)

    conditional, axis = family.conditional, family.z_axis
    z, _ = family.draw_z(RandomNoise(), draws)
    scale = z.reshape(draws, *[family.dim if i == axis else 1 for i in range(len(shape.size))])
    e = family.auxiliary_direction.reshape([family.dim if i == axis else 1 for i in range(len(shape.size))])
    mean, std, alpha = conditional.mean * scale, conditional.std, conditional.inclusion_prob()
    there = (torch.rand_like(mean) < alpha).double()
    drawn = (e * there * (mean + std * torch.randn_like(mean))).sum(axis + 1).flatten(1)
    centre = (e * alpha * mean).sum(axis + 1).flatten(1)
    var = (e**2 * alpha * (std**2 + (1.0 - alpha) * mean**2)).sum(axis + 1).flatten(1)
    gaussian = centre + var.sqrt() * torch.randn_like(centre)
    squash = shape.dense
    difference = log_r(family, z, drawn, squash) - log_r(family, z, gaussian, squash)
    error = math.hypot(found["se"], float(difference.std()) / draws**0.5)
    assert abs(found["gap"] - float(difference.mean())) < SIGMAS * error
    assert abs(found["gap"]) > SIGMAS * found["se"]


@torch.no_grad()
def test_without_randomness_in_the_weights_there_is_no_gap():
    torch.manual_seed(0)
    family = make_family(SQUARE, "moments", Spec(), TRAINED_LIKE)
    family.conditional.inclusion_logit.fill_(60.0)
    family.conditional.raw_std.fill_(-40.0)
    found = gap(family, SQUARE, Spec(), budget=1200, seed=0)
    assert abs(found["gap"]) < 1e-8


@torch.no_grad()
def test_the_number_r_sees_has_the_exact_spread_both_ways_while_nothing_is_clipped():
    torch.manual_seed(1)
    family, draws = make_family(SQUARE, "moments", Spec(), TRAINED_LIKE), 20_000
    family.auxiliary_direction.mul_(0.02)
    found = one_number(family, draws, seed=0)
    # The same z again, and the variance of the mean of independent sums.
    z, _ = family.draw_z(RandomNoise(torch.Generator().manual_seed(0)))
    e = family.auxiliary_direction
    var = (e**2 * family.conditional.moments(family.scale(z)).var).sum() / SQUARE.size[0] ** 2
    sums = torch.stack(
        [(e * family.conditional.draw(RandomNoise(), family.scale(z))).sum(1) for _ in range(4000)]
    )
    s_bar = sums.mean(1)
    kurtosis = float(((s_bar - s_bar.mean()) ** 4).mean() / s_bar.var() ** 2)
    for name, fourth in (("s_std_moments", 3.0), ("s_std_drawn", kurtosis)):
        relative = math.sqrt((fourth - 1.0) / (4.0 * draws))
        assert found[name] == pytest.approx(float(var.sqrt()), rel=SIGMAS * relative)


def test_quick_study_runs(tmp_path):
    auxiliary_gap.main(["--quick", "--out", str(tmp_path)])
    text = (tmp_path / "results" / "auxiliary_gap" / "auxiliary_gap.json").read_text()
    record = json.loads(text)
    assert record["provenance"]["command"] == "python -m studies auxiliary_gap --quick"
    assert str(tmp_path) not in text
    settings = {row["setting"] for row in record["rows"]}
    assert {"paper's start", "library's start", "trained-like", "trained on moments"} <= settings
    # At both starts the weights are too small for the hard-tanh to bend.
    starts = [row for row in record["rows"] if row["setting"].endswith("start")]
    assert all(abs(row["gap"]) < 0.01 for row in starts)
    assert (tmp_path / "docs" / "images" / "auxiliary_gap.png").stat().st_size < 150_000
