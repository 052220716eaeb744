"""Table 2 of the paper: KMNIST, MNIST and FMNIST with the LeNet-5 of 32 and 48 filters."""

from __future__ import annotations

from collections.abc import Sequence

from studies import cell_command
from studies.program import run_as_program

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> None:
    """Train and evaluate what is missing of the table; each cell goes to its own file."""
    cell_command.main("table2", "lenet", "Table 2 of the paper: convolutional networks.", argv)


if __name__ == "__main__":
    run_as_program(main)
