r"""A fitted model with its weights stored: what every exported file computes.

The posterior is replaced by D networks of ordinary layers: draws of the weights, or the median probability
model at its posterior means (D = 1). With network outputs :math:`f_d(x)`

.. math::
    p(x) = \frac1D \sum_d \mathrm{softmax}(s f_d(x)), \qquad
    H = H[p], \qquad I = H - \frac1D \sum_d H[\mathrm{softmax}(s f_d(x))]

for classes, with the logit scale s of the calibration; for real targets the mean of the means, and

.. math:: \mathrm{std}^2 = \mathrm{Var}_d[\mu_d(x)] + \frac1D \sum_d \sigma_d(x)^2 + g(x)^2.

g is 0 but for rows of a table outside the training range: there it is the difference that the limits of that
range make to the mean, by the first draws of every network.

Nothing is random: the same file gives the same numbers everywhere.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from sparsebnn.checks import InvalidInput, check_choice, check_count, check_tensor, invalid
from sparsebnn.estimators.observations import DRAWS_OUTSIDE
from sparsebnn.inference.prediction import class_probs
from sparsebnn.inference.sampling import draw_weights
from sparsebnn.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from sparsebnn.nn.compaction import _ELEMENTWISE, Take, compact, median_weights, plain_layer
from sparsebnn.nn.layers import Linear
from sparsebnn.nn.networks import InputSkip, bayesian_layers, chain

__all__ = ["Head", "Predictor", "example_of", "plain", "predictor_of"]

CLASS_OUTPUTS = ("probabilities", "entropy", "mutual_information")
REAL_OUTPUTS = ("mean", "std", "epistemic_std")


def _entropy(probs: Tensor) -> Tensor:
    """In nats; without the checks of :func:`sparsebnn.metrics.entropy`, which cannot be exported."""
    return -torch.special.xlogy(probs, probs).sum(-1)


class Head(nn.Module):
    """Outputs of D networks, ``(D, rows, outputs)``, to the predictive distribution.

    ``scale`` multiplies logits, or the standard deviation of the noise. Real targets are returned in the
    units of training: ``mean · y_std + y_mean``.
    """

    y_mean: Tensor
    y_std: Tensor
    raw_std: Tensor

    def __init__(
        self,
        likelihoods: Sequence[Likelihood],
        scale: Any = 1.0,
        y_mean: Tensor | None = None,
        y_std: Tensor | None = None,
    ) -> None:
        super().__init__()
        form = likelihoods[0]
        if type(form) not in (Categorical, Bernoulli, Gaussian):
            raise invalid(
                "likelihood", "export", "Categorical, Bernoulli or Gaussian", type(form).__name__,
                "Export the outputs of the network with torch.export, and apply the likelihood yourself.",
            )  # fmt: skip
        self.scale: Any
        if np.ndim(scale):  # of each target
            self.register_buffer("scale", torch.as_tensor(scale, dtype=torch.float32))
        else:
            self.scale = float(scale)
        self.kind = type(form).__name__.lower()
        self.heteroscedastic = getattr(form, "noise", "") == "heteroscedastic"
        self._form = (copy.deepcopy(form),)
        if isinstance(form, Gaussian):
            raw = torch.stack([cast(Gaussian, each).raw_std.detach().cpu() for each in likelihoods])
            self.register_buffer("raw_std", raw.unsqueeze(1).float())
            ones = torch.ones(form.n_targets)
            self.register_buffer("y_mean", (0 * ones if y_mean is None else y_mean).double().clone())
            self.register_buffer("y_std", (ones if y_std is None else y_std).double().clone())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the outputs."""
        return REAL_OUTPUTS if self.kind == "gaussian" else CLASS_OUTPUTS

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood of the first network."""
        return self._form[0]

    def forward(self, outputs: Tensor, growth: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        form = self.likelihood
        if not isinstance(form, Gaussian):
            each = class_probs(self.scale * outputs, form)
            probs = each.mean(0)
            total = _entropy(probs)
            return probs, total, (total - _entropy(each).mean(0)).clamp_min(0.0)
        mean = outputs[..., : form.n_targets]
        level = self.raw_std
        if self.heteroscedastic:
            std = self.scale * form._std(outputs, level)
        else:
            std = (self.scale * nn.functional.softplus(level).clamp_min(1e-6)).expand_as(mean)
        centre = mean.mean(0)
        between = ((mean - centre) ** 2).mean(0)
        total = (between + (std**2).mean(0)).sqrt()
        if growth is not None:  # its square may be too large for single precision
            total = (total.double() ** 2 + growth.double() ** 2).sqrt().float()
        # In double precision: targets may be large numbers that differ little.
        unit = self.y_std.float()
        return centre.double() * self.y_std + self.y_mean, total * unit, between.sqrt() * unit


class Predictor(nn.Module):
    """D networks of ordinary layers with stored weights, averaged.

    ``template`` is the network whose layers are ordinary; ``shared`` holds its tensors that are the same in
    all D networks, ``stacked`` the others with D as their first axis. ``forward`` maps inputs, as the network
    takes them, to the tensors named by ``head.names``.

    ``networks`` is how many trained networks the D are draws of, in their order; 0 if intervals are never
    widened.
    """

    def __init__(
        self,
        template: nn.Module,
        shared: Mapping[str, Tensor],
        stacked: Mapping[str, Tensor],
        head: Head,
        networks: int = 0,
    ) -> None:
        super().__init__()
        self._template = (copy.deepcopy(template).float().to("meta").eval(),)  # in a tuple: not a submodule
        self.head = head
        # Convolutions under vmap cannot be exported for any number of rows: their draws are unrolled.
        self._dense = _dense_steps(template)
        self.n_draws = len(next(iter(stacked.values()))) if stacked else 1
        self.n_networks = networks
        self._targets = int(getattr(head.likelihood, "n_targets", 1))
        self._names: dict[str, tuple[str, bool]] = {}
        for several, tensors in ((False, shared), (True, stacked)):
            for name, tensor in tensors.items():
                own = "weights_" + name.replace(".", "_")
                self.register_buffer(own, tensor.detach().cpu().clone())
                self._names[own] = (name, several)

    @property
    def template(self) -> nn.Module:
        """The network whose tensors are stored."""
        return self._template[0]

    def _state(self, several: bool) -> dict[str, Tensor]:
        return {name: self.get_buffer(own) for own, (name, many) in self._names.items() if many is several}

    @property
    def probes(self) -> list[int]:
        """The draws by which rows outside the training range are widened; none for classes."""
        if self.head.kind != "gaussian" or not self.n_networks:
            return []
        each = self.n_draws // self.n_networks
        return [d for d in range(self.n_draws) if d % each < DRAWS_OUTSIDE]

    def outputs(self, x: Tensor) -> Tensor:
        """The outputs of all D networks, ``(D, rows, outputs)``."""
        return self._outputs(x, self._state(False), self._state(True))

    def _outputs(self, x: Tensor, shared: Mapping[str, Tensor], stacked: Mapping[str, Tensor]) -> Tensor:
        if self._dense:
            found = _dense_outputs(self._dense, {**shared, **stacked}, x)
            return found if stacked else found.unsqueeze(0)
        if not stacked:
            return torch.func.functional_call(self.template, dict(shared), (x,)).unsqueeze(0)

        def one(d: int) -> Tensor:
            own = {name: each[d] for name, each in stacked.items()}
            return torch.func.functional_call(self.template, {**shared, **own}, (x,))

        return torch.stack([one(d) for d in range(len(next(iter(stacked.values()))))])

    def _growth(self, outputs: Tensor, free: Tensor) -> Tensor:
        """``(rows, targets)``: how far the means move without the limits of the training range."""

        def probes(stacked: Tensor) -> Tensor:
            return stacked.unflatten(0, (self.n_networks, -1))[:, :DRAWS_OUTSIDE].flatten(0, 1)

        mean = probes(outputs)[..., : self._targets].mean(0)
        shared, stacked = self._state(False), {k: probes(v) for k, v in self._state(True).items()}
        return (mean - self._outputs(free, shared, stacked)[..., : self._targets].mean(0)).abs()

    def forward(self, x: Tensor, free: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """``free`` are the rows without the limits of the training range, for ``std``."""
        outputs = self.outputs(x)
        if free is None or not self.probes:
            return self.head(outputs)
        outside = (x != free).any(1, keepdim=True)

        def none(outputs: Tensor, free: Tensor) -> Tensor:
            return torch.zeros_like(outputs[0, :, : self._targets])

        # A file computes this only for rows of which some are outside.
        exporting = torch.compiler.is_exporting()
        given = (outputs, free)
        growth = torch.cond(outside.any(), self._growth, none, given) if exporting else self._growth(*given)
        return self.head(outputs, torch.where(outside, growth, torch.zeros_like(growth)))

    def networks(self) -> Iterator[nn.Module]:
        """The D networks, one after the other."""
        shared, stacked = self._state(False), self._state(True)
        for d in range(self.n_draws):
            network = copy.deepcopy(self.template).to_empty(device="cpu")
            network.load_state_dict({**shared, **{name: each[d] for name, each in stacked.items()}})
            yield network.eval()


class _Step(NamedTuple):
    """A dense module: the names of its tensors, and of an input-skip network the layers."""

    kind: str
    names: tuple[str, ...] = ()
    activation: nn.Module | None = None


def _dense_steps(template: nn.Module) -> list[_Step]:
    """The modules of a network of dense layers; empty for another network."""
    names = {module: f"{name}." if name else "" for name, module in template.named_modules()}
    found = []
    for module in chain(template):
        if isinstance(module, InputSkip):
            found.append(_Step("skip", tuple(names[layer] for layer in module.layers), module.activation))
        elif isinstance(module, nn.Linear):
            found.append(_Step("skip", (names[module],)))
        elif isinstance(module, _ELEMENTWISE):
            found.append(_Step("activation", (), module))
        elif isinstance(module, Take) and module.dim == -1:
            found.append(_Step("take", (names[module],)))
        else:
            return []
    return found


def _linear(weight: Tensor, bias: Tensor | None, parts: Sequence[Tensor], rows: int) -> Tensor:
    """Stacked layers of what ``parts`` would be in one: each times its own columns of the weights.

    ``rows`` is the number of axes of rows.
    """
    more = [1] * (rows - 1)
    start, found = 0, None
    for part in parts:
        own = weight[..., start : start + part.shape[-1]].transpose(-1, -2)
        product = part @ own.reshape(*own.shape[:-2], *more, *own.shape[-2:])
        found = product if found is None else found + product
        start += part.shape[-1]
    assert found is not None
    return found if bias is None else found + bias.reshape(*bias.shape[:-1], 1, *more, bias.shape[-1])


def _dense_outputs(steps: Sequence[_Step], tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """The outputs of D networks of dense layers at once, as products of stacked matrices."""
    rows = x.dim() - 1
    for step in steps:
        if step.kind == "take":
            x = x[..., tensors[f"{step.names[0]}index"]]
            continue
        if step.kind == "activation":
            assert step.activation is not None
            x = step.activation(x)
            continue
        h: Tensor | None = None
        for name in step.names:
            if h is not None:
                assert step.activation is not None
                h = step.activation(h)
            parts = (x,) if h is None else (h, x)
            h = _linear(tensors[f"{name}weight"], tensors.get(f"{name}bias"), parts, rows)
        assert h is not None
        x = h
    return x


@torch.no_grad()
def plain(network: nn.Module) -> nn.Module:
    """A copy of a network whose Bayesian layers are ordinary ones, with the weights of the median model."""
    layers = {layer: plain_layer(layer, *median_weights(layer)) for _, layer in bayesian_layers(network)}
    # ``deepcopy`` takes the ordinary layer for every Bayesian one it meets.
    return copy.deepcopy(network, memo={id(layer): made for layer, made in layers.items()}).eval()


def example_of(network: nn.Module, example: Any) -> Tensor:
    """A row that the network takes: the one given, or zeros if the first layer says how many inputs."""
    if example is not None:
        row = check_tensor(example, "example", "export")[:1].detach().cpu()
        try:
            with torch.no_grad():
                plain(network).cpu()(_checked_row(network, row).cpu())
        except (RuntimeError, IndexError) as error:
            why = str(error).splitlines()[0]
            expected = "a row that the network takes"
            raise invalid(
                "example", "export", expected, f"shape {tuple(row.shape)}", f"PyTorch: {why}."
            ) from error
        return row
    for module in chain(network):
        if isinstance(module, Linear | nn.Linear | InputSkip):
            return torch.zeros(1, module.in_features)
        if not isinstance(module, nn.Flatten | nn.Identity):
            break
    advice = "Pass export(..., example=x) with a row of the data."
    raise invalid("example", "export", "given, because the shape of a row is not known", "None", advice)


def _checked_row(network: nn.Module, example: Tensor) -> Tensor:
    like = next(network.parameters())
    row = example.to(like.dtype) / 255.0 if example.dtype == torch.uint8 else example
    return row.to(like) if row.is_floating_point() else row


@torch.no_grad()
def predictor_of(
    networks: Sequence[nn.Module],
    head: Head,
    example: Tensor,
    *,
    model: str,
    n_draws: int | None,
    seeds: Sequence[int],
) -> Predictor:
    """Store the weights of one network or of several replicates; ``n_draws`` counts draws of each, by seed.

    Without ``n_draws`` the weights are those of the median model at its posterior means.
    """
    check_choice(model, ("median", "average"), "model", "export")
    first = networks[0]
    if not any(True for _ in bayesian_layers(first)):
        advice = "Build it with mlp, lenet or convert."
        raise invalid("model", "export", "a network with Bayesian layers", type(first).__name__, advice)
    if n_draws is None:
        states = [plain(network).state_dict() for network in networks]
        if len(networks) > 1:
            return Predictor(plain(first), {}, _stack(states), _expanded(head, 1), len(networks))
        try:
            small: nn.Module = compact(first).network
        except InvalidInput:  # not a chain of known modules
            small = plain(first)
        return Predictor(small, _single(small.state_dict()), {}, head, 1)
    check_count(n_draws, "n_draws", "export")
    states = []
    drawn_names: set[str] = set()
    for network, seed in zip(networks, seeds):
        own = plain(network).state_dict()
        for drawn in draw_weights(network, _checked_row(network, example), n_draws, model=model, seed=seed):
            state = dict(own)
            for name, (weight, bias) in drawn.items():
                state[f"{name}.weight".lstrip(".")] = weight
                if bias is not None:
                    state[f"{name}.bias".lstrip(".")] = bias
                drawn_names |= {f"{name}.weight".lstrip("."), f"{name}.bias".lstrip(".")}
            states.append(state)
    shared: dict[str, Tensor] = {}
    if len(networks) == 1:
        shared = {name: value for name, value in states[0].items() if name not in drawn_names}
        states = [{k: v for k, v in state.items() if k not in shared} for state in states]
    stacked = _stack(states)
    return Predictor(plain(first).float(), _single(shared), stacked, _expanded(head, n_draws), len(networks))


def _stack(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return _single({name: torch.stack([state[name].cpu() for state in states]) for name in states[0]})


def _single(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Numbers in single precision; indices and counts stay integers."""
    return {name: each.float() if each.is_floating_point() else each for name, each in tensors.items()}


def _expanded(head: Head, each: int) -> Head:
    """The head with the noise of every network repeated for each of its draws."""
    if head.kind == "gaussian":
        head.raw_std = head.raw_std.repeat_interleave(each, 0)
    return head
