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
    return str(error.value)


def test_there_and_back(written):
    tensors, header = checkpoint.read(written)
    assert header == HEADER
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(t, TENSORS[n]) and t.dtype == TENSORS[n].dtype for n, t in tensors.items())
    assert os.listdir(written.parent) == [written.name]


def test_no_such_file(path):
    assert refusal(path) == f"There is no checkpoint at {path}. Start without resume."


@pytest.mark.parametrize("kept", [0, 4, 30, -1])
def test_a_truncated_file(written, kept):
    written.write_bytes(written.read_bytes()[:kept])
    message = refusal(written)
    assert message.startswith(f"{written} is damaged or truncated (")
    assert message.endswith("). Use an earlier checkpoint.")


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


@pytest.mark.parametrize("place", [-1, -9, -20])
def test_a_changed_tensor_does_not_match_its_checksum(written, place):
    changed = bytearray(written.read_bytes())
    changed[place] ^= 64
    written.write_bytes(changed)
    why = "its content does not match its checksum"
    assert refusal(written) == f"{written} is damaged or truncated ({why}). Use an earlier checkpoint."


@pytest.mark.parametrize("missing", ["checksum", "json"])
def test_a_file_without_checksum_or_header(written, missing):
    with safetensors.safe_open(str(written), framework="pt") as file:
        meta = file.metadata()
    del meta[missing]
    safetensors.torch.save_file(TENSORS, written, metadata=meta)
    why = "it has no checksum" if missing == "checksum" else "it has no header"
    assert refusal(written) == f"{written} is damaged or truncated ({why}). Use an earlier checkpoint."


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
    why = f"the key {key!r} occurs twice in its header"
    assert refusal(written) == f"{written} is damaged or truncated ({why}). Use an earlier checkpoint."


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
    meta = {"format": "sparsebnn-checkpoint", "version": str(checkpoint.KIND.version), "json": text}
    meta["checksum"] = f"{zlib.crc32(body, zlib.crc32(text.encode())):08x}"
    safetensors.torch.save_file(TENSORS, path, metadata=meta)
    assert refusal(path) == f"{path} is damaged or truncated ({why}). Use an earlier checkpoint."


def test_a_checkpoint_may_hold_nan(path):
    """That of a replicate that stopped."""
    checkpoint.write(path, {"a": torch.tensor([float("nan")])}, {})
    assert checkpoint.read(path)[0]["a"].isnan().all()


def test_random_bytes(path):
    path.write_bytes(bytes(range(256)) * 20)
    message = refusal(path)
    assert message.startswith(f"{path} is damaged or truncated (")


def test_a_pickle_is_never_loaded(path):
    """Not even one that is harmless: unpickling it would leave a trace."""
    trace = path.with_name("trace")
    path.write_bytes(pickle.dumps(_Bomb(str(trace))))
    assert refusal(path).startswith(f"{path} is damaged or truncated (")
    torch.save({"a": torch.ones(2)}, path)
    assert refusal(path).startswith(f"{path} is damaged or truncated (")
    assert not trace.exists()


class _Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_foreign_tensors(path):
    safetensors.torch.save_file(TENSORS, path)
    assert refusal(path) == f"{path} is not a sparsebnn checkpoint (format None)."
    safetensors.torch.save_file(TENSORS, path, metadata={"format": "pt"})
    assert refusal(path) == f"{path} is not a sparsebnn checkpoint (format 'pt')."


def test_another_version(path):
    meta = {"format": "sparsebnn-checkpoint", "version": "99", "json": json.dumps(HEADER)}
    safetensors.torch.save_file(TENSORS, path, metadata=meta)
    assert refusal(path) == (
        f"{path} has checkpoint version 99; this release reads {checkpoint.KIND.version}. "
        "Resume it with the release that wrote it."
    )


def test_a_header_that_is_no_json(path):
    version = str(checkpoint.KIND.version)
    meta = {"format": "sparsebnn-checkpoint", "version": version, "json": "{"}
    safetensors.torch.save_file(TENSORS, path, metadata=meta)
    assert refusal(path).startswith(f"{path} is damaged or truncated (")


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_when_the_disk_is_full_the_previous_one_stays(written, monkeypatch, fails):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, fails, full)
        with pytest.raises(CheckpointError) as error:
            checkpoint.write(written, {"a": torch.zeros(2, 3)}, {})
    assert str(error.value) == (
        f"The checkpoint {written} could not be written (No space left on device); "
        "the previous checkpoint is intact. Free disk space, or check the folder's permissions."
    )
    assert torch.equal(checkpoint.read(written)[0]["a"], TENSORS["a"])
    assert os.listdir(written.parent) == [written.name]


def test_when_the_disk_is_full_from_the_start(path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError) as error:
        checkpoint.write(path, TENSORS, HEADER)
    assert str(error.value) == (
        f"The checkpoint {path} could not be written (No space left on device). "
        "Free disk space, or check the folder's permissions."
    )
    assert os.listdir(path.parent) == []


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({"a": torch.zeros(2, 3), "c": torch.zeros(1)}, "it has no 'c'."),
        ({"a": torch.zeros(2, 3)}, "'b' does not exist here."),
        (
            {"a": torch.zeros(3, 3), "b": TENSORS["b"].clone()},
            "'a' is (2, 3) torch.float32 there and (3, 3) torch.float32 here.",
        ),
        (
            {"a": torch.zeros(2, 3).double(), "b": TENSORS["b"].clone()},
            "'a' is (2, 3) torch.float32 there and (2, 3) torch.float64 here.",
        ),
    ],
)
def test_restoring_into_another_network(path, target, message):
    """Refused before anything is copied."""
    before = {n: t.clone() for n, t in target.items()}
    with pytest.raises(CheckpointError) as error:
        checkpoint.restore(target, TENSORS, path)
    assert str(error.value) == f"{path} belongs to another network: {message}"
    assert all(torch.equal(t, before[n]) for n, t in target.items())
