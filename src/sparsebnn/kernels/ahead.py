"""Compiling all Triton kernels of a step at once, instead of one after the other as they are met."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from sparsebnn.kernels.dispatch import rehearsing

_log = logging.getLogger("sparsebnn")
_MOST = 16  # threads
_ONE = threading.Lock()  # launches are replaced for one step at a time


def compile_ahead(step: Callable[[], Any]) -> None:
    """Run ``step`` without launching the kernels that it meets, and compile these in several threads.

    What the step computes means nothing, so it must change nothing that matters. A kernel that cannot be
    compiled is left to its first launch. Where Triton cannot do this, nothing happens. Launches of other
    threads go on as ever; those of autograd's own, which run the backward pass, belong to the step.
    """
    try:
        from triton import AsyncCompileMode  # type: ignore[import-not-found, unused-ignore]
        from triton.runtime.jit import JITFunction  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return
    met: list[Any] = []
    me, device = threading.get_ident(), torch.cuda.current_device()

    def note(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        own = threading.get_ident() == me or isinstance(threading.current_thread(), threading._DummyThread)
        ours = own and self.fn.__module__.startswith("sparsebnn.")
        found = original(self, *args, grid=grid, warmup=warmup or ours, **options)
        met.extend([found] if ours and found is not None else [])
        return found

    def load(kernel: Any) -> None:
        with torch.cuda.device(device):
            made = kernel.result() if hasattr(kernel, "result") else kernel
            made.run  # noqa: B018  (builds what launches it)

    with _ONE:
        original = JITFunction.run
        try:
            with ThreadPoolExecutor(min(_MOST, os.cpu_count() or 1)) as threads:
                with rehearsing(), AsyncCompileMode(threads, ignore_errors=True):
                    JITFunction.run = note
                    try:
                        step()
                    finally:
                        JITFunction.run = original
                list(threads.map(load, met))
        except Exception as error:  # the first launch will tell
            _log.debug("Kernels could not be compiled ahead (%s: %s).", type(error).__name__, error)
