"""How the step runs: eagerly, captured as a CUDA graph, or compiled; and what ``"auto"`` chooses.

A captured step starts in seconds, a compiled one in minutes, and then each of its steps is shorter. Compiling
pays when the run has more steps than the seconds it takes, divided by the seconds it saves per step. Both are
estimated from the network rather than measured, so that the same run chooses the same mode.
"""

from __future__ import annotations

import torch

from sparsebnn.checks import check_choice, invalid
from sparsebnn.nn.networks import bayesian_layers
from sparsebnn.training.replicates import Replicates

MODES = ("auto", "eager", "captured", "compiled")
# Compiling takes tens of seconds on a CPU and halves a step: below this many weight-updates a run
# does not repay it.
_WORTH_COMPILING_ON_CPU = 2e10
# On CUDA, fitted to an H200 (docs/studies/performance.md), by family: seconds of compiling a layer, and the
# microseconds that a step saves by it for a layer and for a million parameters.
_COSTS = {"concrete": (16.0, 180.0, 5.0), "flow": (55.0, 660.0, 27.5), "mnf": (55.0, 660.0, 27.5)}
_USUAL = 17.6, 101.5, 5.0
_NOISE_MICROSECONDS = 70.0  # for a million numbers: as many as the local reparametrization has outputs
_CONVOLUTIONS = 1.4  # the compiler's work, relative to dense layers


def checked(mode: str, device: torch.device) -> str:
    """A mode that the device has."""
    check_choice(mode, MODES, "mode", "train")
    if mode == "captured" and device.type != "cuda":
        advice = "A CUDA graph needs a GPU: use mode='auto', which captures where that is possible."
        raise invalid("mode", "train", "'auto', 'eager' or 'compiled' on a CPU", repr(mode), advice)
    return mode


def break_even(replicates: Replicates) -> float:
    """The steps after which compiling on CUDA has repaid itself, as estimated."""
    layers = [layer for _, layer in bayesian_layers(replicates.objective)]
    compiling, launches, memory = zip(*(_COSTS.get(layer.family, _USUAL) for layer in layers))
    parameters = sum(p.numel() for p in replicates.trained.values())
    noise = len(replicates) * (replicates.size.normal + replicates.size.logistic)
    # Layers share kernels, so twice as many do not take twice the time.
    seconds = sum(compiling) * len(layers) ** -0.3
    if any(len(layer.weights.shape) > 2 for layer in layers):
        seconds *= _CONVOLUTIONS
    saved = sum(launches) + 1e-6 * (max(memory) * parameters + _NOISE_MICROSECONDS * noise)
    return 1e6 * seconds / saved


def chosen(mode: str, replicates: Replicates, device: torch.device, steps: int) -> str:
    """The mode itself, or for ``"auto"`` the one with the least time from start to result, as estimated."""
    if mode != "auto":
        return mode
    if device.type == "cuda":
        return "compiled" if steps > break_even(replicates) else "captured"
    weights = sum(p.numel() for p in replicates.trained.values())
    return "compiled" if weights * steps > _WORTH_COMPILING_ON_CPU else "eager"
