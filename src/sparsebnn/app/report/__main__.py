"""``python -m sparsebnn.app.report run/``: the report without the command line's packages."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sparsebnn.app.report import write
from sparsebnn.checks import InvalidInput


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page and print where it is."""
    parser = argparse.ArgumentParser(
        prog="python -m sparsebnn.app.report", description="A run folder as one HTML page."
    )
    parser.add_argument("folder", type=Path, help="run folder, with its record.json")
    parser.add_argument("--out", type=Path, help="where the page goes (default: report.html in the folder)")
    given = parser.parse_args(argv)
    try:
        print(write(given.folder, given.out))
    except (InvalidInput, OSError, ImportError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
