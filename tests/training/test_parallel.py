"""Several processes give what one gives, up to rounding; a run survives the loss of a process."""

import pytest
import torch

from sparsebnn.checks import InvalidInput
from sparsebnn.kernels import training as kernels
from sparsebnn.random import noise
from sparsebnn.random.noise import (
    NoisePart,
    logistics,
    normals,
    part_of_logistics,
    part_of_normals,
    seed_tensor,
)
from training import processes
from training.runs import TOLERANCE, Settings, distance, fit, make_data, same


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    return folder, processes.together("small", 2, folder)


def close(ours, other, tolerance=1e-10):
    assert distance(ours["parameters"], other["parameters"]) < tolerance
    torch.testing.assert_close(ours["loss"], other["loss"], rtol=tolerance, atol=0)


def test_two_processes_give_the_result_of_one(two):
    """All families; 15 rows do not divide evenly, and the last batch of an epoch is filled up."""
    _, (first, second) = two
    alone = processes.families(8, torch.float64, (2,))
    for name, expected in alone.items():
        close(first[name], expected)
        assert same(first[name]["parameters"], second[name]["parameters"]), name


@pytest.mark.skipif(not kernels.available(), reason="no C compiler")
def test_compiled_loops(two):
    _, (first, second) = two
    alone = processes.fused_runs()
    for name, found in first["fused"].items():
        assert found["mode"] == second["fused"][name]["mode"] == "fused"
        close(found, alone["1 1" if name == "1 1" else "2 1"], 1e-5)  # a batch in one go, in one process
        assert same(found["parameters"], second["fused"][name]["parameters"])
    close(alone["2 2"], alone["2 1"], 1e-5)


def test_images_weights_and_a_target_density(two):
    """Modules that start with other values in each process start with those of the first."""
    _, (first, second) = two
    close(first["image"], processes.results(processes.image_run()))
    assert same(first["image"]["parameters"], second["image"]["parameters"])


def test_one_process_finishes_what_two_began(two):
    """The checkpoint says nothing of the number of processes."""
    folder, (first, _) = two
    resumed = processes.image_run(folder=folder / "image", resume=True)
    assert same(processes.results(resumed)["parameters"], first["image"]["parameters"])
    assert len(resumed.history) == 10


def test_replicates_are_shared_out(two):
    _, answers = two
    x, y = make_data(rows=processes.ROWS)
    options = {"replicates": [5, 2, 9], "per_replicate": {"temperature": [1.0, 0.5, 0.2]}}
    whole = fit(processes.smooth("flow", torch.float64), (x, y), Settings(2, 15), **options)
    assert [seed for one in answers for seed in one["replicates"]["seeds"]] == [5, 2, 9]
    for name, stacked in processes.parameters(whole).items():
        parts = [one["replicates"]["parameters"][name] for one in answers]
        torch.testing.assert_close(torch.cat(parts), stacked, rtol=1e-12, atol=1e-12)


def test_what_cannot_be_shared_is_refused_in_every_process(two):
    _, answers = two
    for answer in answers:
        rows_elsewhere, other_settings, too_few_rows, compiled, cox, sharded = answer["refused"]
        assert "'network' of train" in rows_elsewhere
        assert "'processes' of train" in other_settings
        assert "settings" in other_settings
        assert "'batch_size' of train" in too_few_rows
        assert "'mode' of train" in compiled
        assert "'likelihood' of train" in cox
        assert "FSDP2" in sharded


def test_a_group_can_be_ignored(two):
    _, (first, second) = two
    x, y = make_data(rows=processes.ROWS)
    expected = fit(processes.smooth("gaussian", torch.float64), (x, y), Settings(1, 15))
    for answer in (first, second):
        assert same(answer["alone"]["parameters"], processes.parameters(expected))


def test_parallel_needs_a_group():
    x, y = make_data(rows=8)
    for parallel in ("rows", "sideways"):
        with pytest.raises(InvalidInput, match="parallel"):
            fit(processes.smooth("gaussian", torch.float64), (x, y), parallel=parallel)


@pytest.mark.parametrize("count", [11, 12])
def test_part_of_a_block(count):
    """The same numbers, bit for bit, without the rest of the block."""
    places = torch.tensor([0, 2, 5, 6, 7, 10])
    part, seeds = NoisePart.of(places, count), seed_tensor([3, 4])
    for dtype in (torch.float32, torch.float64):
        for some, whole in ((part_of_normals, normals), (part_of_logistics, logistics)):
            assert torch.equal(some(seeds, 1, 9, part, dtype), whole(seeds, 1, 9, count, dtype)[:, places])
    if kernels.available():
        some, whole = part_of_normals(seeds, 1, 9, part, fused=True), normals(seeds, 1, 9, count, fused=True)
        assert torch.equal(some, whole[:, places])


def test_long_blocks_are_made_in_chunks(monkeypatch):
    """The same numbers, whatever the length of a chunk."""
    part, seeds = NoisePart.of(torch.arange(3, 95, 2), 99), seed_tensor([3, 4])
    made = []
    for chunk in (8, 1 << 17):
        monkeypatch.setattr(noise, "_CHUNK", chunk)
        made.append((normals(seeds, 1, 9, 99), part_of_normals(seeds, 1, 9, part)))
    assert torch.equal(made[0][0], made[1][0])
    assert torch.equal(made[0][1], made[1][1])


# --- in minutes -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_200_steps(count, tmp_path):
    """Losses and parameters at the tolerance of the precision; the same bits in every process."""
    answers = processes.together("long", count, tmp_path)
    for dtype in (torch.float64, torch.float32):
        for name, expected in processes.families(200, dtype, (1, 2) if count == 2 else (2,)).items():
            found = answers[0][str(dtype)][name]
            torch.testing.assert_close(found["loss"], expected["loss"], rtol=TOLERANCE[dtype], atol=0)
            apart = distance(found["parameters"], expected["parameters"])
            print(f"{count} processes, {dtype}, {name}: {apart:.1e}")
            assert apart < TOLERANCE[dtype]
            assert all(same(one[str(dtype)][name]["parameters"], found["parameters"]) for one in answers)


@pytest.mark.slow
def test_a_process_dies_and_the_run_goes_on(tmp_path):
    """Three of four stop with a message; two processes, and one, finish from the same checkpoint."""
    answers = processes.together("dies", 4, tmp_path, dead=(3,))
    for answer in answers[:3]:
        assert "another process ended or did not answer" in answer["message"]
        assert "resume=True" in answer["message"]
        assert answer["epochs"] == 7
    whole = processes.together("resumes", 4, tmp_path / "whole")[0]  # nothing to resume: never interrupted
    saved = (tmp_path / "run" / "checkpoint.safetensors").read_bytes()
    again = processes.together("resumes", 4, tmp_path)[0]
    assert same(again["parameters"], whole["parameters"])
    for count in (2, 1):
        folder = tmp_path / f"on-{count}"
        (folder / "run").mkdir(parents=True)
        (folder / "run" / "checkpoint.safetensors").write_bytes(saved)
        close(processes.together("resumes", count, folder)[0], whole)


@pytest.mark.slow
def test_an_interrupt_of_one_process_stops_all_at_the_same_step(tmp_path):
    answers = processes.together("interrupted", 3, tmp_path)
    assert {answer["step"] for answer in answers} == {21}
    assert all(same(answer["parameters"], answers[0]["parameters"]) for answer in answers)
    assert "Saved to" in answers[0]["message"]
    resumed = processes.together("resumes", 3, tmp_path)[0]
    whole = processes.together("resumes", 3, tmp_path / "whole")[0]
    assert same(resumed["parameters"], whole["parameters"])
