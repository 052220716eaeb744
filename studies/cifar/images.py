"""The JPEG copy of CIFAR-10 as arrays of pixels, and corrupted test images."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sparsebnn.checks import invalid

__all__ = ["CORRUPTIONS", "corrupted", "load"]

CORRUPTIONS = ("noise", "blur", "contrast")


def load(path: Path, split: str, rows: int | None = None) -> tuple[Tensor, Tensor]:
    """Pixels ``(rows, 3, 32, 32)`` of uint8, and labels; a JPEG file is ``header`` and the image's scan."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("Decoding the images needs 'pillow': pip install pillow") from error
    if not path.is_file():
        raise invalid("data", "cifar", "the path of cifar10_jpeg.npz", str(path), "Give --data.")
    with np.load(path) as file:
        header, scans, ends, labels = (
            file[name] for name in ("header", f"scan_{split}", f"end_{split}", f"y_{split}")
        )
    count = len(ends) if rows is None else min(rows, len(ends))
    begins = np.concatenate([[0], ends[:-1]])
    pixels = np.empty((count, 32, 32, 3), np.uint8)
    for i in range(count):
        jpeg = header.tobytes() + scans[begins[i] : ends[i]].tobytes()
        pixels[i] = np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"))
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels[:count]).long()


def corrupted(x: Tensor, kind: str) -> Tensor:
    """Images from 0 to 1 with noise, a 3×3 blur or a third of their contrast; the same for every method."""
    if kind == "noise":
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x)
        return (x + 0.1 * noise).clamp(0.0, 1.0)
    if kind == "blur":
        return torch.nn.functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
    if kind == "contrast":
        middle = x.mean((1, 2, 3), keepdim=True)
        return middle + (x - middle) / 3.0
    raise invalid("kind", "corrupted", "one of " + ", ".join(CORRUPTIONS), repr(kind))
