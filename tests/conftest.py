"""Settings for all tests: one thread each, since pytest -n already fills the cores."""

import pytest
import torch

torch.set_num_threads(1)
# Some of torch's warnings come once per process; as errors they would depend on the order of the tests.
torch.set_warn_always(True)


@pytest.fixture(autouse=True)
def _seeded():
    """Every test starts from the same generator state, alone or after any other."""
    torch.manual_seed(20240229)
