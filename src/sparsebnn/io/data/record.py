"""What a data set is: one frozen record of tensors."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Dataset"]


@dataclass(frozen=True)
class Dataset:
    """Rows with their labels, split into training and test part.

    ``x_*`` are ``(rows, features)``, in float32 or as the uint8 pixels they were stored as (training and
    prediction divide those by 255); ``y_*`` labels in int64; ``image_shape`` is how a row reads as an image.
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    class_names: tuple[str, ...]
    image_shape: tuple[int, ...]
