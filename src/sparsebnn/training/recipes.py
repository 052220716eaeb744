"""How a network starts, what its prior is and how it is trained: one frozen record with a name.

``recommended`` is the library's own way; its settings are chosen on validation rows by
``python -m studies frontier --stage choose``. ``paper`` is the paper's, which its tables are made with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from sparsebnn.checks import check_choice, invalid
from sparsebnn.init import Initial, Normal, Uniform
from sparsebnn.nn import image_networks, networks
from sparsebnn.posteriors import family_name
from sparsebnn.posteriors.concrete import RELAXATION
from sparsebnn.posteriors.learned_priors import EmpiricalPrior
from sparsebnn.posteriors.priors import GaussianPrior, Prior, SpikeSlabPrior
from sparsebnn.training.optimizers import Steps
from sparsebnn.training.settings import RECOMMENDED, Settings

ARCHITECTURES = ("fc", "lenet")
FAMILIES = ("concrete", "spike_slab", "flow")
RECIPES = ("recommended", "paper")
# With a target density: half of the epochs free, three tenths on the way, a hotter refit.
_PHASES = {"free_fraction": 0.5, "refit": 0.2, "refit_temperature_factor": 10.0}

# Where the paper's training starts; biases start as their own row says.
_PAPER = Initial(
    mean=Uniform(-0.2, 0.2),
    raw_std=Normal(-9.0, 0.1),
    bias_mean=Uniform(-0.2, 0.2),
    bias_raw_std=Normal(-9.0, 1.0),
    z0_mean=Normal(0.0, 1.0),
    z0_log_var=Normal(-9.0, 1.0),
    auxiliary=Normal(0.0, 1.0),
)
_SMALL = Uniform(-0.01, 0.01)
# How far the paper relaxes LBBNN's inclusions.
PAPER_RELAXATION = 0.001
_LOGITS = {"fc": Uniform(-15.0, 10.0), "lenet": Uniform(-10.0, 15.0)}


def prior_of(kind: str, inclusion_prob: float = 0.1) -> Prior:
    """A prior by name: ``spike_slab`` (slab N(0, 1)), ``empirical`` (its scale learned) or ``gaussian``.

    >>> prior_of("empirical").per
    'layer'
    """
    check_choice(kind, ("spike_slab", "empirical", "gaussian"), "prior", "a recipe")
    if kind == "gaussian":
        return GaussianPrior()
    return EmpiricalPrior(inclusion_prob) if kind == "empirical" else SpikeSlabPrior(inclusion_prob)


@dataclass(frozen=True)
class Recipe:
    """A start, a prior and settings. ``mlp`` and ``lenet`` make a network; ``settings`` go to ``train``.

    ``dense_initial`` is the start of a LeNet's dense layers, where it is another one.

    >>> import torch
    >>> from sparsebnn import train
    >>> made = recipe("recommended", epochs=2)
    >>> run = train(made.mlp([5, 8, 3]), (torch.randn(64, 5), torch.arange(64) % 3), settings=made.settings)
    >>> len(run.history)
    2
    """

    name: str
    family: str
    initial: Initial
    dense_initial: Initial
    settings: Settings
    prior: str
    inclusion_prob: float = 0.1
    family_options: Mapping[str, Any] = field(default_factory=dict)

    def _layer(self, given: Mapping[str, Any]) -> dict[str, Any]:
        made = {"family": self.family, "initial": self.initial, **given}
        if "prior" not in given:
            made["prior"] = prior_of(self.prior, self.inclusion_prob)
        options = given.get("family_options") or {}
        if made["family"] == self.family and isinstance(options, Mapping):
            options = {**self.family_options, **options}
        return {**made, "family_options": options}

    def mlp(self, sizes: Sequence[int], **layer: Any) -> Any:
        """A fully connected network (:func:`sparsebnn.mlp`); ``layer`` overrides what goes to its layers."""
        return networks.mlp(sizes, **self._layer(layer))

    def lenet(self, n_classes: int = 10, **layer: Any) -> nn.Sequential:
        """The paper's LeNet-5; ``layer`` overrides what goes to its layers."""
        dense = {"initial": layer.get("initial", self.dense_initial)}
        return image_networks.lenet(n_classes, dense=dense, **self._layer(layer))


def recipe(
    name: str = "recommended", *, family: str = "spike_slab", architecture: str | None = None, **settings: Any
) -> Recipe:
    """A recipe by name, for one of the families ``"spike_slab"``, ``"flow"`` and ``"concrete"``.

    The paper's names for them, ``"lrt"``, ``"flow"`` and ``"lbbnn"``, are accepted.

    The paper's recipe depends on the ``architecture``, ``"fc"`` (default) or ``"lenet"``; the recommended one
    is the same for all and takes none.

    ``settings`` override fields of its :class:`~sparsebnn.Settings`. ``target_density=0.02`` asks for a
    density; the recommended recipe then has three phases: half of the epochs free, three tenths on the way to
    the density, a fifth with a fixed structure at ten times the temperature. Without ``settings``
    :func:`~sparsebnn.train` uses the recommended ones, which are the same for every family.

    >>> recipe("recommended", target_density=0.02).settings.target_density
    0.02
    >>> recipe("paper", family="flow").initial.mean
    Uniform(low=-0.01, high=0.01)
    """
    check_choice(name, RECIPES, "name", "recipe")
    family = family_name(family, "recipe", FAMILIES)
    if architecture is not None:
        check_choice(architecture, ARCHITECTURES, "architecture", "recipe")
        if name == "recommended":
            expected = "left out with the recommended recipe"
            advice = "It is the same for all architectures: call .mlp(...) or .lenet(...) of the recipe."
            raise invalid("architecture", "recipe", expected, repr(architecture), advice)
    for given in settings:
        check_choice(given, Settings.__dataclass_fields__, "settings", "recipe")
    targeted = name == "recommended" and settings.get("target_density") is not None
    phased = sorted(set(settings) & {"free_fraction", "refit_temperature_factor"})
    if phased and not targeted:
        expected = "left out unless the recommended recipe has a target_density"
        raise invalid(
            phased[0], "recipe", expected, repr(settings[phased[0]]), "Add target_density, or leave it out."
        )
    made = _recommended(family) if name == "recommended" else _paper(family, architecture or "fc")
    own = {**_PHASES, **settings} if targeted else settings
    return replace(made, settings=replace(made.settings, **own))


def _recommended(family: str) -> Recipe:
    """Logits from U(2, 4), He means, ρ = −5; slab scales learned; a tempered posterior, warmed up to."""
    start = Initial()
    options = {"relaxation": RELAXATION} if family == "concrete" else {}
    return Recipe("recommended", family, start, start, RECOMMENDED, "empirical", family_options=options)


def _paper(family: str, architecture: str) -> Recipe:
    """The published start and schedule. LBBNN's logits start and move as LBBNN-LRT's: see the tables."""
    start = replace(_PAPER, inclusion_logit=_LOGITS[architecture])
    if architecture == "fc" and family != "spike_slab":
        start = replace(start, mean=_SMALL)
    dense_start = replace(start, mean=_SMALL) if family == "flow" else start
    milestones = {"fc": (125,), "lenet": (100, 200) if family == "flow" else (80, 160)}[architecture]
    settings = Settings(epochs=250, batch_size=100, learning_rate=1e-4, schedule=Steps(milestones))
    options = {"relaxation": PAPER_RELAXATION} if family == "concrete" else {}
    return Recipe("paper", family, start, dense_start, settings, "spike_slab", family_options=options)
