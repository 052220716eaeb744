"""The network to beat: deterministic, trained, cut once by magnitude over all layers, trained further.

It has as many steps as ours in all; its learning rate and the share of the steps after the cut are chosen on
the same validation rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from sparsebnn.likelihoods import Categorical
from sparsebnn.training import Run, Settings, train
from studies.baselines.deterministic import Deterministic, plain_lenet, plain_mlp
from studies.baselines.pruned import refit_pruned
from studies.frontier.plan import Lines, seeds_over, train_options
from studies.tables.paper import Cell

__all__ = ["phases", "trained"]


def phases(made: Cell) -> tuple[Settings, Settings]:
    """Before and after the cut: the cell's epochs divided as its refit says, Adam with a cosine in each.

    >>> from studies.frontier.plan import cell_of, with_candidate, Candidate
    >>> made = with_candidate(cell_of("fc", "lrt", "kmnist"), Candidate(0.0, refit=0.4), 0.02)
    >>> [part.epochs for part in phases(made)]
    [60, 40]
    """
    ours = made.settings
    first = Settings(epochs=ours.refit_from, batch_size=ours.batch_size, learning_rate=ours.learning_rate)
    return first, replace(first, epochs=max(1, ours.epochs - ours.refit_from))


def _plain(made: Cell) -> Deterministic:
    return plain_mlp(made.sizes) if made.architecture == "fc" else plain_lenet(made.sizes[-1])


def trained(
    given: argparse.Namespace,
    rows: tuple[Tensor, Tensor],
    made: Cell,
    rates: Sequence[float],
    seeds: Sequence[int],
    targets: Sequence[float],
    label: str,
) -> tuple[Run, Run]:
    """Networks before the cut, one per rate and seed, and after it: for every target density all of them."""
    first, second = phases(made)
    options = train_options(given) | {"likelihood": Categorical(made.sizes[-1])}
    dense = train(
        _plain(made),
        rows,
        settings=first,
        replicates=list(seeds),
        per_replicate={"learning_rate": list(rates)},
        callbacks=[Lines(f"{label}, dense", given.quiet)],
        **options,
    )
    networks = dense.networks
    cut = refit_pruned(
        [network for _ in targets for network in networks],
        [target for target in targets for _ in networks],
        rows,
        settings=second,
        rates=[rate for _ in targets for rate in rates],
        seeds=seeds_over(seeds, len(targets)),
        callbacks=[Lines(f"{label}, after the cut", given.quiet)],
        **options,
    )
    return dense, cut
