"""kernels/ahead.py with a stand-in for Triton: what is compiled, and what is launched meanwhile."""

import sys
import threading
import types

import pytest
import torch

from sparsebnn.kernels import dispatch
from sparsebnn.kernels.ahead import compile_ahead

OURS, THEIRS = "sparsebnn.kernels.triton_dense", "somebody.kernels"


class Kernel:
    loaded = 0

    @property
    def run(self):
        type(self).loaded += 1


class Mode:
    def __init__(self, executor, ignore_errors):
        self.executor = executor

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


class JITFunction:
    calls: list[tuple[str, bool]] = []  # noqa: RUF012

    def __init__(self, module):
        self.fn = types.SimpleNamespace(__module__=module)

    def run(self, *args, grid, warmup, **options):
        self.calls.append((self.fn.__module__, warmup))
        return Kernel()

    def __getitem__(self, grid):
        return lambda *args: self.run(*args, grid=grid, warmup=False)


@pytest.fixture
def triton(monkeypatch):
    runtime, jit = types.ModuleType("triton.runtime"), types.ModuleType("triton.runtime.jit")
    jit.JITFunction = JITFunction
    whole = types.ModuleType("triton")
    whole.AsyncCompileMode = Mode
    for name, module in (("triton", whole), ("triton.runtime", runtime), ("triton.runtime.jit", jit)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda index: threading.Lock())
    JITFunction.calls.clear()
    Kernel.loaded = 0


def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def test_own_kernels_are_compiled_and_those_of_others_launched(triton):
    original = JITFunction.run

    def step():
        assert dispatch.in_rehearsal()
        JITFunction(OURS)[1,]()
        JITFunction(THEIRS)[1,]()
        in_thread(lambda: JITFunction(OURS)[1,]())

    compile_ahead(step)
    assert JITFunction.calls == [(OURS, True), (THEIRS, False), (OURS, False)]
    assert Kernel.loaded == 1
    assert JITFunction.run is original
    assert not dispatch.in_rehearsal()


def test_a_step_that_fails_leaves_launches_as_they_were(triton):
    original = JITFunction.run

    def step():
        raise RuntimeError("out of memory")

    compile_ahead(step)
    assert JITFunction.run is original
    JITFunction(OURS)[1,]()
    assert JITFunction.calls == [(OURS, False)]


def test_two_threads_at_once_leave_launches_as_they_were(triton):
    original, inside = JITFunction.run, threading.Event()

    def other():
        inside.wait()
        compile_ahead(JITFunction(OURS)[1,])

    def step():
        inside.set()
        threading.Event().wait(0.05)  # the other thread must wait for this one
        JITFunction(OURS)[1,]()

    thread = threading.Thread(target=other)
    thread.start()
    compile_ahead(step)
    thread.join()
    assert JITFunction.calls == [(OURS, True), (OURS, True)]
    assert JITFunction.run is original


def test_without_triton_nothing_happens(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    compile_ahead(lambda: pytest.fail("the step ran"))
