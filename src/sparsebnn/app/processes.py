"""``torchrun -m sparsebnn fit …``: the processes share every batch; the first one writes and prints."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from datetime import timedelta

from sparsebnn.checks import invalid

_TIMEOUT = timedelta(minutes=5)  # of a process that does not answer; one that ends is noticed at once


@contextlib.contextmanager
def grouped(words: list[str]) -> Iterator[list[str]]:
    """The command's words for this process, inside a process group if torchrun started several."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or "RANK" not in os.environ:
        yield words
        return
    if words[:1] != ["fit"] or any(word.startswith(("--time-budget", "--tune")) for word in words):
        expected = "fit without --time-budget and --tune, which depend on the clock"
        raise invalid("command", "torchrun", expected, " ".join(words))
    import torch
    import torch.distributed as dist

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group(timeout=_TIMEOUT)
    try:
        if dist.get_rank() == 0:
            yield words
        else:
            # The last value of an option counts.
            with (
                tempfile.TemporaryDirectory() as folder,
                open(os.devnull, "w", encoding="utf-8") as nowhere,
                contextlib.redirect_stdout(nowhere),
            ):
                yield [*words, "--out", f"{folder}/run", "--quiet"]
    finally:
        dist.destroy_process_group()
