"""Bayesian layers: the only place where a family meets an op.

A layer is a family for its weights, a Gaussian for its biases, and an op ``(x, weight, bias) -> y``.
The local reparametrization is ``op(x, mean)`` and ``op(x², variance)``, written once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebnn.checks import check_choice, check_count, invalid
from sparsebnn.init import Initial
from sparsebnn.nn.passes import LocalPass, Pass, PosteriorPass, active_pass
from sparsebnn.posteriors import FAMILIES, Family, Gaussian, Moments, family_name
from sparsebnn.posteriors.learned_priors import GammaPrecisionPrior, HierarchicalPrior
from sparsebnn.posteriors.priors import GaussianPrior, Prior
from sparsebnn.random.noise import Noise


class NoWeight(AttributeError, TypeError):
    """What a Bayesian layer says when it is asked for a ``weight``; to ``hasattr`` it says no."""


class BayesianLayer(nn.Module):
    """A layer with distributions instead of weights; subclasses say only what the op is.

    Inside an open pass (:mod:`sparsebnn.nn.passes`) the pass decides what is drawn. Outside a
    pass, every call draws new weights: as in training, or in ``eval()`` mode by the local reparametrization.

    ``sampling="local"`` samples the outputs where the family allows it: low-variance gradients, and noise
    that is independent from example to example and from position to position. A layer that a forward pass
    calls more than once draws its weights, so that every call sees the same ones. ``sampling="weights"``
    always draws them, in training from a Gaussian with their moments. It costs gradient variance and matters
    where outputs of several positions are combined: the mean of 100 positions of a weight N(0, 1) has a
    standard deviation of 1, and of 0.1 with ``"local"``.
    """

    z_axis: int
    sampling: str
    flow_squash: str

    def __init__(
        self,
        weight_shape: Sequence[int],
        bias: bool,
        family: str,
        prior: Prior | None,
        bias_prior: Prior | None,
        initial: Initial,
        family_options: Mapping[str, Any] | None,
        sampling: str,
        dtype: torch.dtype | None,
        device: torch.device | str | None,
    ) -> None:
        super().__init__()
        self.sampling = check_choice(sampling, ("local", "weights"), "sampling", type(self).__name__)
        family = family_name(family, type(self).__name__)
        kind = FAMILIES[family]
        start: Any = initial
        if not isinstance(start, Initial):
            raise invalid("initial", type(self).__name__, "an Initial", repr(start))
        given: Any = {} if family_options is None else family_options
        if not isinstance(given, Mapping):
            advice = "For example {'hidden': (50, 50)} of a flow."
            raise invalid("family_options", type(self).__name__, "a dict", repr(given), advice)
        options = dict(given)
        if kind.name in ("flow", "mnf"):
            if options.get("z_axis", self.z_axis) != self.z_axis:
                expected = f"{self.z_axis}, the axis this layer's op scales"
                raise invalid("z_axis", type(self).__name__, expected, options["z_axis"])
            options = {"squash": self.flow_squash, **options, "z_axis": self.z_axis}
        self.family = family
        self._start: tuple[Tensor, Tensor | None] | None = None
        self.weights: Family = kind(weight_shape, prior, initial, **options)  # type: ignore[arg-type,call-arg]
        self.biases: Gaussian | None = None
        if bias:
            if bias_prior is None:
                hierarchical = isinstance(prior, HierarchicalPrior)
                bias_prior = GammaPrecisionPrior() if hierarchical else GaussianPrior()
            if bias_prior.drawn and not kind.draws_weights:
                advice = "Only the 'concrete' family draws its biases, which that prior needs."
                owner = f"a layer of the {family!r} family"
                raise invalid("bias_prior", owner, "a GaussianPrior", type(bias_prior).__name__, advice)
            self.biases = Gaussian(
                weight_shape[:1],
                bias_prior,
                initial,
                mean_start=initial.bias_mean,
                raw_std_start=initial.bias_raw_std,
            )
        where = torch.get_default_device() if device is None else device
        self.to(device=where, dtype=torch.get_default_dtype() if dtype is None else dtype)
        self._drawn = self._probe()

    def _probe(self) -> Tensor | None:
        """A few entries of every parameter, to tell later whether they are still those that were drawn."""
        taken = [p.detach().flatten()[:: max(1, p.numel() // 8)] for p in self.parameters()]
        if not taken or any(part.is_meta for part in taken):
            return None
        return torch.cat([part.double() for part in taken]).cpu()

    @property
    def changed(self) -> bool:
        """Whether parameters have other values than those drawn at the last reset: trained, loaded or set."""
        now = self._probe()
        if self._drawn is None or now is None:
            return False
        dtype = next(self.parameters()).dtype
        return not torch.equal(now, self._drawn.to(dtype).double())

    def __getattr__(self, name: str) -> Any:
        """``weight`` is refused: code that reads it would bypass the posterior."""
        if name == "weight":
            raise NoWeight(
                f"A Bayesian {type(self).__name__} has a distribution instead of a 'weight'. "
                "The surrounding module reads its projection's weight directly; "
                "leave that layer out of convert() with keep=[...], or call the layer itself."
            )
        return super().__getattr__(name)

    def op(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """What the layer does with weights once it has them."""
        raise NotImplementedError

    def output_moments(
        self, x: Tensor, moments: Moments, bias_mean: Tensor | None, bias_var: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        r"""Mean and variance of the outputs for weights with these moments.

        .. math::
            \mathbb E\,h = \operatorname{op}(x, \mathbb E w) + \mathbb E b, \qquad
            \operatorname{Var} h = \operatorname{op}(x^2, \operatorname{Var} w) + \operatorname{Var} b
        """
        if moments.gate is not None:
            exact = _exact(x).to(moments.mean.dtype)
            with _without_autocast(x):  # these variances are made of means, too
                return self._gated(exact, moments, bias_mean, bias_var)
        if moments.scale is None:
            return self.op(x, moments.mean, bias_mean), self._op_exactly(_square(x), moments.var, bias_var)
        return self._scaled(x, moments, bias_mean, bias_var)

    def _op_exactly(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The op of variances, which autocast does not reach."""
        with _without_autocast(x):
            return self.op(x.to(weight.dtype), weight, bias)

    def _scaled(
        self, x: Tensor, moments: Moments, bias_mean: Tensor | None, bias_var: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance where inputs or filters have a scale: it goes to x, or to the outputs."""
        assert moments.scale is not None
        scale, square = moments.scale, _square(x)
        var = self._op_exactly(square, moments.var, bias_var)
        if self.z_axis == 1:
            scale = scale.reshape(len(scale), *[1] * (x.dim() - 2), -1)
            mean = self.op(x * scale, moments.mean, bias_mean)
            if moments.scaled_var is not None:
                var = var + self._op_exactly(square * scale**2, moments.scaled_var, None)
            return mean, var
        filters = scale.reshape(*scale.shape, *[1] * (x.dim() - 2))
        mean = self.op(x, moments.mean, None) * filters
        if bias_mean is not None:
            mean = mean + bias_mean.reshape(-1, *[1] * (x.dim() - 2))
        if moments.scaled_var is not None:
            var = var + self._op_exactly(square, moments.scaled_var, None) * filters**2
        return mean, var

    def _gated(
        self, x: Tensor, moments: Moments, bias_mean: Tensor | None, bias_var: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance where all weights of an output share an inclusion; biases are always included."""
        assert moments.gate is not None

        def per_output(t: Tensor) -> Tensor:
            return t if isinstance(self, Linear) else t.reshape(-1, *[1] * (x.dim() - 2))

        gate = per_output(moments.gate)
        m, v = self.output_moments(x, moments._replace(gate=None), None, None)
        mean, var = gate * m, gate * (v + (1.0 - gate) * m**2)
        if bias_mean is not None:
            mean = mean + per_output(bias_mean)
        return mean, var if bias_var is None else var + per_output(bias_var)

    def forward(self, x: Tensor, noise: Noise | None = None) -> Tensor:
        opened = active_pass()
        if opened is None:
            opened = PosteriorPass(noise) if self.training else LocalPass(noise)
        elif noise is not None:
            raise TypeError("Inside an open pass the pass supplies the noise; call the layer without it.")
        return self._output(opened, x)

    def _output(self, opened: Pass, x: Tensor) -> Tensor:
        """The output in a pass: with drawn weights, or by the local reparametrization."""
        with _without_autocast(x):
            weights, biases = opened.weights_of(self, x.shape[0])
        bias_mean, bias_var = (None, None) if biases is None else (biases.weight, None)
        if biases is not None and biases.moments is not None:
            bias_mean, bias_var = biases.moments.mean, biases.moments.var
        if weights.weight is not None:
            y = self.op(x, weights.weight, bias_mean)
        else:
            assert weights.moments is not None
            y = self._sampled(x, weights.moments, bias_mean, bias_var, opened.row_noise)
        opened.activations += y.numel()
        return y

    def _sampled(
        self, x: Tensor, moments: Moments, bias_mean: Tensor | None, bias_var: Tensor | None, noise: Noise
    ) -> Tensor:
        r"""The local reparametrization: outputs are normal with the moments of the sum,

        .. math:: h = \mathbb E\,h + \sqrt{\operatorname{Var} h}\;\varepsilon .
        """
        mean, var = self.output_moments(x, moments, bias_mean, bias_var)
        # Where the variance is exactly 0 the square root has no gradient; below this it is constant.
        std = torch.sqrt(var.clamp_min(torch.finfo(var.dtype).tiny ** 0.75))
        return mean + std * noise.normal(mean.shape, std)

    def forward_with_kl(self, x: Tensor, noise: Noise | None = None) -> tuple[Tensor, Tensor]:
        """The output and the KL of the same draw, in nats, summed over weights and biases."""
        opened = PosteriorPass(noise)
        y = self._output(opened, x)
        return y, opened.kl()

    @property
    def pretrained(self) -> bool:
        """Whether the layer begins at given weights."""
        return self._start is not None

    @torch.no_grad()
    def start_from(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Begin at these posterior means, now and whenever the layer is reset.

        A flow's z starts at random, so its family scales the means but does not reproduce them.
        """
        self._start = (weight.detach().clone(), None if bias is None else bias.detach().clone())
        self.weights.posterior_mean().copy_(weight)
        if self.biases is not None and bias is not None:
            self.biases.mean.copy_(bias)
        self._drawn = self._probe()

    def reset_parameters(self) -> None:
        """Draw every parameter again from its initializer, with torch's generator."""
        self.weights.reset_parameters()
        if self.biases is not None:
            self.biases.reset_parameters()
        if self._start is not None:
            self.start_from(*self._start)
        self._drawn = self._probe()


def _without_autocast(x: Tensor) -> contextlib.AbstractContextManager[None]:
    """A scope in which operations have the precision of their inputs."""
    on = torch.is_autocast_enabled(x.device.type)
    return torch.autocast(x.device.type, enabled=False) if on else contextlib.nullcontext()


def _exact(x: Tensor) -> Tensor:
    """x, in single precision where autocast has rounded it."""
    rounded = x.dtype in (torch.bfloat16, torch.float16) and torch.is_autocast_enabled(x.device.type)
    return x.float() if rounded else x


def _square(x: Tensor) -> Tensor:
    return _exact(x) ** 2


class Joined:
    """Two blocks of features side by side without a copy: a dense layer adds the products with both.

    An input that needs no gradient then costs none, which one block with the other would.
    """

    def __init__(self, left: Tensor, right: Tensor) -> None:
        self.left, self.right = left, right
        self.sizes = (left.shape[-1], right.shape[-1])
        self.shape = (*left.shape[:-1], sum(self.sizes))
        self.dtype, self.device = left.dtype, left.device

    def dim(self) -> int:
        return len(self.shape)

    def to(self, dtype: torch.dtype) -> Joined:
        return Joined(self.left.to(dtype), self.right.to(dtype))

    def float(self) -> Joined:
        return self.to(torch.float32)

    def __pow__(self, power: int) -> Joined:
        return Joined(self.left**power, self.right**power)

    def __mul__(self, scale: Tensor) -> Joined:
        left, right = scale.split(self.sizes, -1)
        return Joined(self.left * left, self.right * right)

    def product(self, weight: Tensor, bias: Tensor | None) -> Tensor:
        """As ``F.linear`` of both."""
        left, right = weight.split(self.sizes, -1)
        return F.linear(self.left, left) + F.linear(self.right, right, bias)


class Linear(BayesianLayer):
    """A dense layer; the flow family has one z per input unit.

    Shapes: ``(batch, in_features)`` to ``(batch, out_features)``.

    >>> Linear(4, 2, family="flow")(torch.randn(3, 4)).shape
    torch.Size([3, 2])
    """

    z_axis = 1
    flow_squash = "hardtanh"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        family: str = "spike_slab",
        prior: Prior | None = None,
        bias_prior: Prior | None = None,
        initial: Initial = Initial(),
        family_options: Mapping[str, Any] | None = None,
        sampling: str = "local",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        self.in_features = check_count(in_features, "in_features", "Linear")
        self.out_features = check_count(out_features, "out_features", "Linear")
        shape = (out_features, in_features)
        priors = (prior, bias_prior)
        super().__init__(shape, bias, family, *priors, initial, family_options, sampling, dtype, device)

    def op(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        given: Any = x
        return given.product(weight, bias) if isinstance(given, Joined) else F.linear(x, weight, bias)

    def forward(self, x: Tensor, noise: Noise | None = None) -> Tensor:
        if x.dim() < 2 or x.shape[-1] != self.in_features:
            expected = f"of shape (batch, {self.in_features})"
            advice = "Flatten images first." if x.dim() > 2 else ""
            raise invalid("x", "Linear", expected, f"shape {tuple(x.shape)}", advice)
        return super().forward(x, noise)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, family={self.family!r}"
