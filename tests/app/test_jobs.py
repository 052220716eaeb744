"""Jobs on loky, Ray and Dask: the same rows, also when a worker is killed; searches that go on."""

import functools
import os
import signal
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import sparsebnn
from sparsebnn import SparseBNNClassifier
from sparsebnn.app import jobs, tuning


def seed_row(seed, log=None):
    """One row of a study, which notes that it ran; the job of seed 7 kills its worker the first time."""
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 3, generator=g), torch.arange(40) % 2
    options = {"settings": sparsebnn.Settings(2, 20), "seed": seed, "mode": "eager", "progress": False}
    run = sparsebnn.train(sparsebnn.mlp([3, 4, 2]), (x, y), device="cpu", **options)
    if log is not None:
        with open(log, "a") as file:  # one short line at a time: processes do not mix them
            file.write(f"{seed}\n")
        if seed == 7 and runs(log)[7] == 1:
            time.sleep(0.5)  # let results of earlier jobs arrive
            os.kill(os.getpid(), signal.SIGKILL)
    return {"seed": seed, "nll": run.history[-1].nll[0]}


def runs(log):
    """How often the job of each seed ran."""
    return Counter(map(int, Path(log).read_text().split()))


ONCE_OR_KILLED = Counter({seed: 1 + (seed == 7) for seed in range(20)})


def study(log=None):
    return [functools.partial(seed_row, seed, log) for seed in range(20)]


def searched(storage=None, workers=1, trials=2):
    g = np.random.RandomState(0)
    x = g.randn(60, 3)
    y = (x[:, 0] > 0).astype(int)
    model = SparseBNNClassifier(epochs=2, replicates=2, random_state=0, n_draws=5, calibrate=False)
    return tuning.search(model, x, y, trials, 0, storage, workers)


class TerminatedWorkerError(Exception):
    """Named as joblib's."""


def test_jobs_of_a_lost_worker_run_again(monkeypatch):
    """What was done is kept; other errors are raised at once."""
    calls = []

    def run(joblib, left, workers, elsewhere):
        calls.append([i for i, _ in left])
        for i, job in left:
            if i == 2 and len(calls) == 1:
                raise TerminatedWorkerError
            yield i, job()

    monkeypatch.setattr(jobs, "_run", run)
    assert jobs.in_parallel([functools.partial(abs, -i) for i in range(5)], 2) == [0, 1, 2, 3, 4]
    assert calls == [[0, 1, 2, 3, 4], [2, 3, 4]]
    with pytest.raises(ZeroDivisionError):
        jobs.in_parallel([functools.partial(divmod, 1, 0)] * 2, 2)


def test_a_search_goes_on_with_its_trials(tmp_path):
    """Three trials after two are the three trials of one search."""
    optuna = pytest.importorskip("optuna")
    first, second = tmp_path / "first.db", tmp_path / "second.db"
    searched(first, trials=2)
    searched(first, trials=3)
    searched(second, trials=3)
    values = [
        [
            t.params | {"value": t.value}
            for t in optuna.load_study(study_name="sparsebnn", storage=f"sqlite:///{one}").trials
        ]
        for one in (first, second)
    ]
    assert len(values[0]) == 3
    assert values[0][:2] == values[1][:2]  # the third was proposed knowing two, or none


def test_the_best_trial_is_compared_with_the_defaults(monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.setattr(tuning, "_scores", lambda m, x, y, f, given, w: [-len(one) - 1.0 for one in given])
    assert searched() == {}
    monkeypatch.setattr(
        tuning, "_scores", lambda m, x, y, f, given, w: [one.get("temperature", 0.0) for one in given]
    )
    found = searched(trials=3)
    assert set(found) == {"learning_rate", "temperature", "prior_inclusion"}


@pytest.fixture(scope="module")
def expected():
    return jobs.in_parallel(study(), 1), searched()


@pytest.mark.cluster
def test_loky(expected, tmp_path):
    log = str(tmp_path / "log")
    assert jobs.in_parallel(study(log), 2) == expected[0]
    # Beside its own job, that of the other process is lost, and one whose result was on its way.
    assert runs(log)[7] == 2
    assert runs(log).total() <= 23
    assert searched(workers=2) == expected[1]


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore")
def test_ray(expected, tmp_path):
    ray = pytest.importorskip("ray")
    joblib = pytest.importorskip("joblib")
    from ray.util.joblib import register_ray

    register_ray()
    # Workers import what tests define.
    tests = str(Path(__file__).parents[1])
    paths = {"PYTHONPATH": os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])}
    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": paths}, log_to_driver=False)
    try:
        with joblib.parallel_config(backend="ray", n_jobs=2):
            log = str(tmp_path / "log")
            assert jobs.in_parallel(study(log), 1) == expected[0]
            assert runs(log) == ONCE_OR_KILLED
            with pytest.raises(ZeroDivisionError):
                jobs.in_parallel([functools.partial(divmod, 1, 0)] * 2, 1)
            assert searched() == expected[1]
    finally:
        ray.shutdown()


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore")
def test_dask(expected, tmp_path):
    distributed = pytest.importorskip("distributed")
    joblib = pytest.importorskip("joblib")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster),
        joblib.parallel_config(backend="dask"),
    ):
        log = str(tmp_path / "log")
        assert jobs.in_parallel(study(log), 1) == expected[0]
        assert runs(log) == ONCE_OR_KILLED
        with pytest.raises(ZeroDivisionError):
            jobs.in_parallel([functools.partial(divmod, 1, 0)] * 2, 1)
        assert searched() == expected[1]
