"""Tensors and a JSON header in one safetensors file, written whole or not at all; no pickle.

Each :class:`Kind` of file names itself in its header, so a model is never taken for a checkpoint. A checksum
of header and tensors tells when a disk or a transfer has changed them. A file without one, or with a header
that could be read in two ways, is refused.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparsebnn.io.files import atomic_write

_PIECE = 1 << 22


class StorageError(RuntimeError):
    """A file that cannot be written or must not be used; the message says why."""


@dataclass(frozen=True)
class Kind:
    """What a file says it is, and how messages speak of it: a noun, and what to do when it fails."""

    noun: str
    version: int
    error: type[StorageError]
    if_missing: str
    if_damaged: str
    if_unwritable: str = "Free space or choose another folder, then save again."
    if_other_version: str = "Load it with the release that wrote it."

    @property
    def format(self) -> str:
        return f"sparsebnn-{self.noun}"


def _safetensors(noun: str) -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        plural = f"{noun.capitalize()}s"
        raise ImportError(f"{plural} need 'safetensors': pip install 'sparsebnn[save]'") from error
    return safetensors


def _complete(payload: bytes) -> tuple[bytes, memoryview]:
    """Head and body of a file: the checksum added, entries sorted (the library leaves that to chance)."""
    length = int.from_bytes(payload[:8], "little")
    head, body = json.loads(payload[8 : 8 + length]), memoryview(payload)[8 + length :]
    meta = head["__metadata__"]
    meta["checksum"] = f"{zlib.crc32(body, zlib.crc32(meta['json'].encode())):08x}"
    text = json.dumps(head, sort_keys=True, separators=(",", ":")).encode()
    # Tensors begin at a multiple of eight.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, body


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; json alone would keep the last of two values and drop the other."""
    counts = Counter(name for name, _ in pairs)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise ValueError(f"the key {twice[0]!r} occurs twice in its header")
    return dict(pairs)


def parse(text: str | bytes) -> Any:
    """JSON in which no object has a key twice."""
    return json.loads(text, object_pairs_hook=_unique)


def _header(path: Path, meta: dict[str, str]) -> dict[str, Any]:
    """The header, when it and the tensors are those that were written."""
    for entry, name in (("json", "header"), ("checksum", "checksum")):
        if entry not in meta:
            raise ValueError(f"it has no {name}")
    found = zlib.crc32(meta["json"].encode())
    with path.open("rb") as file:
        parse(file.read(int.from_bytes(file.read(8), "little")))
        while piece := file.read(_PIECE):
            found = zlib.crc32(piece, found)
    if f"{found:08x}" != meta["checksum"]:
        raise ValueError("its content does not match its checksum")
    header = parse(meta["json"])
    if not isinstance(header, dict):
        raise ValueError(f"its header is no JSON object but {json.dumps(header)[:40]}")
    return header


def write(kind: Kind, path: Path, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    """Replace ``path`` by a new file; if anything fails the old one stays as it was.

    The same tensors and header give the same bytes.
    """
    library = _safetensors(kind.noun)
    # The header is a string-to-string map, so the JSON is one entry of it.
    meta = {"format": kind.format, "version": str(kind.version), "json": json.dumps(header)}
    payload = library.torch.save(
        {name: t.detach().to("cpu").contiguous() for name, t in tensors.items()}, metadata=meta
    )
    try:
        with atomic_write(path, sync=True) as partial, partial.open("xb") as file:
            file.writelines(_complete(payload))
    except OSError as error:
        kept = f"; the previous {kind.noun} is intact" if path.exists() else ""
        raise kind.error(
            f"The {kind.noun} {path} could not be written ({error.strerror or error}){kept}. "
            f"{kind.if_unwritable}"
        ) from error


def read(kind: Kind, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header; refuses what is truncated, changed, ambiguous, foreign or of another version."""
    library = _safetensors(kind.noun)
    if not path.exists():
        raise kind.error(f"There is no {kind.noun} at {path}. {kind.if_missing}")
    try:
        with library.safe_open(str(path), framework="pt", device="cpu") as file:
            meta = file.metadata() or {}
            if meta.get("format") != kind.format:
                raise kind.error(f"{path} is not a sparsebnn {kind.noun} (format {meta.get('format')!r}).")
            if meta.get("version") != str(kind.version):
                raise kind.error(
                    f"{path} has {kind.noun} version {meta.get('version')}; "
                    f"this release reads {kind.version}. {kind.if_other_version}"
                )
            header = _header(path, meta)
            return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118
    except StorageError:
        raise
    except Exception as error:  # safetensors, JSON and the file system each have their own
        raise kind.error(f"{path} is damaged or truncated ({error}). {kind.if_damaged}") from error


def check(kind: Kind, target: dict[str, Tensor], stored: dict[str, Tensor], path: Path) -> None:
    """Complain unless ``stored`` and ``target`` hold the same names, shapes and types."""
    other = f"{path} belongs to another network"
    for name, tensor in target.items():
        if name not in stored:
            raise kind.error(f"{other}: it has no '{name}'.")
        if stored[name].shape != tensor.shape or stored[name].dtype != tensor.dtype:
            raise kind.error(
                f"{other}: '{name}' is {tuple(stored[name].shape)} {stored[name].dtype} there "
                f"and {tuple(tensor.shape)} {tensor.dtype} here."
            )
    extra = sorted(set(stored) - set(target))
    if extra:
        raise kind.error(f"{other}: '{extra[0]}' does not exist here.")


def restore(kind: Kind, target: dict[str, Tensor], stored: dict[str, Tensor], path: Path) -> None:
    """Copy stored tensors into ``target``, all of them or, where :func:`check` complains, none."""
    check(kind, target, stored, path)
    with torch.no_grad():
        for name, tensor in target.items():
            tensor.copy_(stored[name])
