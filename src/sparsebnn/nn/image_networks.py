"""Networks for small images: LeNet-5, and ResNets that are made sparse and Bayesian by conversion."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from sparsebnn.checks import check_count, invalid
from sparsebnn.nn.conversion import convert
from sparsebnn.nn.convolutions import Conv2d
from sparsebnn.nn.networks import mlp

__all__ = ["PlainResNet", "lenet", "resnet"]


def lenet(
    n_classes: int = 10, *, dense: dict[str, Any] | None = None, input_skip: bool = False, **layer: Any
) -> nn.Sequential:
    """The paper's LeNet-5 for 28×28 images: 32 and 48 filters, then 768-256-84-n_classes.

    ``layer`` goes to every layer; ``dense`` overrides it for the dense ones (the paper starts the
    means of convolutions and dense layers differently). With ``input_skip`` the dense layers are an
    :class:`~sparsebnn.nn.InputSkip`: each of them sees the 768 flattened feature maps.
    """
    rest = {**layer, **(dense or {})}
    sizes = (768, 256, 84, n_classes)
    return nn.Sequential(
        Conv2d(1, 32, 5, **layer),
        nn.ReLU(),
        nn.AvgPool2d(2),
        Conv2d(32, 48, 5, **layer),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        *([mlp(sizes, input_skip=True, **rest)] if input_skip else mlp(sizes, **rest)),
    )


class _Block(nn.Module):
    """Two convolutions around a shortcut; the first may halve the image."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(h)) + self.shortcut(x))


class PlainResNet(nn.Module):
    """A ResNet of He et al. (2016) for images of about 32×32 pixels, in plain layers.

    Depth 18 has four stages of 64, 128, 256 and 512 channels (11.2 million weights); depth 6n + 2 (20, 32,
    44, 56, …) three stages of n blocks with 16, 32 and 64 channels (0.27 million for depth 20). The first
    convolution is 3×3 and there is no pooling before the stages.
    """

    def __init__(self, depth: int, n_classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        widths: tuple[int, ...]
        if depth == 18:
            widths, blocks = (64, 128, 256, 512), 2
        elif depth >= 8 and (depth - 2) % 6 == 0:
            widths, blocks = (16, 32, 64), (depth - 2) // 6
        else:
            raise invalid("depth", "resnet", "18, or 6n + 2 (8, 14, 20, 32, 44, 56, …)", depth)
        check_count(n_classes, "n_classes", "resnet", least=2)
        self.stem = nn.Conv2d(check_count(channels, "channels", "resnet"), widths[0], 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(widths[0])
        stages: list[nn.Module] = []
        before = widths[0]
        for stage, width in enumerate(widths):
            for block in range(blocks):
                stages.append(_Block(before, width, 2 if stage and not block else 1))
                before = width
        self.blocks = nn.Sequential(*stages)
        self.head = nn.Linear(before, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.blocks(F.relu(self.norm(self.stem(x))))
        return self.head(h.mean((-1, -2)))


def resnet(depth: int, n_classes: int = 10, *, channels: int = 3, **layer: Any) -> nn.Module:
    """A ResNet whose convolutions and last layer are Bayesian; ``layer`` goes to every one of them.

    Normalization layers stay ordinary, with statistics for each replicate. Depths: :class:`PlainResNet`.

    >>> import torch
    >>> from sparsebnn import density
    >>> network = resnet(8, n_classes=4)
    >>> network(torch.zeros(2, 3, 16, 16)).shape, len(density(network))
    (torch.Size([2, 4]), 10)
    """
    return convert(PlainResNet(depth, n_classes, channels), **layer)
