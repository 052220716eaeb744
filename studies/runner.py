"""What all studies share: a command line, result files with provenance, and the tables of their pages.

A study is a frozen ``Spec``, a function from it to rows, and a ``main(argv)``. A small study writes its rows
in one piece, ``results/<name>/<name>.json`` (:meth:`Study.save`). A long one appends a line per replicate to
``results/<name>/rows.jsonl`` (:meth:`Study.append`) and, when it is run again, skips the rows it finds there.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import json
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from sparsebnn.app.jobs import in_parallel
from sparsebnn.app.provenance import commit_and_source, device_name, rounded, versions
from sparsebnn.checks import invalid
from sparsebnn.io.files import atomic_write

__all__ = [
    "Study",
    "append_rows",
    "arguments",
    "count",
    "fill_page",
    "filled",
    "in_parallel",
    "installed",
    "read_rows",
    "write_details",
    "write_json",
]

# Options that say where and how a study runs, not what it finds.
_NOT_IN_THE_COMMAND = ("help", "out", "runs", "device", "mode", "workers", "quiet")


def arguments(
    name: str,
    claim: str,
    argv: Sequence[str] | None = None,
    parents: Sequence[argparse.ArgumentParser] = (),
) -> argparse.Namespace:
    """Parse a study's command line: ``--out``, ``--quick``, ``--seed`` and the options of ``parents``.

    ``words`` of the result are the options that matter to the study's findings.

    >>> arguments("bound", "The bound is a bound.", ["--quick"]).words
    ['--quick']
    """
    prog = f"python -m studies {name}"
    parser = argparse.ArgumentParser(prog=prog, description=claim, parents=parents, allow_abbrev=False)
    parser.add_argument("--out", type=Path, help="folder for results/ and docs/ (default: here; quick: runs)")
    parser.add_argument("--quick", action="store_true", help="a small version, seconds instead of minutes")
    parser.add_argument("--seed", type=int, default=0, help="first seed of everything random (default 0)")
    given = parser.parse_args(argv)
    given.words = _command_words(parser, given)
    if given.out is None:
        # A quick run must not overwrite the results that the documentation quotes.
        given.out = Path("runs") if given.quick else Path(".")
    return given


def _command_words(parser: argparse.ArgumentParser, given: argparse.Namespace) -> list[str]:
    """The options that reproduce the result, without those at their defaults.

    A path is recorded by its option alone (``--data DATA``): it describes a machine, not a result.

    >>> parser = argparse.ArgumentParser()
    >>> _ = parser.add_argument("--rates", type=float, nargs="+")
    >>> _ = parser.add_argument("--data", type=Path)
    >>> _command_words(parser, parser.parse_args(["--data", "here", "--rates", "1", "2"]))
    ['--rates', '1.0', '2.0', '--data', 'DATA']
    """
    words: list[str] = []
    for action in parser._actions:
        value = getattr(given, action.dest, None)
        if action.dest in _NOT_IN_THE_COMMAND or value == action.default:
            continue
        option = max(action.option_strings, key=len)
        if isinstance(value, bool):
            words.append(option if value else option.replace("--", "--no-", 1))
        elif isinstance(value, Path):
            words += [option, action.dest.upper()]
        else:
            words += [option, *map(str, value if isinstance(value, list) else [value])]
    return words


def count(text: str) -> int:
    """Parse an option that counts something.

    >>> count("3")
    3
    """
    number = int(text) if text.strip().lstrip("+").isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 1. Got {text!r} instead.")
    return number


@dataclass
class Study:
    """One run of a study and its files; ``device`` is where it computes."""

    name: str
    given: argparse.Namespace
    device: torch.device = torch.device("cpu")
    began: float = field(default_factory=time.perf_counter)
    # Read at the start: the files may change while the study runs.
    commit: tuple[str | None, str | None] = field(default_factory=commit_and_source)

    @property
    def folder(self) -> Path:
        """The folder of the results."""
        return Path(self.given.out) / "results" / self.name

    @property
    def figure(self) -> Path:
        """The file of the figure."""
        path = Path(self.given.out) / "docs" / "images" / f"{self.name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def command(self) -> str:
        """The command that reproduces the result."""
        return shlex.join(["python", "-m", "studies", self.name, *self.given.words])

    def provenance(self, seeds: Sequence[int]) -> dict[str, Any]:
        """What made the rows: command, commit, versions, seeds, device, seconds."""
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

    def save(self, spec: Any, seeds: Sequence[int], /, stem: str | None = None, **content: Any) -> Path:
        """Write ``results/<name>/<stem>.json``: provenance, spec, and ``content``."""
        path = self.folder / f"{stem or self.name}.json"
        record = {"experiment": self.name, "provenance": self.provenance(seeds)}
        record |= {"spec": dataclasses.asdict(spec)} if spec is not None else {}
        write_json(path, rounded({**record, **content}))
        return path

    def append(self, rows: Iterable[Mapping[str, Any]], device: torch.device | None = None) -> None:
        """Append rows, each with its provenance, to ``results/<name>/rows.jsonl``."""
        made = {"command": self.command, "commit": self.commit[0], "versions": versions()}
        made["device"] = device_name(device or self.device)
        append_rows(self.folder / "rows.jsonl", [{**row, **made} for row in rows])


def installed(methods: Sequence[str], packages: Mapping[str, str]) -> list[str]:
    """The methods whose packages can be imported; the others are named and left out.

    >>> installed(["ours", "theirs"], {"theirs": "no_such_package"})
    theirs is left out: the package no_such_package is not installed.
    ['ours']
    """
    found = []
    for method in methods:
        package = packages.get(method)
        if package is None or importlib.util.find_spec(package) is not None:
            found.append(method)
        else:
            print(f"{method} is left out: the package {package} is not installed.")
    return found


def write_json(path: Path, content: Any) -> None:
    """Write a whole JSON file or nothing."""
    with atomic_write(path) as partial:
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def append_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append a line of JSON per row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cut_off = path.exists() and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write("\n" * cut_off + "".join(json.dumps(row) + "\n" for row in rows))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file; a line that was cut off by an interrupt is left out."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def filled(text: str, body: str, name: str = "tables", owner: str = "the page") -> str:
    """A page with ``body`` between ``<!-- name:begin -->`` and ``<!-- name:end -->``.

    >>> print(filled("above <!-- tables:begin --> old <!-- tables:end --> below", "new"))
    above <!-- tables:begin -->
    <BLANKLINE>
    new
    <BLANKLINE>
    <!-- tables:end --> below
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise invalid("page", "this command", f"one with one {begin} and, after it, one {end}", owner)
    before, rest = text.split(begin)
    body = body.strip("\n")
    return f"{before}{begin}\n\n{body}\n\n{end}{rest.split(end)[1]}"


def write_details(folder: Path, text: str) -> None:
    """Write ``tables.md`` in the results folder of a study: tables that its page only links to."""
    with atomic_write(folder / "tables.md") as partial:
        partial.write_text(text.strip("\n") + "\n", encoding="utf-8")


def fill_page(page: Path, body: str, name: str = "tables") -> None:
    """Renew the part of a page that :func:`filled` describes."""
    new = filled(page.read_text(encoding="utf-8"), body, name, str(page))
    with atomic_write(page) as partial:
        partial.write_text(new, encoding="utf-8")
