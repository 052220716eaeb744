"""The paper's methods as a careful reader would write them: plain modules, one replicate, eager.

Nothing here is used by the library. It is what the library's speed is compared with, and it shares no
code with it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["deterministic", "reference", "step_of"]


class MaskedLinear(nn.Linear):
    def __init__(self, inputs: int, outputs: int, mask: Tensor) -> None:
        super().__init__(inputs, outputs)
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.mask * self.weight, self.bias)


class IAF(nn.Module):
    """One gated inverse-autoregressive step."""

    def __init__(self, dim: int, hidden: int = 250) -> None:
        super().__init__()
        order = torch.randperm(dim)
        first, second = (torch.randint(0, max(dim - 1, 1), (hidden,)) for _ in range(2))
        masks = [first[:, None] >= order, second[:, None] >= first, order.repeat(2)[:, None] > second]
        sizes = [dim, hidden, hidden, 2 * dim]
        layers = [MaskedLinear(a, b, m.float()) for a, b, m in zip(sizes, sizes[1:], masks)]
        act = nn.LeakyReLU(0.001)
        self.net = nn.Sequential(layers[0], act, layers[1], act, layers[2])

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        m, s = self.net(z).chunk(2, -1)
        gate = torch.sigmoid(s)
        return gate * z + (1 - gate) * m, torch.log(gate).sum()


class Layer(nn.Module):
    """A dense or convolutional layer: ``method`` is lrt, flow or lbbnn."""

    def __init__(self, shape: tuple[int, ...], method: str) -> None:
        super().__init__()
        self.method, self.conv = method, len(shape) == 4
        self.mean = nn.Parameter(torch.empty(shape).uniform_(-0.2, 0.2))
        self.rho = nn.Parameter(-9 + 0.1 * torch.randn(shape))
        self.logit = nn.Parameter(torch.empty(shape).uniform_(-15, 10))
        self.bias_mean = nn.Parameter(torch.empty(shape[0]).uniform_(-0.2, 0.2))
        self.bias_rho = nn.Parameter(-9 + torch.randn(shape[0]))
        if method == "flow":
            self.dim = shape[0] if self.conv else shape[1]
            self.z0_mean = nn.Parameter(torch.randn(self.dim))
            self.z0_log_var = nn.Parameter(-9 + torch.randn(self.dim))
            self.e, self.d1, self.d2 = (nn.Parameter(torch.randn(self.dim)) for _ in range(3))
            self.q = nn.ModuleList(IAF(self.dim) for _ in range(2))
            self.r = nn.ModuleList(IAF(self.dim) for _ in range(2))

    def op(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.conv2d(x, weight, bias) if self.conv else F.linear(x, weight, bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        alpha = torch.sigmoid(self.logit)
        std = torch.log1p(torch.exp(self.rho))
        bias_std = torch.log1p(torch.exp(self.bias_rho))
        mean, extra = self.mean, torch.zeros((), device=x.device)
        if self.method == "flow":
            z = self.z0_mean + torch.exp(0.5 * self.z0_log_var) * torch.randn_like(self.z0_mean)
            log_q = (
                torch.distributions.Normal(self.z0_mean, torch.exp(0.5 * self.z0_log_var)).log_prob(z).sum()
            )
            for step in self.q:
                z, log_det = step(z)
                log_q = log_q - log_det
            mean = mean * (z.view(-1, 1, 1, 1) if self.conv else z)
        if self.method == "lbbnn":
            uniform = torch.rand_like(alpha).clamp(1e-6, 1 - 1e-6)
            gamma = torch.sigmoid((self.logit + torch.log(uniform) - torch.log(1 - uniform)) / 0.001)
            weight = gamma * (mean + std * torch.randn_like(mean))
            bias = self.bias_mean + bias_std * torch.randn_like(bias_std)
            out = self.op(x, weight, bias)
        else:
            w_mean, w_var = alpha * mean, alpha * (std**2 + (1 - alpha) * mean**2)
            m, v = self.op(x, w_mean, self.bias_mean), self.op(x**2, w_var, bias_std**2)
            out = m + torch.sqrt(v) * torch.randn_like(m)
        if self.method == "flow":
            axis = 0 if self.conv else 1
            shape = (-1, 1, 1, 1) if self.conv else (1, -1)
            s_mean = (w_mean * self.e.view(shape)).sum(axis)
            s_var = (w_var * self.e.view(shape) ** 2).sum(axis)
            s = s_mean + torch.sqrt(s_var) * torch.randn_like(s_mean)
            act = (s if self.conv else F.hardtanh(s)).mean()
            z_b, log_det_r = z, 0.0
            for step in self.r:
                z_b, log_det = step(z_b)
                log_det_r = log_det_r + log_det
            normal = torch.distributions.Normal(self.d1 * act, torch.exp(0.5 * self.d2 * act))
            extra = log_q - normal.log_prob(z_b).sum() - log_det_r
        kl = alpha * (-torch.log(std) - 0.5 + torch.log(alpha / 0.1 + 1e-30) + 0.5 * (std**2 + mean**2))
        kl = (kl + (1 - alpha) * torch.log((1 - alpha) / 0.9 + 1e-30)).sum()
        kl_bias = (-torch.log(bias_std) - 0.5 + 0.5 * (bias_std**2 + self.bias_mean**2)).sum()
        return out, kl + kl_bias + extra


class Network(nn.Module):
    def __init__(self, architecture: str, method: str) -> None:
        super().__init__()
        convolutions = [(32, 1, 5, 5), (48, 32, 5, 5)] if architecture == "lenet" else []
        dense = [(256, 768), (84, 256), (10, 84)] if convolutions else [(400, 784), (600, 400), (10, 600)]
        self.convolutions = nn.ModuleList(Layer(shape, method) for shape in convolutions)
        self.dense = nn.ModuleList(Layer(shape, method) for shape in dense)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.zeros((), device=x.device)
        for layer in self.convolutions:
            x, kl = layer(x)
            x, total = F.avg_pool2d(F.relu(x), 2), total + kl
        x = x.flatten(1)
        for i, layer in enumerate(self.dense):
            x, kl = layer(x)
            x, total = F.relu(x) if i < len(self.dense) - 1 else x, total + kl
        return x, total


def reference(architecture: str, method: str) -> Network:
    """A network whose forward gives ``(logits, KL)``."""
    return Network(architecture, method)


def deterministic(architecture: str) -> nn.Sequential:
    """The plain network of the same shape."""
    if architecture == "fc":
        return nn.Sequential(
            nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 600), nn.ReLU(), nn.Linear(600, 10)
        )
    head = [nn.Conv2d(1, 32, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(32, 48, 5), nn.ReLU(), nn.AvgPool2d(2)]
    tail = [nn.Linear(768, 256), nn.ReLU(), nn.Linear(256, 84), nn.ReLU(), nn.Linear(84, 10)]
    return nn.Sequential(*head, nn.Flatten(), *tail)


def step_of(network: nn.Module, x: Tensor, y: Tensor, batches: int) -> Callable[[], None]:
    """A training step of an eager network, as most people write it."""
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-4)

    def step() -> None:
        optimiser.zero_grad()
        out = network(x)
        logits, kl = out if isinstance(out, tuple) else (out, torch.zeros((), device=x.device))
        loss = F.cross_entropy(logits, y, reduction="sum") + kl / batches
        loss.backward()
        optimiser.step()

    return step
