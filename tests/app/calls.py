"""Run ``sparsebnn`` commands in the process, on small files."""

import csv

import numpy as np
from typer.testing import CliRunner

from sparsebnn.app import cli


def call(*words, **options):
    return CliRunner().invoke(cli._app(), [str(word) for word in words], **options)


def refused(done, *fragments):
    """Status 1 and one line on standard error that contains the fragments."""
    assert done.exit_code == 1, done.output
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert all(fragment in done.stderr for fragment in fragments), done.stderr


def write(path, header, rows, delimiter=","):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows([header, *rows])
    return path


def numbers(rows=60, seed=0):
    return np.random.RandomState(seed).randn(rows).round(3)
