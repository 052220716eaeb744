"""The CIFAR study on made-up images: decoding, corruptions, and all methods end to end."""

import io
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from studies.cifar import command, images

Image = pytest.importorskip("PIL.Image")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Smooth images in the file's format, and their pixels as Pillow decodes them."""
    g = np.random.RandomState(0)
    content, pixels = {}, {}
    for split, rows in (("train", 48), ("test", 16)):
        scans, ends, decoded = [], [], []
        for _ in range(rows):
            small = Image.fromarray(g.randint(0, 255, (4, 4, 3)).astype(np.uint8)).resize((32, 32))
            file = io.BytesIO()
            small.save(file, "JPEG", quality=75)
            jpeg = file.getvalue()
            cut = jpeg.index(b"\xff\xda") + 14  # up to the end of the start-of-scan header
            content["header"] = np.frombuffer(jpeg[:cut], np.uint8)
            scans.append(np.frombuffer(jpeg[cut:], np.uint8))
            ends.append(len(scans[-1]) + (ends[-1] if ends else 0))
            decoded.append(np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB")))
        content |= {f"scan_{split}": np.concatenate(scans), f"end_{split}": np.array(ends)}
        content[f"y_{split}"] = g.randint(0, 10, rows).astype(np.uint8)
        pixels[split] = np.stack(decoded)
    path = tmp_path_factory.mktemp("cifar") / "images.npz"
    np.savez(path, **content)
    return path, pixels


def test_images_are_decoded(made):
    path, pixels = made
    x, y = images.load(path, "train", 10)
    np.testing.assert_array_equal(x.permute(0, 2, 3, 1).numpy(), pixels["train"][:10])
    assert x.dtype == torch.uint8
    assert len(y) == 10


def test_corruptions_change_what_they_say():
    x = torch.rand(2, 3, 32, 32)
    blurred = images.corrupted(x, "blur")
    torch.testing.assert_close(blurred[0, 0, 5, 6], x[0, 0, 4:7, 5:8].mean())
    flat = images.corrupted(x, "contrast")
    torch.testing.assert_close(flat.std(), x.std() / 3, rtol=0.02, atol=0)
    noisy = images.corrupted(x, "noise")
    assert not torch.equal(noisy, x)
    assert torch.equal(noisy, images.corrupted(x, "noise"))


@pytest.mark.slow
def test_all_methods(made, tmp_path):
    """One row each; what is done is not done again, and the page shows it."""
    options = ["--quick", "--data", str(made[0]), "--out", str(tmp_path), "--device", "cpu"]
    shown = tmp_path / "docs" / "studies" / "cifar.md"
    shown.parent.mkdir(parents=True)
    shown.write_text((ROOT / "docs" / "studies" / "cifar.md").read_text(encoding="utf-8"))
    for _ in range(2):
        command.main(options)
    rows = command.read_rows(tmp_path / "results" / "cifar" / "rows.jsonl")
    methods = ["plain", "pruned", "lrt from plain", "dense", "lrt, free", "lrt"]
    assert [row["method"] for row in rows] == methods
    for row in rows:
        assert all(np.isfinite(row[name]) for name in ("nll", "ece", "nll_noise", "seconds_per_epoch"))
        assert f"{row['nll']:.3f}" in shown.read_text()
    assert [row["density"] for row in rows if row["target"]] == pytest.approx([0.5, 0.5, 0.5], abs=0.02)


def test_validation_rows_are_training_rows_that_are_left_out():
    x = torch.arange(20)
    (rest, _), (out, labels) = command.held_out(x, x, 5)
    assert len(out) == 5
    assert sorted([*rest.tolist(), *out.tolist()]) == list(range(20))
    assert torch.equal(labels, command.held_out(x, x, 5)[1][0])


def test_a_training_that_would_end_too_late_is_not_started():
    bench = command.Bench(command.QUICK, None, None, "cpu", "eager", until=time.monotonic() + 60.0)
    run = object()
    assert bench.timed("plain", lambda: run) is run
    bench.spent["plain"] = 3600.0
    with pytest.raises(TimeoutError):
        bench.timed("plain", lambda: run)
