"""The run that interrupted and resumed runs are compared with."""

import pytest

from training.runs import DATA, NETWORK, OPTIONS, SHORT, fit


@pytest.fixture(scope="package")
def whole():
    return fit(NETWORK, DATA, SHORT, **OPTIONS)
