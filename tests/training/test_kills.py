"""A training that is killed again and again ends as the one nobody killed."""

import contextlib
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

from sparsebnn.training import checkpoint
from training.runs import FILE, Settings, fit, make_data, make_network, parameters, same

PROGRAM = """
import os, sys, time
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
import sparsebnn
from sparsebnn.training import Callback
from training.runs import Settings, make_data, make_network
def slow(call, seconds):
    def wait_and_call(*arguments):
        time.sleep(seconds)
        return call(*arguments)
    return wait_and_call
os.fsync, os.replace = slow(os.fsync, 0.004), slow(os.replace, 0.002)
class Say(Callback):
    said = False
    def on_train_start(self, run):
        print("started", flush=True)
    def on_checkpoint(self, run, path):
        if not self.said:
            print("saved", flush=True)
        self.said = True
        time.sleep(0.002)
run = sparsebnn.train(
    make_network(), make_data(), settings=Settings(40, 4, 1e-2), replicates=2, device="cpu", mode="eager",
    folder=sys.argv[1], resume=True, checkpoint_seconds=0.0, callbacks=[Say()], progress=False,
)
torch.save(run.replicates.parameters, sys.argv[2])
"""


@pytest.mark.slow
def test_killed_at_twenty_random_moments(tmp_path):
    """Resumed until it is done, the run ends as the one nobody killed; many kills come during a write."""
    program = textwrap.dedent(PROGRAM).format(tests=str(Path(__file__).parents[1]))
    luck = random.Random(7)
    folder, result = tmp_path / "run", tmp_path / "result.pt"
    positions, during_a_write = [], 0
    kills, deadline = 0, time.monotonic() + 600
    arguments = [sys.executable, "-c", program, str(folder), str(result)]
    while not result.exists():
        assert time.monotonic() < deadline
        child = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        try:
            assert child.stdout.readline() == "started\n"
            if luck.random() < 0.8:
                assert child.stdout.readline() == "saved\n"
            if kills == 10:
                # Alone in its folder: another process is refused, and this one does not notice.
                other = subprocess.run(arguments, capture_output=True, text=True, check=False)
                assert other.returncode == 1
                assert "must be used by one training run at a time" in other.stderr
            elif kills < 20:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(luck.uniform(0.0, 0.15))
        finally:
            if kills < 20 and child.poll() is None:
                child.kill()
            child.wait(100)
            child.stdout.close()
        if child.returncode == -signal.SIGKILL:
            kills += 1
            during_a_write += any(folder.glob(f".{FILE}.*"))
            if (folder / FILE).exists():
                _, header = checkpoint.read(folder / FILE)
                positions.append((header["epoch"], header["position"]))
        else:
            assert child.returncode == 0
    assert kills == 20
    assert during_a_write >= 3
    assert positions == sorted(positions)
    assert len(set(positions)) > 5
    straight = fit(make_network(), make_data(), Settings(40, 4, 1e-2), replicates=2)
    assert same(torch.load(result), parameters(straight))
