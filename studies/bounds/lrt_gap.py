r"""How far the local reparametrization is from drawing Γ and W: distances of pre-activations.

The paper replaces :math:`h = \sum_i x_i\gamma_i w_i` by a Gaussian with its moments,

.. math::
    \tilde h \sim \mathcal N\Big(\sum_i x_i\tilde\alpha_i\tilde\mu_i,\;
    \sum_i x_i^2\tilde\alpha_i(\tilde\sigma_i^2 + (1-\tilde\alpha_i)\tilde\mu_i^2)\Big),

which has the right mean and variance always and the right distribution only in the limit of many
weights. This study measures how much is missing, by layer width and density, for one example: the
Kolmogorov distance :math:`\sup_t |F_h(t) - F_{\tilde h}(t)|` and the 1-Wasserstein distance in units of
the standard deviation. :math:`F_h` is exact: h is a sum of independent terms, so its characteristic
function is a product, and inverting it costs no Monte Carlo error. Draws of the library's own layers
are compared with both, next to the distance that chance alone would give them.

What happens between examples is measured too: whole weights give all examples the same draw, the local
reparametrization gives each its own.

Run: ``python -m studies lrt_gap``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

import sparsebnn
from sparsebnn.inference.sampling import draw_outputs
from sparsebnn.posteriors import SpikeSlab
from sparsebnn.random.noise import RandomNoise
from studies.bounds.lrt_gap_report import draw, table
from studies.runner import Study, arguments

__all__ = ["Spec", "Unit", "distances", "exact_law", "run"]

_DTYPE = torch.float64


@dataclass(frozen=True)
class Spec:
    """The whole study; every cell is averaged over ``units`` random units, each with its own inputs."""

    widths: tuple[int, ...] = tuple(2**k for k in range(11))
    densities: tuple[float, ...] = (0.01, 0.05, 0.1, 0.25, 0.5, 0.9)
    std: float = 0.1
    units: int = 20
    checked_widths: tuple[int, ...] = (4, 32, 256)
    checked_densities: tuple[float, ...] = (0.05, 0.5)
    checked_draws: int = 20000
    joint_widths: tuple[int, ...] = (16, 128, 1024)
    joint_density: float = 0.1
    joint_examples: int = 32
    joint_draws: int = 4000
    seed: int = 0

    @classmethod
    def quick(cls, seed: int = 0) -> Spec:
        """Three widths, two densities."""
        cells = cls(widths=(1, 8, 64), densities=(0.05, 0.5), checked_widths=(8,), joint_widths=(16,))
        few = {"units": 4, "checked_draws": 4000, "joint_examples": 8, "joint_draws": 500, "seed": seed}
        return dataclasses.replace(cells, **few)  # type: ignore[arg-type]


# --- one unit ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unit:
    """The incoming weights of one unit and the inputs it sees, all of shape (width,)."""

    mean: Tensor
    std: Tensor
    inclusion_logit: Tensor
    x: Tensor

    @property
    def inclusion(self) -> Tensor:
        return torch.sigmoid(self.inclusion_logit)

    def layer(self, copies: int = 1) -> sparsebnn.Linear:
        """A layer whose units are all this one, so that one draw of its weights is many of this unit's."""
        layer = sparsebnn.Linear(len(self.x), copies, bias=False, dtype=_DTYPE)
        weights = layer.weights
        assert isinstance(weights, SpikeSlab)
        with torch.no_grad():
            weights.mean.copy_(self.mean.expand(copies, -1))
            weights.raw_std.copy_(torch.log(torch.expm1(self.std)).expand(copies, -1))
            weights.inclusion_logit.copy_(self.inclusion_logit.expand(copies, -1))
        return layer

    @torch.no_grad()
    def local_moments(self) -> tuple[float, float]:
        """Mean and standard deviation of the local reparametrization, as the library computes them."""
        layer = self.layer()
        mean, var = layer.output_moments(self.x.unsqueeze(0), layer.weights.local(RandomNoise()), None, None)
        return float(mean), math.sqrt(float(var))


def make_unit(width: int, density: float, polarised: bool, std: float, generator: torch.Generator) -> Unit:
    """A unit as trained networks have them: means of size 1, small stds, positive inputs.

    The inclusion probabilities are all ``density``, or polarised: that share of the weights is almost
    surely there (logits N(4, 1)), the others almost surely not (logits N(−4, 1)).
    """

    def normal() -> Tensor:
        return torch.randn(width, generator=generator, dtype=_DTYPE)

    mean, x = normal(), normal().abs()
    logit = torch.full_like(mean, math.log(density) - math.log1p(-density))
    if polarised:
        there = torch.rand(width, generator=generator, dtype=_DTYPE) < density
        logit = normal() + torch.where(there, 4.0, -4.0)
    return Unit(mean, torch.full_like(mean, std), logit, x)


# --- its exact distribution --------------------------------------------------------------------------

_REACH = 14.0  # standardised values beyond this are left out
_POINTS = 1 << 15  # of the grid, and frequencies at most
_CHUNK = 256


class Law(NamedTuple):
    """Distribution function of the standardised pre-activation on a grid: P(u < at) and P(u ≤ at)."""

    at: Tensor
    below: Tensor
    upto: Tensor


def exact_law(unit: Unit) -> Law:
    r"""The law of (h − mean) / sd, from its characteristic function by one Fourier transform.

    With :math:`a_i = x_i\mu_i/s` and :math:`b_i = x_i\sigma_i/s`, h without its atom (every weight excluded,
    probability :math:`P_0`, at :math:`u_0 = -m/s`) has

    .. math::
        \varphi(t) = e^{itu_0}\Big[\prod_i \big(1-\alpha_i + \alpha_i e^{i t a_i - t^2 b_i^2/2}\big)
        - P_0\Big], \qquad
        F(u) = \frac{1-P_0}{2} - \sum_{k \ge 0}
        \frac{\operatorname{Im}[\varphi(t_k)\, e^{-i t_k u}]}{\pi (k + 1/2)}, \quad
        t_k = (k+\tfrac12)\Delta

    The sum repeats itself after :math:`2\pi/\Delta`, four times the reach of the grid. The grid is laid
    so that the atom falls on one of its points.
    """
    centre, scale = unit.local_moments()
    atom = torch.exp(torch.log1p(-unit.inclusion).sum())
    k = torch.arange(_POINTS, dtype=_DTYPE) + 0.5
    transform = _transform(unit, scale, k * (math.pi / (2.0 * _REACH))) / (math.pi * k)
    # e^{-i t_k (u_j - u_0)} with u_j - u_0 = (j - n/2) 4·reach/n, as a discrete Fourier transform.
    j = torch.arange(_POINTS, dtype=_DTYPE)
    waves = torch.fft.fft(transform * torch.exp(1j * math.pi * k)) * torch.exp(-1j * math.pi * j / _POINTS)
    rest = 0.5 * (1.0 - atom) - waves.imag
    offset = j - _POINTS // 2
    at = offset * (4.0 * _REACH / _POINTS) - centre / scale
    inside = at.abs() <= _REACH
    below, upto = rest + atom * (offset > 0), rest + atom * (offset >= 0)
    return Law(at[inside], below[inside], upto[inside])


def _transform(unit: Unit, scale: float, frequencies: Tensor) -> Tensor:
    """φ without its phase at each frequency, 0 once it has died away."""
    a, b, alpha = unit.x * unit.mean / scale, unit.x * unit.std / scale, unit.inclusion
    atom = torch.exp(torch.log1p(-alpha).sum())
    found = torch.zeros(len(frequencies), dtype=torch.complex128)
    for first in range(0, len(frequencies), _CHUNK):
        t = frequencies[first : first + _CHUNK].unsqueeze(1)
        terms = 1.0 - alpha + alpha * torch.exp(torch.complex(-0.5 * (t * b) ** 2, t * a))
        found[first : first + _CHUNK] = terms.prod(1) - atom
        # What is left out adds at most this, times the logarithm of how many, over π.
        if float(found[first : first + _CHUNK].abs().max()) < 1e-5:
            break
    return found


def distances(unit: Unit) -> tuple[float, float]:
    """Kolmogorov and standardised 1-Wasserstein distance between h and its Gaussian stand-in."""
    law = exact_law(unit)
    gaussian = torch.special.ndtr(law.at)
    off = (law.upto - gaussian).abs()
    kolmogorov = torch.maximum(off, (law.below - gaussian).abs()).max()
    return float(kolmogorov), float(torch.trapezoid(off, law.at))


# --- what draws say ----------------------------------------------------------------------------------


def _share_below(sample: Tensor, at: Tensor) -> Tensor:
    """The distribution function of a sample."""
    return torch.searchsorted(torch.sort(sample).values, at, right=True) / len(sample)


@torch.no_grad()
def drawn_distances(unit: Unit, n_draws: int, seed: int) -> tuple[float, float]:
    """Kolmogorov distance of drawn pre-activations from the Gaussian stand-in, and from the exact law."""
    centre, scale = unit.local_moments()
    layer, law = unit.layer(n_draws), exact_law(unit)
    generator = torch.Generator().manual_seed(seed)
    outputs = layer.op(unit.x.unsqueeze(0), layer.weights.draw(RandomNoise(generator)), None)[0]
    # Half a step off the grid, where neither the atom nor its rounding matters.
    between = 0.5 * (law.at[1:] + law.at[:-1])
    drawn, exact = _share_below((outputs - centre) / scale, between), 0.5 * (law.upto[:-1] + law.below[1:])
    return float((drawn - torch.special.ndtr(between)).abs().max()), float((drawn - exact).abs().max())


def chance_distance(n_draws: int, seed: int, repeats: int = 50) -> float:
    """What chance alone gives: the mean Kolmogorov distance of a Gaussian sample from its own law."""
    generator = torch.Generator().manual_seed(seed)
    at = torch.linspace(-5.0, 5.0, 2001, dtype=_DTYPE)
    samples = torch.randn(repeats, n_draws, generator=generator, dtype=_DTYPE)
    found = [float((_share_below(sample, at) - torch.special.ndtr(at)).abs().max()) for sample in samples]
    return sum(found) / repeats


# --- between examples --------------------------------------------------------------------------------


def _correlation(outputs: Tensor) -> float:
    """Mean correlation between different columns of (draws, columns)."""
    together = torch.corrcoef(outputs.T)
    n = len(together)
    return float((together.sum() - together.diagonal().sum()) / (n * (n - 1)))


def _trained_like(
    layer: sparsebnn.Linear | sparsebnn.nn.Conv2d, spec: Spec, generator: torch.Generator
) -> None:
    weights = layer.weights
    assert isinstance(weights, SpikeSlab)
    flat = make_unit(weights.mean.numel(), spec.joint_density, True, spec.std, generator)
    with torch.no_grad():
        weights.mean.copy_(flat.mean.reshape(weights.shape))
        weights.raw_std.fill_(math.log(math.expm1(spec.std)))
        weights.inclusion_logit.copy_(flat.inclusion_logit.reshape(weights.shape))


def joint_rows(spec: Spec) -> list[dict[str, Any]]:
    """How outputs of the same draw go together, for whole weights and for the local reparametrization.

    ``correlation`` is between examples of a dense layer, or between neighbouring places of a
    convolution's map; ``std_of_mean`` the standard deviation of the batch's mean output, or of 2×2
    average pooling.
    """
    generator = torch.Generator().manual_seed(spec.seed)
    rows = []
    for width in spec.joint_widths:
        layer = sparsebnn.Linear(width, 1, bias=False, dtype=_DTYPE)
        _trained_like(layer, spec, generator)
        x = torch.randn(spec.joint_examples, width, generator=generator, dtype=_DTYPE).abs()
        rows.append({"op": "dense", "width": width, **_both_ways(layer, x, spec)})
    layer_2d = sparsebnn.nn.Conv2d(16, 1, 5, bias=False, dtype=_DTYPE)
    _trained_like(layer_2d, spec, generator)
    image = torch.randn(1, 16, 6, 6, generator=generator, dtype=_DTYPE).abs()
    rows.append({"op": "conv 5×5, 16 channels", "width": 400, **_both_ways(layer_2d, image, spec)})
    return rows


def _both_ways(layer: sparsebnn.Linear | sparsebnn.nn.Conv2d, x: Tensor, spec: Spec) -> dict[str, float]:
    row = {}
    for draws in ("weights", "local"):
        pieces = draw_outputs(layer, x, spec.joint_draws, draws=draws, seed=spec.seed)
        outputs = torch.cat([outputs for _, outputs in pieces], dim=1).reshape(spec.joint_draws, -1)
        row[f"correlation_{draws}"] = _correlation(outputs)
        row[f"std_of_mean_{draws}"] = float(outputs.mean(1).std())
        row[f"std_of_one_{draws}"] = float(outputs.std(0).mean())
    row["correlation_se"] = 1.0 / math.sqrt(spec.joint_draws)
    return row


# --- rows --------------------------------------------------------------------------------------------


def run(spec: Spec) -> dict[str, list[dict[str, Any]]]:
    """``distances`` by width, density and kind; ``checks`` by draws; ``joint`` behaviour."""
    found: list[dict[str, Any]] = []
    checks: list[dict[str, Any]] = []
    chance = chance_distance(spec.checked_draws, spec.seed)
    for polarised in (False, True):
        for density in spec.densities:
            for width in spec.widths:
                seed = spec.seed + 7919 * width + 104729 * round(1000 * density) + int(polarised)
                generator = torch.Generator().manual_seed(seed)
                units = [make_unit(width, density, polarised, spec.std, generator) for _ in range(spec.units)]
                where = {"polarised": polarised, "density": density, "width": width}
                found.append({**where, **_averages(units)})
                if width in spec.checked_widths and density in spec.checked_densities:
                    checks.append({**where, **_check(units[0], spec, chance)})
    return {"distances": found, "checks": checks, "joint": joint_rows(spec)}


def _averages(units: Sequence[Unit]) -> dict[str, float]:
    values = torch.tensor([distances(unit) for unit in units], dtype=_DTYPE)
    low, middle, high = torch.quantile(values[:, 0], torch.tensor([0.1, 0.5, 0.9], dtype=_DTYPE)).tolist()
    return {
        "kolmogorov": float(values[:, 0].mean()),
        "kolmogorov_10": low,
        "kolmogorov_median": middle,
        "kolmogorov_90": high,
        "wasserstein": float(values[:, 1].mean()),
        "units": len(units),
    }


def _check(unit: Unit, spec: Spec, chance: float) -> dict[str, float]:
    gaussian, exact = drawn_distances(unit, spec.checked_draws, spec.seed)
    computed = distances(unit)[0]
    return {"kolmogorov": computed, "drawn": gaussian, "drawn_from_exact": exact, "chance": chance}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the study, print its tables, write its result file and its figure."""
    claim = "Distance between the local reparametrization and drawn weights."
    study = Study("lrt_gap", arguments("lrt_gap", claim, argv))
    spec = Spec.quick(study.given.seed) if study.given.quick else Spec(seed=study.given.seed)
    # Many small operations: a second thread would mostly wait.
    torch.set_num_threads(1)
    found = run(spec)
    print(table(found))
    path = study.save(spec, [spec.seed], None, **found)
    draw(found["distances"], study.figure)
    print(f"Wrote {path} and {study.figure}.")
