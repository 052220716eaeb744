"""Where a number comes from: every result file carries the command, commit, versions, seeds and seconds.

A study is a module of this package with a frozen ``Spec`` and rows; these few functions are what the
studies share: their command line, their result file, their picture.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sparsebnn
from sparsebnn.checks import InvalidInput, invalid

__all__ = [
    "COLOURS",
    "Study",
    "arguments",
    "check_replaceable",
    "check_same",
    "command_words",
    "commit",
    "commit_and_source",
    "device_name",
    "rounded",
    "versions",
    "write_json",
]

# Okabe and Ito's palette, told apart by every kind of colour vision.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000", "#F0E442")

# Options that say where and how a study runs, not what it finds.
_NOT_IN_THE_COMMAND = ("out", "runs", "device", "workers", "gpu_lock", "quiet", "force")


def arguments(
    name: str,
    claim: str,
    argv: Sequence[str] | None = None,
    parents: Sequence[argparse.ArgumentParser] = (),
) -> argparse.Namespace:
    """The command line of a study: ``--out``, ``--quick``, ``--seed``, ``--force``, and what ``parents`` add.

    ``words`` of what is returned are the options given, for the study's result file.

    >>> arguments("bound", "The bound is a bound.", ["--quick"]).seed
    0
    """
    prog = f"python -m sparsebnn.experiments.{name}"
    parser = argparse.ArgumentParser(prog=prog, description=claim, parents=list(parents))
    parser.add_argument("--out", type=Path, help="folder that receives results/ and docs/images/")
    parser.add_argument("--quick", action="store_true", help="a small version, seconds instead of minutes")
    parser.add_argument("--seed", type=int, default=0, help="first seed of everything random (default 0)")
    parser.add_argument("--force", action="store_true", help="replace a result file of other settings")
    given = parser.parse_args(argv)
    given.words = command_words(parser, given)
    if given.out is None:
        # A rehearsal must not overwrite the results that the documentation quotes.
        given.out = Path("runs") if given.quick else Path(".")
    return given


def command_words(parser: argparse.ArgumentParser, given: argparse.Namespace) -> list[str]:
    """The options that make the same result again, those at their defaults left out.

    Of a file or folder only its option is named (``--data DATA``): its path says something about a
    machine, not about a result.

    >>> parser = argparse.ArgumentParser()
    >>> _ = parser.add_argument("--rates", type=float, nargs="+")
    >>> _ = parser.add_argument("--data", type=Path)
    >>> command_words(parser, parser.parse_args(["--data", "here", "--rates", "1", "2"]))
    ['--rates', '1.0', '2.0', '--data', 'DATA']
    """
    words: list[str] = []
    for action in parser._actions:
        value = getattr(given, action.dest, None)
        if action.dest in ("help", *_NOT_IN_THE_COMMAND) or value == action.default:
            continue
        option = max(action.option_strings, key=len)
        if isinstance(value, bool):
            words.append(option if value else option.replace("--", "--no-", 1))
        elif isinstance(value, Path):
            words += [option, action.dest.upper()]
        else:
            words += [option, *map(str, value if isinstance(value, list) else [value])]
    return words


def _package() -> Path:
    return Path(sparsebnn.__file__).resolve().parent


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=_package(), capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _is_checkout() -> bool:
    """Whether the package runs from a git checkout of this project.

    A package installed into the environment of another project may lie inside that project's repository,
    whose commits say nothing about the package.
    """
    top = _git("rev-parse", "--show-toplevel")
    if not top or Path(top).resolve() / "src" / "sparsebnn" != _package():
        return False
    project = Path(top) / "pyproject.toml"
    return project.is_file() and 'name = "sparsebnn"' in project.read_text(encoding="utf-8").splitlines()


def commit_and_source() -> tuple[str | None, str | None]:
    """The commit the package stands at, ``+changes`` if its files differ from it, and who says so.

    Only a git checkout of this project has a commit. Elsewhere, as on a machine that received only the
    files, ``SPARSEBNN_COMMIT`` may name it; ``versions`` has the version of the package in any case.
    """
    head = _git("rev-parse", "HEAD") if _is_checkout() else None
    if head is not None:
        # The package alone: results that a study has just written do not change what made them.
        return (f"{head}+changes" if _git("status", "--porcelain", "--", str(_package())) else head), "git"
    told = os.environ.get("SPARSEBNN_COMMIT")
    return (told, "SPARSEBNN_COMMIT") if told else (None, None)


def commit() -> str | None:
    """The commit the package stands at, as far as it is known."""
    return commit_and_source()[0]


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    return {
        "sparsebnn": sparsebnn.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def device_name(device: torch.device) -> str:
    """What a device is called by its maker; of a CPU, its kind and how many threads are used."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({platform.machine()}, {torch.get_num_threads()} threads)"


def rounded(value: Any, digits: int = 6) -> Any:
    """Numbers to ``digits`` significant digits, through lists and mappings; NaN becomes None.

    >>> rounded({"a": [1.23456789, float("nan")]}, digits=3)
    {'a': [1.23, None]}
    """
    if isinstance(value, Mapping):
        return {key: rounded(entry, digits) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(entry, digits) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if np.isfinite(value) else None
    return value


def write_json(path: Path, content: Any) -> None:
    """Write all of it or nothing: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two processes may write the same file: each writes beside it under a name of its own.
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, path)


def check_same(path: Path, there: Any, asked: Any) -> None:
    """Complain when a result file is not of what is asked for: it must not be replaced without a word."""
    there, asked = (json.loads(json.dumps(each)) for each in (there, asked))
    found = _difference(there, asked)
    if found:
        advice = "Give another --out, or --force to run it again and replace the file."
        raise invalid(str(path), "the command", "a result of the settings asked for", found, advice)


def _difference(there: Any, asked: Any, name: str = "") -> str:
    """The first place where two records differ, in words; nothing if they do not."""
    if isinstance(there, dict) and isinstance(asked, dict):
        for key in dict.fromkeys([*asked, *there]):
            own, other = there.get(key, "nothing"), asked.get(key, "nothing")
            found = _difference(own, other, f"{name}.{key}".strip("."))
            if found:
                return found
        return ""
    return "" if there == asked else f"{name} {there} where {asked} is asked for"


def check_replaceable(path: Path, asked: Mapping[str, Any], given: argparse.Namespace) -> None:
    """Complain, before any work, of a result file that this run must not replace.

    ``asked`` are entries of the record to come that say what is asked for (its ``command`` among them,
    wherever it stands). A file whose entries differ takes ``--force``; a rehearsal (``--quick``) never
    replaces a result in full.
    """
    if not path.exists():
        return
    try:
        there = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidInput(f"{path} is not a result file ({error}). Remove it and run again.") from error
    command = str(there.get("provenance", there).get("command"))
    if given.quick and "--quick" not in command.split():
        advice = "Give another --out, or leave --quick out."
        raise invalid(str(path), "the command", "a result of --quick too", f"one of {command!r}", advice)
    if not given.force:
        there = {**there, "command": command}
        check_same(path, {name: there.get(name, "nothing") for name in asked}, rounded(asked))


@dataclass
class Study:
    """One run of a study, from its start to its files; ``device`` is where it computes."""

    name: str
    given: argparse.Namespace
    device: torch.device = torch.device("cpu")
    began: float = field(default_factory=time.perf_counter)
    # Now, not at the end: the code that runs is the code that is there at the start.
    commit: tuple[str | None, str | None] = field(default_factory=commit_and_source)
    checked: bool = False

    @property
    def path(self) -> Path:
        """Where the results go."""
        return Path(self.given.out) / "results" / self.name / f"{self.name}.json"

    def check(self, spec: Any) -> None:
        """Complain, before any work, when :meth:`save` would replace a result that it must not."""
        check_replaceable(self.path, {"spec": dataclasses.asdict(spec)}, self.given)
        self.checked = True

    @property
    def figure(self) -> Path:
        """Where the picture goes."""
        path = Path(self.given.out) / "docs" / "images" / f"{self.name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def command(self) -> str:
        """What was typed, less what does not matter to the result."""
        return " ".join(["python", "-m", f"sparsebnn.experiments.{self.name}", *self.given.words])

    def provenance(self, seeds: Sequence[int]) -> dict[str, Any]:
        """What made the rows: the command with its options, the commit, versions, seeds, device, seconds."""
        known, source = self.commit
        return {
            "command": self.command,
            "commit": known,
            "commit_source": source,
            "versions": versions(),
            "seeds": list(seeds),
            "device": device_name(self.device),
            "threads": torch.get_num_threads(),
            "seconds": round(time.perf_counter() - self.began, 1),
        }

    def save(self, spec: Any, seeds: Sequence[int], **content: Any) -> Path:
        """Write ``results/<name>/<name>.json``: provenance, spec, and what the study found.

        A study says before its work what it is about to do (:meth:`check`). One that has not, and finds a
        result there that it must not replace, leaves its own beside it.
        """
        record = {
            "experiment": self.name,
            "provenance": self.provenance(seeds),
            "spec": dataclasses.asdict(spec),
            **content,
        }
        if not self.checked:
            try:
                self.check(spec)
            except InvalidInput as error:
                beside = self.path.with_name(f"{self.name}.new.json")
                write_json(beside, rounded(record))
                raise InvalidInput(f"{error} What was found now is in {beside}.") from error
        write_json(self.path, rounded(record))
        return self.path
