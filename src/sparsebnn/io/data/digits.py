"""The handwritten digits that come with scikit-learn: 1797 images of 8×8 pixels, nothing to download."""

from __future__ import annotations

import torch

from sparsebnn.io.data.record import Dataset

__all__ = ["digits"]


def digits() -> Dataset:
    """Pixels / 16; a quarter of the rows, stratified by digit and always the same ones, are the test part."""
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError as error:
        message = "The data set 'digits' needs scikit-learn: pip install 'sparsebnn[data]'"
        raise ImportError(message) from error
    pixels, labels = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        pixels, labels, test_size=0.25, random_state=0, stratify=labels
    )
    return Dataset(
        name="digits",
        x_train=torch.as_tensor(x_train / 16.0, dtype=torch.float32),
        y_train=torch.as_tensor(y_train, dtype=torch.int64),
        x_test=torch.as_tensor(x_test / 16.0, dtype=torch.float32),
        y_test=torch.as_tensor(y_test, dtype=torch.int64),
        class_names=tuple("0123456789"),
        image_shape=(8, 8),
    )
