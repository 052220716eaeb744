"""The trained replicates: what they predict, which inputs they use, and cross-fitting.

With cross-fitting, replicate k does not train on folds k and k + 1, so its predictions there are honest. They
set one number, which makes all predictions sharper or flatter
(:func:`sparsebnn.inference.calibration.logit_scale`). As two replicates leave out a row, it is known how much
flatter an average is than one network.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsebnn.inference import calibration
from sparsebnn.inference.mixture import bounds
from sparsebnn.inference.prediction import class_probs
from sparsebnn.inference.sampling import draw_outputs_of_all
from sparsebnn.likelihoods import Categorical, Gaussian, Likelihood
from sparsebnn.nn.layers import Linear
from sparsebnn.nn.networks import InputSkip, generator_kept
from sparsebnn.random.noise import content_keys
from sparsebnn.selection.paths import median_reach, path_probability

__all__ = [
    "Choice",
    "Ensemble",
    "Folded",
    "choose",
    "copies",
    "folds",
    "leaves_out",
    "linear_layers",
    "merged",
    "seeds",
    "some_rows",
]

_OUTPUT_BYTES = 1 << 26
# To choose networks and the logit scale.
_MOST_ROWS = 2000
_LEAST_ROWS = 10
_DRAWS = 20
# To weigh replicates.
_BOUND_ROWS, _BOUND_WORK = 20_000, 60_000
_DISCOUNT = 20.0
# When equal rows count as copies.
_LEAST_AGREEMENT, _MOST_COPIES = 0.9, 0.05


@dataclass(frozen=True)
class Ensemble:
    """Replicates of one network with their likelihoods.

    Each draw samples whole weight tensors, in double precision: the prediction of a row depends neither on
    the other rows nor on the batch size.
    """

    networks: Sequence[nn.Module]
    likelihoods: Sequence[Likelihood]
    logit_scale: float | np.ndarray = 1.0

    def doubled(self, device: str = "cpu") -> list[nn.Module]:
        """The networks in double precision, as they predict."""
        return [copy.deepcopy(network).double().to(device) for network in self.networks]

    def draws(
        self, x: np.ndarray, n_draws: int, model: str, seed: int, device: str
    ) -> Iterator[tuple[slice, Tensor]]:
        """``(rows, outputs of shape (replicates, draws, rows, outputs))``; see :func:`seeds` of the draws."""
        widest = max(layer.out_features for layer in linear_layers(self.networks[0]))
        per_row = 8 * len(self.networks) * n_draws * widest
        batch = max(1, min(1024, _OUTPUT_BYTES // per_row))
        yield from draw_outputs_of_all(
            self.networks,
            torch.from_numpy(x),
            n_draws,
            like=torch.empty(0, dtype=torch.float64, device=device),
            model=model,
            draws="weights",
            seed=seeds(seed, len(self.networks)),
            batch_size=batch,
        )

    def probs(self, outputs: Tensor) -> Tensor:
        """Class probabilities of every draw."""
        with torch.no_grad():
            forms = [copy.deepcopy(form).to(outputs.device).double() for form in self.likelihoods]
            return torch.stack([class_probs(self.logit_scale * o, form) for o, form in zip(outputs, forms)])

    def means_and_stds(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and noise std of every draw, ``(replicates · draws, rows, targets)``."""
        found, scale = [], torch.as_tensor(self.logit_scale, dtype=torch.float64)
        for form, each in zip(self.likelihoods, outputs):
            assert isinstance(form, Gaussian)
            mean, std = copy.deepcopy(form).to(each.device).double().mean_and_std(each)
            found.append((mean, scale.to(std.device) * std))
        with torch.no_grad():
            return torch.cat([m for m, _ in found]).detach(), torch.cat([s for _, s in found]).detach()

    # -- structure ------------------------------------------------------------------------------------

    def weights(self, x: np.ndarray, y: Tensor, weight: np.ndarray, effort: float = 1.0) -> np.ndarray:
        r"""The weights of replicates as one posterior, by their evidence lower bounds on all rows.

        .. math:: w_k \propto e^{\mathcal L_k / 20}

        Replicates end at different optima, some of which miss columns that others found; bounds tell. The
        bounds differ by more than the evidence for the columns does, hence the 20. ``effort`` reduces the
        number of rows.
        """
        rows = some_rows(len(x), max(1, int(effort * _BOUND_ROWS)))
        w = torch.from_numpy(weight[rows]).float() * (len(x) / len(rows))
        data = torch.from_numpy(x[rows]).float(), y[torch.from_numpy(rows)], w
        draws = int(np.clip(_BOUND_WORK // len(rows), 4, 30))
        with torch.no_grad():
            found = bounds(self.networks, data, self.likelihoods, n_draws=draws).nan_to_num(nan=-math.inf)
        return torch.softmax(found / _DISCOUNT, 0).numpy()

    def inclusion(self, column_of: np.ndarray, columns: int) -> np.ndarray:
        """``(replicates, columns)``: probability that any input of a column reaches an output."""
        found = np.zeros((len(self.networks), columns))
        used = np.unique(column_of)
        for k, network in enumerate(self.networks if len(used) else ()):
            found[k, used] = path_probability(merged(network, column_of), n_draws=200).prob.numpy()
        return found

    def median_columns(self, column_of: np.ndarray, columns: int) -> np.ndarray:
        """``(replicates, columns)``: whether a column reaches an output in the median probability model."""
        found = np.zeros((len(self.networks), columns), dtype=bool)
        for k, network in enumerate(self.networks):
            reached = median_reach(_chain(_inclusions(network), network)).numpy()[: len(column_of)] > 0
            np.logical_or.at(found[k], column_of, reached)
        return found


def seeds(seed: int, networks: int) -> list[int]:
    """The seeds of the networks' draws: averages over few draws of each need draws that are independent.

    >>> seeds(7, 3)
    [7, 8, 9]
    """
    return [seed + k for k in range(networks)]


def linear_layers(network: nn.Module) -> list[Linear]:
    """The layers of a network, first to last."""
    return [module for module in network.modules() if isinstance(module, Linear)]


def _inclusions(network: nn.Module) -> list[Tensor]:
    """The inclusion probabilities of every layer, in double precision."""
    return [layer.weights.inclusion_prob().detach().double() for layer in linear_layers(network)]


@torch.no_grad()
def merged(network: nn.Module, column_of: np.ndarray) -> nn.Module:
    """The structure with the inputs of each column merged into one, included if any of them is.

    The inclusions of a unit's weights are independent, so the merged weight is included with probability
    1 − Π(1 − α̃), exactly.
    """
    used, inclusions = np.unique(column_of), _inclusions(network)
    skip = isinstance(network, InputSkip)
    for place, each in enumerate(inclusions):
        if place and not skip:
            break
        own = each.shape[1] - len(column_of) if place else 0
        before, of_inputs = each[:, :own], 1.0 - each[:, own : own + len(column_of)]
        joined = [of_inputs[:, torch.from_numpy(column_of == c)].prod(1) for c in used]
        inclusions[place] = torch.cat([before, 1.0 - torch.stack(joined, dim=1)], dim=1)
    return _chain(inclusions, network)


@torch.no_grad()
@generator_kept()
def _chain(inclusions: Sequence[Tensor], network: nn.Module) -> nn.Sequential:
    """A chain with these inclusions; where the network skips, extra units pass every input on."""
    layers, inputs = [], inclusions[0].shape[1]
    for place, each in enumerate(inclusions):
        if isinstance(network, InputSkip) and place < len(inclusions) - 1:
            passed = torch.zeros(inputs, each.shape[1], dtype=each.dtype)
            passed[:, -inputs:] = torch.eye(inputs, dtype=each.dtype)
            each = torch.cat([each, passed])
        layer = Linear(each.shape[1], each.shape[0], family="spike_slab", bias=False).double()
        layer.weights.inclusion_logit.copy_(torch.logit(each))  # type: ignore[operator]
        layers.append(layer)
    return nn.Sequential(*layers)


# -- cross-fitting --------------------------------------------------------------------------------------


class Folded(Likelihood):
    """A likelihood that ignores the rows of two folds; the last column of y is the fold.

    Of ``replicates``, replicate k leaves out the folds k and k + 1, the last one the first fold, too. So two
    replicates leave out each of these folds, and later folds are left out by none. ``held`` is a buffer, so
    it can differ between replicates.
    """

    held: Tensor

    def __init__(self, inner: Likelihood, replicates: int) -> None:
        super().__init__()
        self.inner, self.replicates = inner, replicates
        self.register_buffer("held", torch.tensor(0.0))

    def _targets(self, y: Tensor) -> Tensor:
        if self.inner.target_columns:
            return y[..., :-1]
        return y[..., 0].long() if isinstance(self.inner, Categorical) else y[..., 0]

    def prepare(self, y: Tensor) -> Tensor:
        prepared = self.inner.prepare(self._targets(y))
        return torch.cat([prepared.reshape(len(y), -1).to(y.dtype), y[:, -1:]], dim=1)

    def n_outputs(self, y: Tensor) -> int:
        return self.inner.n_outputs(y)

    def nll(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self.weighted_nll(outputs, y, torch.ones_like(y[..., -1]))

    def weighted_nll(self, outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        fold = y[..., -1]
        seen = (fold >= self.replicates) | (torch.remainder(fold - self.held, self.replicates) > 1)
        return self.inner.weighted_nll(outputs, self._targets(y), seen.to(outputs.dtype) * weight)


def copies(x: np.ndarray, y: Tensor) -> np.ndarray | None:
    r"""The number of its group for every row, where rows are copies of each other; None where none are.

    A copy among the training rows would tell a network the target of a row that it leaves out. Among few
    categories many rows are equal without being copies, but then equal inputs have different targets, too.
    So equal rows are copies if the targets of equal inputs agree far more often than by chance,

    .. math:: \kappa = \frac{P(y_i = y_j \mid x_i = x_j) - P(y_i = y_j)}{1 - P(y_i = y_j)} \ge 0.9,

    and no group holds more than a twentieth of the rows.
    """
    by_input = content_keys(torch.from_numpy(x)).numpy()
    pairs = _equal_pairs(by_input)
    if pairs == 0:
        return None
    by_target = content_keys(y.reshape(len(y), -1)).numpy()
    _, group, sizes = np.unique(
        np.stack([by_input, by_target]), axis=1, return_inverse=True, return_counts=True
    )
    chance = _equal_pairs(by_target) / (len(x) * (len(x) - 1.0))
    agreement = (_equal_pairs(group) / pairs - chance) / max(1.0 - chance, 1e-9)
    if agreement < _LEAST_AGREEMENT or sizes.max() > _MOST_COPIES * len(x):
        return None
    return group.reshape(-1)


def _equal_pairs(keys: np.ndarray) -> float:
    """How many ordered pairs of different rows have the same key."""
    sizes = np.unique(keys, return_counts=True)[1].astype(np.float64)
    return float((sizes * (sizes - 1.0)).sum())


def folds(y: Tensor, count: int, seed: int, classes: bool, group: np.ndarray | None = None) -> Tensor:
    """A fold for every row, stratified by class; one for all rows of a ``group``."""
    if group is not None:
        _, first, place = np.unique(group, return_index=True, return_inverse=True)
        return folds(y[torch.from_numpy(first)], count, seed, classes)[torch.from_numpy(place.reshape(-1))]
    random = np.random.RandomState(seed)
    found = np.empty(len(y))
    labels = y.numpy() if classes else np.zeros(len(y))
    start = 0
    for label in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == label))
        found[rows] = (start + np.arange(len(rows))) % count
        start += len(rows)
    return torch.from_numpy(found).float()


def some_rows(count: int, most: int) -> np.ndarray:
    """At most ``most`` of the places 0 … count − 1, in order.

    They are drawn by a fixed seed: the first rows of a table that is sorted would not represent it.

    >>> len(some_rows(100, 10)), some_rows(3, 10).tolist()
    (10, [0, 1, 2])
    """
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.RandomState(0).permutation(count)[:most])


@dataclass(frozen=True)
class Choice:
    """The places of the networks that predict, the scale of their outputs, the correction of intervals.

    Several targets of a regression have a scale and a correction each.
    """

    places: list[int]
    logit_scale: float | np.ndarray = 1.0
    levels: tuple[calibration.CentralLevels, ...] = (calibration.CentralLevels(),)


def leaves_out(k: int, replicates: int) -> tuple[int, int]:
    """The folds that replicate k leaves out; see :class:`Folded`.

    >>> [leaves_out(k, 5) for k in range(5)]
    [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)]
    """
    return k, (k + 1) % replicates


def choose(
    ensemble: Ensemble,
    sets: Sequence[Sequence[int]],
    x: np.ndarray,
    y: Tensor,
    fold: Tensor,
    weight: np.ndarray,
    calibrate: bool,
    effort: float = 1.0,
    safe: int | None = None,
    most: int = 2,
) -> Choice:
    """The networks that predict left-out rows best, and the scale of their outputs.

    Network k of each of the ``sets`` leaves out two folds (:func:`leaves_out`), so two networks of a set did
    not see a row of these folds, and their average predicts it. One set predicts, or up to ``most`` of them
    together; the ``safe`` set, unless others are better by more than the standard error of the difference.
    ``effort`` reduces the number of rows, for a fit with little time.
    """
    count = min(map(len, sets))
    rows = np.flatnonzero(fold.numpy() < count)
    rows = rows[some_rows(len(rows), max(1, int(effort * _MOST_ROWS)))]
    if len(rows) < _LEAST_ROWS:
        return Choice(list(sets[0]))
    parts = [o for _, o in ensemble.draws(x[rows], _DRAWS, "average", 0, "cpu")]
    outputs, own, w = torch.cat(parts, dim=2), fold[rows].long(), torch.from_numpy(weight[rows])
    every, at_row = torch.arange(len(rows)), {}
    for i, after in itertools.product(range(len(sets)), (0, 1)):
        at = torch.tensor(list(sets[i]))[(own - after) % count]
        drawn = outputs[at, :, every].transpose(0, 1)
        data = drawn, y[rows], w, ensemble.likelihoods, at.expand(_DRAWS, -1)
        at_row[i, after] = calibration.HeldOut(*data)

    def predicted(chosen: Sequence[int], which: Sequence[int]) -> calibration.HeldOut:
        """The rows as predicted by the first, the second or both of the networks that did not see them."""
        return calibration.Joined([at_row[i, after] for i in chosen for after in which])

    found = []
    for size in range(1, min(most, len(sets)) + 1):
        for chosen in itertools.combinations(range(len(sets)), size):
            held = predicted(chosen, (0, 1))
            found.append((held.coarse() if calibrate else (held(0.0), 0.0), chosen, held))
    if found[0][2].std is not None:
        found = _accurate(found, w)
    best = min(found, key=lambda each: each[0][0])
    if safe is not None:
        other = next(each for each in found if each[1] == (safe,))
        best = best if _is_better(best, other, w) else other
    _, chosen, held = best
    places = [k for i in chosen for k in sets[i]]
    if not calibrate:
        return Choice(places)
    alone = [predicted(chosen, (which,)).targets() for which in (0, 1)]
    scales, levels = [], []
    for both, first, second in zip(held.targets(), *alone):
        scale, of_target = both.fine(both.coarse()[1])
        log_alone = sum(math.log(each.fine(each.coarse()[1])[0]) for each in (first, second)) / 2.0
        # The more networks are averaged, the better and the flatter the average: the logarithm of its scale
        # is nearly linear in the inverse of their number.
        log_pair = math.log(scale)
        scales.append(math.exp(log_pair + (1.0 - 2.0 / count) * (log_pair - log_alone)))
        levels.append(of_target)
    return Choice(places, scales[0] if len(scales) == 1 else np.array(scales), tuple(levels))


def _accurate(found: list[tuple[Any, ...]], weight: Tensor) -> list[tuple[Any, ...]]:
    """The candidates whose squared error is not above the lowest by more than the standard error.

    A mixture with a poor model may have a higher likelihood, since its tails are heavier, and a worse mean.
    """
    errors = [weight * each[2].squared_errors() for each in found]
    excess = [error - min(errors, key=lambda each: float(each.sum())) for error in errors]
    allowed = [float(each.std()) * math.sqrt(len(each)) for each in excess]
    return [each for each, more, most in zip(found, excess, allowed) if float(more.sum()) <= most]


def _is_better(one: tuple[Any, ...], other: tuple[Any, ...], weight: Tensor) -> bool:
    """Whether one candidate is better than another by more than the standard error of the difference."""
    gain = weight * (other[2].by_row(other[0][1]) - one[2].by_row(one[0][1]))
    return bool(gain.sum() > gain.std() * math.sqrt(len(gain)))
