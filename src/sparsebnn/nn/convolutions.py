"""Conv1d and Conv2d: the convolution as an op, and its kernel for replicates on CUDA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsebnn.checks import check_choice, check_count, invalid
from sparsebnn.init import Initial
from sparsebnn.kernels import local
from sparsebnn.kernels.convolution import Geometry, conv2d_moments, conv2d_replicated
from sparsebnn.kernels.dispatch import for_kernels
from sparsebnn.nn.layers import BayesianLayer
from sparsebnn.posteriors import Moments
from sparsebnn.posteriors.priors import Prior
from sparsebnn.random.noise import Noise


class _Conv(BayesianLayer):
    """What the convolutions share; the flow family has one z per filter and no squashing."""

    z_axis = 0
    flow_squash = "identity"
    dims: int

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: str | int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
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
        owner = type(self).__name__
        check_count(groups, "groups", owner)
        for name, channels in (("in_channels", in_channels), ("out_channels", out_channels)):
            check_count(channels, name, owner)
            if channels % groups:
                raise invalid(name, owner, f"a multiple of groups ({groups})", channels)
        check_choice(padding_mode, ("zeros", "reflect", "replicate", "circular"), "padding_mode", owner)
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = self._tuple(kernel_size, "kernel_size", 1)
        self.stride = self._tuple(stride, "stride", 1)
        self.dilation = self._tuple(dilation, "dilation", 1)
        self.padding_mode = padding_mode
        if isinstance(padding, str):
            check_choice(padding, ("same", "valid"), "padding", owner)
            if padding == "same" and any(s != 1 for s in self.stride):
                raise invalid("padding", owner, "a number when stride is not 1", repr(padding))
            self.padding: str | tuple[int, ...] = padding
        else:
            self.padding = self._tuple(padding, "padding", 0)
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        priors = (prior, bias_prior)
        super().__init__(shape, bias, family, *priors, initial, family_options, sampling, dtype, device)

    def _tuple(self, value: int | Sequence[int], what: str, least: int) -> tuple[int, ...]:
        values = (value,) * self.dims if isinstance(value, int) else tuple(value)
        if len(values) != self.dims:
            expected = f"a number or {self.dims} numbers"
            raise invalid(what, type(self).__name__, expected, repr(value))
        return tuple(check_count(v, what, type(self).__name__, least) for v in values)

    def _pads(self) -> list[int]:
        """Padding as F.pad wants it: last dimension first, before and after."""
        pads: list[int] = []
        for d in reversed(range(self.dims)):
            if self.padding == "same":
                total = self.dilation[d] * (self.kernel_size[d] - 1)
                pads += [total // 2, total - total // 2]
            else:
                width = 0 if self.padding == "valid" else int(self.padding[d])
                pads += [width, width]
        return pads

    def forward(self, x: Tensor, noise: Noise | None = None) -> Tensor:
        if x.dim() != self.dims + 2 or x.shape[1] != self.in_channels:
            sizes = ", ".join(("height", "width")[-self.dims :]) if self.dims == 2 else "length"
            expected = f"of shape (batch, {self.in_channels}, {sizes})"
            raise invalid("x", type(self).__name__, expected, f"shape {tuple(x.shape)}")
        self._check_sizes(x)
        return super().forward(x, noise)

    def _check_sizes(self, x: Tensor) -> None:
        """Something must be left of every axis."""
        pads = self._pads()[::-1]
        for d, size in enumerate(x.shape[2:]):
            least = self.dilation[d] * (self.kernel_size[d] - 1) + 1 - pads[2 * d] - pads[2 * d + 1]
            if size < least:
                name = ("height", "width")[d] if self.dims == 2 else "length"
                expected = f"of a {name} of at least {least}"
                advice = "The input is too small for the layers of this network."
                raise invalid("x", type(self).__name__, expected, f"shape {tuple(x.shape)}", advice)

    def op(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x, padding = self._padded(x)
        return self._convolve(x, weight, bias, padding)

    def _padded(self, x: Tensor) -> tuple[Tensor, str | tuple[int, ...]]:
        """The input, padded where the op cannot do it, and the padding left to the op."""
        if self.padding_mode == "zeros":
            return x, self.padding
        return F.pad(x, self._pads(), mode=self.padding_mode), (0,) * self.dims

    def _convolve(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, padding: str | tuple[int, ...]
    ) -> Tensor:
        raise NotImplementedError

    def extra_repr(self) -> str:
        kernel = ", ".join(map(str, self.kernel_size))
        return f"{self.in_channels}, {self.out_channels}, kernel=({kernel}), family={self.family!r}"


class Conv1d(_Conv):
    """A convolution over sequences; arguments as :class:`torch.nn.Conv1d`."""

    dims = 1

    def _convolve(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, padding: str | tuple[int, ...]
    ) -> Tensor:
        return F.conv1d(x, weight, bias, self.stride, padding, self.dilation, self.groups)


class Conv2d(_Conv):
    """A convolution over images; arguments as :class:`torch.nn.Conv2d`.

    >>> Conv2d(1, 8, 5, stride=2, family="gaussian")(torch.randn(3, 1, 28, 28)).shape
    torch.Size([3, 8, 12, 12])
    """

    dims = 2

    def _geometry(self, x: Tensor, padding: str | tuple[int, ...]) -> Geometry | None:
        """Stride, padding and dilation where the replicated kernel applies."""
        if not for_kernels(x) or self.groups != 1 or padding == "same" or local.applies(x):
            return None
        pads = [0, 0] if padding == "valid" else [int(p) for p in padding]
        return list(self.stride), pads, list(self.dilation)

    def output_moments(
        self, x: Tensor, moments: Moments, bias_mean: Tensor | None, bias_var: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        padded, padding = self._padded(x)
        geometry = self._geometry(x, padding)
        if geometry is None or moments.scale is not None or moments.gate is not None:
            return super().output_moments(x, moments, bias_mean, bias_var)
        # The kernel computes in the precision of the weights, also where autocast has rounded x.
        padded = padded.to(moments.mean.dtype)
        return conv2d_moments(padded, moments.mean, moments.var, bias_mean, bias_var, geometry)

    def _sampled(
        self, x: Tensor, moments: Moments, bias_mean: Tensor | None, bias_var: Tensor | None, noise: Noise
    ) -> Tensor:
        plain = moments.scale is None and moments.gate is None and self.padding != "same"
        if not plain or not local.applies(x):
            return super()._sampled(x, moments, bias_mean, bias_var, noise)
        padded, _ = self._padded(x)
        pads = self._pads()[::-2] if padded is x else [0, 0]
        options = local.Options(self.stride, pads, self.dilation, self.groups)
        return local.sampled(padded, moments[:2], (bias_mean, bias_var), options, noise.normal)

    def _convolve(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, padding: str | tuple[int, ...]
    ) -> Tensor:
        geometry = self._geometry(x, padding)
        if geometry is not None:
            return conv2d_replicated(x, weight, bias, geometry)
        return F.conv2d(x, weight, bias, self.stride, padding, self.dilation, self.groups)
