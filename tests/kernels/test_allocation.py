"""allocation.py: what a step frees stays with the process."""

import ctypes
import subprocess
import sys

import pytest

# How many blocks the C library has from the system alone (each returned when freed), for one of 20 MiB.
_COUNT = """
import ctypes, sys
import torch
from sparsebnn.kernels.dispatch import keep_freed_memory

class Info(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

library = ctypes.CDLL(None)
library.mallinfo2.restype = Info
if sys.argv[1] == "kept":
    keep_freed_memory("cpu")
before = library.mallinfo2().hblks
block = torch.empty(20 << 20, dtype=torch.uint8)
print(library.mallinfo2().hblks - before)
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "mallinfo2"),
    reason="other C libraries do as they like",
)
@pytest.mark.parametrize(("how", "blocks"), [("returned", 1), ("kept", 0)])
def test_large_blocks_are_kept_when_they_are_freed(how, blocks):
    made = subprocess.run([sys.executable, "-c", _COUNT, how], capture_output=True, text=True, check=True)
    assert int(made.stdout) == blocks
