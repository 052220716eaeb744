"""The data sets known by name: what they must hold, and where they are published.

The checksums are SHA-256 of the *unpacked* idx content (header and bytes), not of the .gz files: the same
rows then have one checksum, whether they come as .gz, as idx or as .npz, and however gzip packed them.
Unpacking therefore comes before the checksum; it stops where the published files end.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import torch

from sparsebnn.io.data.files import ARRAYS, IDX_FILES, Arrays, DataError, Dataset, as_bytes, idx_bytes

# Bytes of each idx file: 60,000 and 10,000 images of 28 by 28 pixels.
_SIZES = dict(zip(ARRAYS, (47_040_016, 60_008, 7_840_016, 10_008)))


@dataclass(frozen=True)
class Entry:
    """A published data set: its classes, the checksum of each array, its homes (each ends in a slash).

    ``sizes`` are the bytes of each idx file; nothing larger is downloaded or unpacked.
    """

    title: str
    class_names: tuple[str, ...]
    sha256: dict[str, str]
    homes: tuple[str, ...]
    sizes: dict[str, int] = field(default_factory=lambda: dict(_SIZES))

    def urls(self, array: str) -> list[str]:
        """Where an array's idx file can be had."""
        return [f"{home}{IDX_FILES[array]}.gz" for home in self.homes]


def _entry(title: str, classes: str, checksums: str, *homes: str) -> Entry:
    return Entry(title, tuple(classes.split(", ")), dict(zip(ARRAYS, checksums.split())), homes)


CATALOGUE = {
    "mnist": _entry(
        "MNIST",
        "0, 1, 2, 3, 4, 5, 6, 7, 8, 9",
        """ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db
        65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5
        0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7
        ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2""",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    "fmnist": _entry(
        "Fashion-MNIST",
        "T-shirt/top, trouser, pullover, dress, coat, sandal, shirt, sneaker, bag, ankle boot",
        """c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888
        bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9
        5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b
        0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34""",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
    ),
    "kmnist": _entry(
        "Kuzushiji-MNIST",
        "o, ki, su, tsu, na, ha, ma, ya, re, wo",
        """7112ba9ec422d98de4885262d4a4dff14cc4fefb81c11ace8bf563a8255df5c3
        2a16eeae62da984b8bd24fa32e31d47291f01dac3fe84d5594f304f71e7d374b
        76fbd229ce87db80dd281af5e6670de4ad0e42fb30a7bd643972994c47c1f42e
        a11dc742be8e781a40a92f53d6a4957e7b7d36df2faa097659131ebfd8fd60c6""",
        "https://codh.rois.ac.jp/kmnist/dataset/kmnist/",
    ),
}


def verify(name: str, arrays: Arrays, path: Path) -> Arrays:
    """The arrays found at ``path`` as bytes; complain when they are not those published under the name."""
    entry, found = CATALOGUE[name], {}
    advice = "Replace it, or load it by its path instead of by name."
    for array, expected in entry.sha256.items():
        whole = as_bytes(arrays[array])
        if whole is None:
            raise DataError(
                f"{path} does not hold {entry.title}: its {array} of {arrays[array].dtype} are not whole "
                f"numbers from 0 to 255. {advice}"
            )
        if hashlib.sha256(idx_bytes(whole)).hexdigest() != expected:
            raise DataError(
                f"{path} does not hold {entry.title}: its {array} differ from the published rows (SHA-256). "
                f"{advice}"
            )
        found[array] = whole
    return found


def digits() -> Dataset:
    """The digits of scikit-learn: 1797 images of 8×8 pixels, divided by 16; a fixed quarter is for tests."""
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
