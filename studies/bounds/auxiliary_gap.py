r"""What the paper's shortcut in the auxiliary distribution costs: ``"moments"`` against ``"drawn"``.

The flow family's bound contains :math:`\mathbb E \log r(z \mid W, \Gamma)`, and r sees the weights through
:math:`s = e^\top (W\odot\Gamma)`. ``auxiliary="drawn"`` draws W and Γ: a true bound. ``"moments"``, the
paper's practice, draws s from a Gaussian with its moments, and that Gaussian passes through a hard-tanh,
a mean over the columns and an exponential:

.. math::
    \log r = \sum_i \log\mathcal N\big(z_{B,i};\, d_{1,i}\bar s,\, e^{d_{2,i}\bar s}\big) + \log|\det|,
    \qquad \bar s = \operatorname{mean}\,\sigma(s)

This study measures the difference of the two KL estimates, same parameters and same z, by layer width:

.. math:: \mathrm{gap} = \mathbb E[\mathrm{KL}_{\text{moments}}] - \mathbb E[\mathrm{KL}_{\text{drawn}}]

A negative gap means that the shortcut reports a better bound than there is.

Run: ``python -m studies auxiliary_gap``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

import sparsebnn
from sparsebnn.init import Initial, Normal, Uniform
from sparsebnn.likelihoods import Gaussian
from sparsebnn.posteriors import FlowFamily, SpikeSlab
from sparsebnn.posteriors.base import contract
from sparsebnn.random.noise import NoiseBuffer, RandomNoise
from sparsebnn.training import Settings
from studies.runner import Study, arguments
from studies.style import COLOURS

__all__ = ["Spec", "Shape", "gap", "run"]

_DTYPE = torch.float64

PAPER_START = Initial(
    mean=Uniform(-0.01, 0.01),
    raw_std=Normal(-9.0, 0.1),
    inclusion_logit=Uniform(-15.0, 10.0),
    z0_mean=Normal(0.0, 1.0),
    z0_log_var=Normal(-9.0, 1.0),
    auxiliary=Normal(0.0, 1.0),
)
# Weights large enough for the hard-tanh to bend, and a direction e and slopes d of size 1.
TRAINED_LIKE = Initial(
    mean=Normal(0.0, 1.0),
    raw_std=Normal(-2.0, 0.1),
    z0_mean=Normal(1.0, 0.3),
    z0_log_var=Normal(-3.0, 0.3),
    auxiliary=Normal(0.0, 1.0),
)
SETTINGS = {
    "paper's start": PAPER_START,
    "library's start": Initial(),
    "trained-like": TRAINED_LIKE,
}


@dataclass(frozen=True)
class Shape:
    """A weight tensor as the family sees it: dense (out, in) or a convolution's."""

    name: str
    size: tuple[int, ...]

    @property
    def dense(self) -> bool:
        return len(self.size) == 2


def _square(width: int) -> Shape:
    return Shape(f"{width}×{width}", (width, width))


@dataclass(frozen=True)
class Spec:
    """Every cell averages ``settings_each`` parameter settings; a budget bounds the weights each draws."""

    shapes: tuple[Shape, ...] = (
        *(_square(2**k) for k in range(1, 10)),
        Shape("conv 32×1×5×5", (32, 1, 5, 5)),
        Shape("conv 48×32×5×5", (48, 32, 5, 5)),
    )
    trained_widths: tuple[int, ...] = (2, 8, 16, 32, 64, 128)
    trained_epochs: int = 500
    trained_budget: int = 4_000_000
    share_there: float = 0.1
    hidden: tuple[int, ...] = (32, 32)
    settings_each: int = 4
    budget: int = 500_000
    most_draws: int = 10_000
    fewest_draws: int = 12
    seed: int = 0

    @classmethod
    def quick(cls, seed: int = 0) -> Spec:
        """Narrow layers only."""
        shapes = (_square(2), _square(16), Shape("conv 4×2×3×3", (4, 2, 3, 3)))
        draws = {"budget": 200_000, "trained_budget": 200_000, "most_draws": 1000}
        few = {"settings_each": 2, "trained_epochs": 20, "seed": seed, **draws}
        return dataclasses.replace(cls(shapes=shapes, trained_widths=(4,)), **few)  # type: ignore[arg-type]


def make_family(shape: Shape, auxiliary: str, spec: Spec, start: Initial = Initial()) -> FlowFamily:
    """The flow family as a dense or a convolutional layer of that shape would build it."""
    return FlowFamily(
        shape.size,
        sparsebnn.posteriors.SpikeSlabPrior(0.1),
        start,
        z_axis=1 if shape.dense else 0,
        auxiliary=auxiliary,
        squash="hardtanh" if shape.dense else "identity",
        hidden=spec.hidden,
    ).to(_DTYPE)


@torch.no_grad()
def _polarise(family: FlowFamily, share_there: float) -> None:
    """Inclusions as training leaves them: a share almost surely there, the rest almost surely not."""
    conditional = family.conditional
    assert isinstance(conditional, SpikeSlab)
    logit = conditional.inclusion_logit
    there = torch.rand_like(logit) < share_there
    logit.copy_(torch.randn_like(logit) + torch.where(there, 4.0, -4.0))


@torch.no_grad()
def gap(family: FlowFamily, shape: Shape, spec: Spec, budget: int, seed: int) -> dict[str, Any]:
    """Mean of KL(moments) − KL(drawn) over draws with the same z, with its standard error."""
    pair = []
    for auxiliary in ("moments", "drawn"):
        twin = make_family(shape, auxiliary, spec)
        twin.load_state_dict(family.state_dict())
        pair.append(twin)
    numel, dim = math.prod(shape.size), family.dim
    draws = min(spec.most_draws, max(spec.fewest_draws, budget // numel))
    generator, like = torch.Generator().manual_seed(seed), torch.zeros((), dtype=_DTYPE)

    def both(z_noise: Tensor, s_noise: Tensor, w_noise: Tensor, g_noise: Tensor) -> tuple[Tensor, Tensor]:
        moments = pair[0].kl(NoiseBuffer(torch.cat([z_noise, s_noise]), g_noise))
        drawn = pair[1].kl(NoiseBuffer(torch.cat([z_noise, w_noise]), g_noise))
        return moments, drawn

    differences, totals = [], []
    chunk = max(1, min(draws, 4_000_000 // numel))
    for first in range(0, draws, chunk):
        n, fresh = min(chunk, draws - first), RandomNoise(generator)
        z_noise, s_noise, w_noise = (fresh.normal((n, size), like) for size in (dim, numel // dim, numel))
        moments, drawn = vmap(both)(z_noise, s_noise, w_noise, fresh.logistic((n, numel), like))
        differences.append(moments - drawn)
        totals.append(drawn)
    difference = torch.cat(differences)
    return {
        "gap": float(difference.mean()),
        "se": float(difference.std()) / math.sqrt(draws),
        "kl": float(torch.cat(totals).mean()),
        "draws": draws,
    }


@torch.no_grad()
def one_number(family: FlowFamily, draws: int, seed: int) -> dict[str, float]:
    """What r sees: |mean| of s̄ given one z, and its standard deviation by Gaussian and by drawn weights."""
    fresh = RandomNoise(torch.Generator().manual_seed(seed))
    scale = family.scale(family.draw_z(fresh)[0])
    e, axis, conditional = family.auxiliary_direction, family.z_axis, family.conditional
    mean, var = conditional.moments(scale)[:2]
    centre, spread = contract(e, mean, axis), contract(e**2, var, axis).sqrt()
    gaussian = centre + spread * fresh.normal((draws, len(centre)), centre)
    drawn = torch.stack([contract(e, conditional.draw(fresh, scale), axis) for _ in range(draws)])
    # Dense layers clip at ±1, convolutions do not.
    limit = 1.0 if family.squash == "hardtanh" else math.inf
    by_gaussian, by_draws = (s.clamp(-limit, limit).mean(1) for s in (gaussian, drawn))
    return {
        "s_mean": abs(float(by_draws.mean())),
        "s_std_moments": float(by_gaussian.std()),
        "s_std_drawn": float(by_draws.std()),
    }


def _trained(shape: Shape, auxiliary: str, spec: Spec) -> list[FlowFamily]:
    """Layers trained on a sparse linear teacher, with one auxiliary or the other."""
    out, inputs = shape.size
    generator = torch.Generator().manual_seed(spec.seed)
    x = torch.randn(200, inputs, generator=generator)
    # Every output has its own input; some share more.
    there = torch.eye(inputs) + (torch.rand(inputs, out, generator=generator) < spec.share_there)
    teacher = torch.randn(inputs, out, generator=generator) * there.clamp_max(1.0)
    y = x @ teacher + 0.5 * torch.randn(200, out, generator=generator)
    prior, options = sparsebnn.posteriors.SpikeSlabPrior(0.1), {"hidden": spec.hidden, "auxiliary": auxiliary}
    layer = sparsebnn.Linear(inputs, out, family="flow", prior=prior, family_options=options)
    likelihood = Gaussian(out, noise="fixed", std=0.5)
    rates = {"inclusion_logit": 0.1}  # the inclusions have far to go from a dense start
    settings = Settings(epochs=spec.trained_epochs, batch_size=200, learning_rate=0.02, learning_rates=rates)
    run = sparsebnn.train(
        layer,
        (x, y),
        likelihood=likelihood,
        settings=settings,
        replicates=spec.settings_each,
        seed=spec.seed,
        device="cpu",
        mode="eager",
        progress=False,
    )
    families = []
    for network in run.networks:
        assert isinstance(network, sparsebnn.Linear)
        assert isinstance(network.weights, FlowFamily)
        families.append(network.weights.to(_DTYPE))
    return families


def run(spec: Spec) -> list[dict[str, Any]]:
    """One row per setting and shape, averaged over parameter settings."""
    rows = []
    for name, start in SETTINGS.items():
        for shape in spec.shapes:
            families = []
            for k in range(spec.settings_each):
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(spec.seed + k)
                    families.append(make_family(shape, "moments", spec, start))
                    if name == "trained-like":
                        _polarise(families[-1], spec.share_there)
            rows.append(_row(name, shape, families, spec, spec.budget))
    for auxiliary in ("moments", "drawn"):
        for width in spec.trained_widths:
            families = _trained(_square(width), auxiliary, spec)
            rows.append(_row(f"trained on {auxiliary}", _square(width), families, spec, spec.trained_budget))
    return rows


def _row(name: str, shape: Shape, families: Sequence[FlowFamily], spec: Spec, budget: int) -> dict[str, Any]:
    found = [gap(family, shape, spec, budget, spec.seed + k) for k, family in enumerate(families)]
    n = len(found)
    numbers = [one_number(family, max(20, found[0]["draws"] // 2), spec.seed) for family in families]
    return {
        "setting": name,
        "shape": shape.name,
        "size": list(shape.size),
        "gap": sum(f["gap"] for f in found) / n,
        "se": math.sqrt(sum(f["se"] ** 2 for f in found)) / n,
        "gap_largest": max((f["gap"] for f in found), key=abs),
        "kl": sum(f["kl"] for f in found) / n,
        "density": sum(float((f.inclusion_prob() > 0.5).double().mean()) for f in families) / n,
        **{key: sum(number[key] for number in numbers) / n for key in numbers[0]},
        "draws": int(found[0]["draws"]),
        "gaps": [f["gap"] for f in found],
        "ses": [f["se"] for f in found],
    }


# --- the command -------------------------------------------------------------------------------------


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Gaps in nats with their standard errors, the KL they belong to, and the number r sees."""
    head = "      gap     s.e.   largest          KL density   draws   |mean s̄|  sd, moments   drawn"
    text = []
    for setting in dict.fromkeys(row["setting"] for row in rows):
        text += ["", f"{setting:18s}{head}"]
        for row in rows:
            if row["setting"] == setting:
                text.append(
                    f"  {row['shape']:16s} {row['gap']:+8.4f} {row['se']:8.4f} {row['gap_largest']:+9.4f} "
                    f"{row['kl']:11.1f} {row['density']:7.2f} {row['draws']:7d} {row['s_mean']:10.3f} "
                    f"{row['s_std_moments']:11.4f} {row['s_std_drawn']:8.4f}"
                )
    return "\n".join(text)


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Gap against width for dense layers, a line per setting, bars of two standard errors."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.0), layout="constrained")
    axis = figure.subplots()
    for i, setting in enumerate(dict.fromkeys(row["setting"] for row in rows)):
        own = [row for row in rows if row["setting"] == setting and len(row["size"]) == 2]
        widths = [row["size"][0] * 1.04**i for row in own]
        bars = [2.0 * row["se"] for row in own]
        style = {"color": COLOURS[i], "marker": "osD^v"[i], "markersize": 5, "capsize": 3, "label": setting}
        axis.errorbar(widths, [row["gap"] for row in own], bars, **style)
    axis.axhline(0.0, color="0.3", linewidth=0.8)
    axis.set_xscale("log", base=2)
    axis.set_xticks([2**k for k in range(1, 10)], [str(2**k) for k in range(1, 10)])
    axis.set_xlabel("width of the layer (inputs = outputs)")
    axis.set_ylabel("KL(moments) − KL(drawn), nats")
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=9)
    figure.savefig(path, dpi=100)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the study, print its table, write its result file and its figure."""
    claim = "The flow family's KL with moments against drawn weights in its auxiliary distribution."
    study = Study("auxiliary_gap", arguments("auxiliary_gap", claim, argv))
    spec = Spec.quick(study.given.seed) if study.given.quick else Spec(seed=study.given.seed)
    # Many small operations: a second thread would mostly wait.
    torch.set_num_threads(1)
    rows = run(spec)
    print(table(rows))
    path = study.save(spec, range(spec.seed, spec.seed + spec.settings_each), rows=rows)
    draw(rows, study.figure)
    print(f"Wrote {path} and {study.figure}.")
