"""checkpoint.py: written whole or not at all; what is damaged or foreign is refused with its reason."""

import errno
import json
import os
import pickle
import zlib

import pytest
import safetensors.torch
import torch

from sparsebnn.training import CheckpointError, checkpoint

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(7, dtype=torch.int64)}
HEADER = {"epoch": 3, "history": [{"loss": [1.5, 2.5]}], "note": "ä"}
META = {"format": "sparsebnn-checkpoint", "version": str(checkpoint.KIND.version), "json": json.dumps(HEADER)}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checkpoint.safetensors"


@pytest.fixture
def written(path):
    checkpoint.write(path, TENSORS, HEADER)
    return path


def refusal(path):
    with pytest.raises(CheckpointError) as error:
        checkpoint.read(path)
    assert str(path) in str(error.value)
    return str(error.value)


def test_there_and_back(written):
    tensors, header = checkpoint.read(written)
    assert header == HEADER
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(t, TENSORS[n]) and t.dtype == TENSORS[n].dtype for n, t in tensors.items())
    assert os.listdir(written.parent) == [written.name]


def test_a_changed_bit_is_noticed_wherever_it_matters(written):
    """Any byte of the file: it is refused now, or when it is put in place, or nothing of it is lost."""
    whole = written.read_bytes()
    refused = 0
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1
        written.write_bytes(changed)
        target = {name: torch.zeros_like(tensor) for name, tensor in TENSORS.items()}
        try:
            tensors, header = checkpoint.read(written)
            checkpoint.restore(target, tensors, written)
        except CheckpointError:
            refused += 1
            continue
        assert header == HEADER
        assert all(torch.equal(tensor, TENSORS[name]) for name, tensor in target.items())
    # Blanks between parts may be changed.
    assert refused > len(whole) - 16


def with_header(path, old, new):
    """The file with some of its outer header replaced; tensors and checksum stay."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    head = content[8 : 8 + length].decode()
    assert head.count(old) == 1
    head = head.replace(old, new).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + content[8 + length :])


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('"version":', '"version":"0","version":', "version"),
        ('"a":{', '"a":{"dtype":"F32","shape":[6],"data_offsets":[0,24]},"a":{', "a"),
    ],
)
def test_a_key_that_occurs_twice_around_the_tensors(written, old, new, key):
    """safetensors would keep the last; who reads the first would see another file."""
    with_header(written, old, new)
    assert f"the key {key!r} occurs twice in its header" in refusal(written)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"step": 1, "step": 2}', "the key 'step' occurs twice in its header"),
        ('{"a": [{"b": 1, "b": 1}]}', "the key 'b' occurs twice in its header"),
        ("null", "its header is no JSON object but null"),
        ("[1]", "its header is no JSON object but [1]"),
    ],
)
def test_headers_that_are_ambiguous_or_no_object(path, text, why):
    payload = safetensors.torch.save(TENSORS)
    body = payload[8 + int.from_bytes(payload[:8], "little") :]
    checksum = f"{zlib.crc32(body, zlib.crc32(text.encode())):08x}"
    safetensors.torch.save_file(TENSORS, path, metadata={**META, "json": text, "checksum": checksum})
    assert why in refusal(path)


def test_a_checkpoint_may_hold_nan(path):
    """That of a replicate that stopped."""
    checkpoint.write(path, {"a": torch.tensor([float("nan")])}, {})
    assert checkpoint.read(path)[0]["a"].isnan().all()


def test_a_pickle_is_never_loaded(path):
    """Not even one that is harmless: unpickling it would leave a trace."""
    trace = path.with_name("trace")
    path.write_bytes(pickle.dumps(_Bomb(str(trace))))
    assert "damaged or truncated (" in refusal(path)
    torch.save({"a": torch.ones(2)}, path)
    assert "damaged or truncated (" in refusal(path)
    assert not trace.exists()


class _Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


@pytest.mark.parametrize("fails", ["write", "fsync", "replace"])
@pytest.mark.parametrize("first", [True, False])
def test_when_the_disk_is_full_the_previous_one_stays(path, monkeypatch, fails, first):
    """A write that ends in the middle, or a step after it that fails, leaves no partial file."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if not first:
        checkpoint.write(path, TENSORS, HEADER)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        if fails == "write":
            resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))
        else:
            patch.setattr(os, fails, full)
        try:
            with pytest.raises(CheckpointError, match=r"could not be written \((No space|File too)") as error:
                checkpoint.write(path, {"a": torch.zeros(200, 300)}, {})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert ("the previous checkpoint is intact" in str(error.value)) == (not first)
    assert os.listdir(path.parent) == ([] if first else [path.name])
    if not first:
        assert torch.equal(checkpoint.read(path)[0]["a"], TENSORS["a"])


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({"a": torch.zeros(2, 3), "c": torch.zeros(1)}, "it has no 'c'"),
        ({"a": torch.zeros(2, 3)}, "'b' does not exist here"),
        ({"a": torch.zeros(3, 3), "b": TENSORS["b"].clone()}, "'a' is (2, 3) torch.float32 there"),
        ({"a": torch.zeros(2, 3).double(), "b": TENSORS["b"].clone()}, "(2, 3) torch.float64 here"),
    ],
)
def test_restoring_into_another_network(path, target, message):
    """Refused before anything is copied."""
    before = {n: t.clone() for n, t in target.items()}
    with pytest.raises(CheckpointError) as error:
        checkpoint.restore(target, TENSORS, path)
    assert f"{path} belongs to another network: " in str(error.value)
    assert message in str(error.value)
    assert all(torch.equal(t, before[n]) for n, t in target.items())


@pytest.mark.parametrize(
    ("meta", "why"),
    [
        (None, "not a sparsebnn checkpoint (format None)"),
        ({"format": "pt"}, "not a sparsebnn checkpoint (format 'pt')"),
        ({**META, "version": "99"}, "checkpoint version 99; this release reads"),
        (META, "damaged or truncated (it has no checksum"),
        ({**META, "json": "{", "checksum": "0"}, "damaged or truncated ("),
        ({k: v for k, v in META.items() if k != "json"}, "damaged or truncated (it has no header"),
    ],
)
def test_foreign_metadata(path, meta, why):
    safetensors.torch.save_file(TENSORS, path, metadata=meta)
    assert why in refusal(path)


@pytest.mark.parametrize(
    "content", [b"", bytes(range(256)) * 20, *(lambda whole, n=n: whole[:n] for n in (4, 30, -1))]
)
def test_bytes_that_are_no_checkpoint(written, content):
    written.write_bytes(content(written.read_bytes()) if callable(content) else content)
    assert "damaged or truncated (" in refusal(written)
    written.unlink()
    assert "There is no checkpoint at" in refusal(written)
