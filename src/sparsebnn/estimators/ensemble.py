"""The trained replicates: what they predict, and which inputs they use."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from sparsebnn.inference.mixture import bounds
from sparsebnn.inference.prediction import class_probs
from sparsebnn.inference.sampling import draw_outputs_of_all
from sparsebnn.likelihoods import Gaussian, Likelihood
from sparsebnn.nn.layers import Linear
from sparsebnn.nn.networks import InputSkip, generator_kept
from sparsebnn.selection.paths import path_probability

__all__ = ["Ensemble", "linear_layers", "merged", "seeds", "some_rows"]

_OUTPUT_BYTES = 1 << 26
# To weigh replicates.
_BOUND_ROWS, _BOUND_WORK = 20_000, 60_000
_DISCOUNT = 20.0


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
        self,
        x: np.ndarray,
        n_draws: int,
        model: str,
        seed: int,
        device: str,
        places: Sequence[int] | None = None,
    ) -> Iterator[tuple[slice, Tensor]]:
        """``(rows, outputs of shape (replicates, draws, rows, outputs))``; see :func:`seeds` of the draws.

        ``places`` are those of the networks, all by default; their draws do not depend on the others.
        """
        every = range(len(self.networks))
        places = every if places is None else places
        own = seeds(seed, len(every))
        widest = max(layer.out_features for layer in linear_layers(self.networks[0]))
        per_row = 8 * len(places) * n_draws * widest
        batch = max(1, min(1024, _OUTPUT_BYTES // per_row))
        yield from draw_outputs_of_all(
            [self.networks[k] for k in places],
            torch.from_numpy(x),
            n_draws,
            like=torch.empty(0, dtype=torch.float64, device=device),
            model=model,
            draws="weights",
            seed=[own[k] for k in places],
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
            np.logical_or.at(found[k], column_of, _median_inputs(network)[: len(column_of)])
        return found


def seeds(seed: int, networks: int) -> list[int]:
    """The seeds of the networks' draws: averages over few draws of each need draws that are independent.

    >>> seeds(7, 3)
    [7, 8, 9]
    """
    return [seed + k for k in range(networks)]


def some_rows(count: int, most: int) -> np.ndarray:
    """At most ``most`` of the places 0 … count − 1, in order.

    They are drawn by a fixed seed: the first rows of a table that is sorted would not represent it.

    >>> len(some_rows(100, 10)), some_rows(3, 10).tolist()
    (10, [0, 1, 2])
    """
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.RandomState(0).permutation(count)[:most])


def linear_layers(network: nn.Module) -> list[Linear]:
    """The layers of a network, first to last."""
    return [module for module in network.modules() if isinstance(module, Linear)]


def _inclusions(network: nn.Module) -> list[Tensor]:
    """The inclusion probabilities of every layer, in double precision."""
    return [layer.weights.inclusion_prob().detach().double() for layer in linear_layers(network)]


def _median_inputs(network: nn.Module) -> np.ndarray:
    """Whether each input reaches an output of the median probability model."""
    skips, inputs = isinstance(network, InputSkip), linear_layers(network)[0].in_features
    masks = [np.greater(inclusions.numpy(), 0.5) for inclusions in _inclusions(network)]
    found, live = np.zeros(inputs, dtype=bool), np.ones(len(masks[-1]), dtype=bool)
    for mask in reversed(masks):
        used = mask[live].any(0)
        found = found | used[-inputs:] if skips else used
        live = used[: len(used) - inputs] if skips else used
    return found


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
