"""Estimators without a random state draw their seed from NumPy: every test starts from the same one."""

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _seeded_numpy():
    np.random.seed(0)
