"""The controller that brings replicates to a target density, and the structure that a refit fixes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sparsebnn.checks import invalid
from sparsebnn.training.objective import LOGITS, Replicates
from sparsebnn.training.settings import Settings

_PRIOR = "prior.inclusion_prob"
# Where a fixed structure puts the logits: the probability is 0 or 1 to single precision, and nothing
# overflows on the way there.
_CERTAIN = 30.0
# Prior log odds stay within these bounds.
_ODDS = (-60.0, 12.0)


def check_free(replicates: Replicates) -> None:
    """Complain if a density or a refit is asked for and inclusion logits are frozen."""
    fixed = sorted(name for name in replicates.frozen if name.endswith(LOGITS))
    if fixed:
        expected = "free to change its structure where a density or a refit is asked for"
        got = f"{fixed[0].removeprefix('network.')!r}, which needs no gradient,"
        advice = "Unfreeze it, or leave out target_density and refit."
        raise invalid("network", "train", expected, got, advice)


def density_targets(replicates: Replicates, given: Sequence[float], varied: Tensor | None) -> Tensor | None:
    """Target densities ``(K, 1 or layers)``: those that vary over replicates, else those given, if any."""
    if varied is None and not given:
        return None
    layers = replicates.inclusion_logits()
    if not layers:
        expected = "used with weights that can be excluded"
        advice = "Choose the family 'spike_slab', 'flow' or 'concrete'."
        raise invalid("target_density", "train", expected, "a network without", advice)
    for name in layers:
        prior = name.removesuffix(LOGITS) + _PRIOR
        if prior not in replicates.shared and prior not in replicates.varied:
            advice = "Choose a SpikeSlabPrior or an EmpiricalPrior."
            expected = "used with a prior inclusion probability that can be moved"
            raise invalid("target_density", "train", expected, f"another prior at {name}", advice)
    if varied is not None:
        if not bool(((varied > 0.0) & (varied <= 1.0)).all()):
            expected = "shares of the weights, up to 1"
            raise invalid("per_replicate[target_density]", "train", expected, varied.tolist())
        return varied.unsqueeze(1)
    if len(given) not in (1, len(layers)):
        expected = f"one number, or one per layer with inclusions ({len(layers)})"
        raise invalid("target_density", "train", expected, f"{len(given)} numbers")
    return torch.tensor(given, dtype=torch.float64).expand(len(replicates), -1)


def steer(replicates: Replicates, settings: Settings, targets: Tensor | None, epoch: int) -> bool:
    """Before an epoch: approach the target density, or fix the structure; whether it was fixed just now."""
    start, (begin, end) = settings.refit_from, settings.approach
    if targets is not None and begin <= epoch < start:
        controlled(replicates, targets, (epoch + 1 - begin) / max(1.0, end - begin))
    fixed = settings.refit > 0 and epoch == start
    if fixed:
        fix_structure(replicates, targets)
    return fixed


@torch.no_grad()
def controlled(replicates: Replicates, targets: Tensor, progress: float) -> None:
    r"""Move the prior's log odds so that densities follow their way down to ``targets`` ``(K, 1 or layers)``.

    The wanted density of the moment is :math:`d^\star = \text{target}^{\,\text{progress}}`, from 1 at
    progress 0. With :math:`c` the logit that a share :math:`d^\star` of the weights exceeds,

    .. math::
        \operatorname{logit}\alpha \leftarrow \operatorname{logit}\alpha - c, \qquad
        \tilde\lambda_i \leftarrow \tilde\lambda_i - c .

    At the optimum of the bound a weight's inclusion logit is the prior's log odds plus what the weight is
    worth, so a change of the odds moves every logit's optimum by just that much, and the logits are put
    there instead of walking. The odds of a whole network move together; with one target per layer each
    layer has its own.
    """
    logits = replicates.inclusion_logits()
    wanted = targets.double() ** min(1.0, max(0.0, progress))
    counts = replicates.weights_per_logit()
    if targets.shape[1] == 1:
        shifts = [_exceeded_by(*_together(logits, counts), wanted[:, 0])] * len(logits)
    else:
        shifts = [
            _exceeded_by(p.flatten(1), counts[name].flatten(), wanted[:, i])
            for i, (name, p) in enumerate(logits.items())
        ]
    for (name, p), shift in zip(logits.items(), shifts):
        p.sub_(shift.reshape(-1, *[1] * (p.dim() - 1)).to(p))
        prior = replicates.varied[name.removesuffix(LOGITS) + _PRIOR]
        odds = torch.logit(prior.double()) - shift.reshape(-1, *[1] * (prior.dim() - 1)).double()
        prior.copy_(torch.sigmoid(odds.clamp(*_ODDS)))


def _together(logits: dict[str, Tensor], counts: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """All logits of a network as one row per replicate, and the weights each stands for."""
    flat = torch.cat([p.flatten(1) for p in logits.values()], 1)
    return flat, torch.cat([counts[name].flatten() for name in logits])


def _ranked(values: Tensor, counts: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """For each row, its places from the largest value down, and how many of them make up the share.

    An entry stands for so many weights; at least one entry is taken.
    """
    order = values.argsort(dim=1, descending=True, stable=True)
    each = counts.to(values.device)[order] / counts.sum().to(values.device)
    middle = each.cumsum(1) - 0.5 * each
    taken = (middle < shares.to(middle)[:, None]).sum(1).clamp_min(1)
    return order, taken


def _exceeded_by(values: Tensor, counts: Tensor, shares: Tensor) -> Tensor:
    """For each row, a value that entries with the given share of the weights exceed."""
    order, taken = _ranked(values, counts, shares)
    ordered, last = values.gather(1, order), values.shape[1]
    last_kept = ordered.gather(1, taken[:, None] - 1)
    first_gone = ordered.gather(1, taken[:, None].clamp_max(last - 1))
    # With everything kept there is nothing to move.
    return torch.where(taken[:, None] == last, 0.0, 0.5 * (last_kept + first_gone)).squeeze(1)


@torch.no_grad()
def fix_structure(replicates: Replicates, targets: Tensor | None) -> None:
    """Decide which weights stay: those of the target density, or those with inclusion above one half."""
    logits = replicates.inclusion_logits()
    if targets is None:
        keep = {name: p > 0 for name, p in logits.items()}
    else:
        counts = replicates.weights_per_logit()
        if targets.shape[1] == 1:
            chosen = _top(*_together(logits, counts), targets[:, 0])
            parts = chosen.split([p[0].numel() for p in logits.values()], 1)
        else:
            parts = tuple(
                _top(p.flatten(1), counts[name].flatten(), targets[:, i])
                for i, (name, p) in enumerate(logits.items())
            )
        keep = {name: part.view_as(p) for (name, p), part in zip(logits.items(), parts)}
    for name, p in logits.items():
        p.copy_(torch.where(keep[name], _CERTAIN, -_CERTAIN).to(p))


def _top(values: Tensor, counts: Tensor, shares: Tensor) -> Tensor:
    """For each row, whether an entry is among the largest ones that make up the share of the weights."""
    order, taken = _ranked(values, counts, shares)
    places = torch.arange(values.shape[1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places) < taken[:, None]
