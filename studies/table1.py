"""Table 1 of the paper: KMNIST, MNIST and FMNIST with the fully connected network 784-400-600-10."""

from __future__ import annotations

from collections.abc import Sequence

from studies import cell_command
from studies.program import run_as_program

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> None:
    """Train and evaluate what is missing of the table; each cell goes to its own file."""
    cell_command.main("table1", "fc", "Table 1 of the paper: fully connected networks.", argv)


if __name__ == "__main__":
    run_as_program(main)
