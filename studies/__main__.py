"""``python -m studies``: run a study of the paper or of this project."""

from __future__ import annotations

import importlib
import sys

from sparsebnn.app.cli import one_line_errors
from sparsebnn.checks import check_choice
from studies import STUDIES


def main(argv: list[str]) -> None:
    """Run the study that the first argument names; the rest are its options."""
    if not argv or argv[0] in ("--help", "-h"):
        width = max(map(len, STUDIES))
        print("\n".join(f"{name:<{width}}  {shows}" for name, (_, shows) in STUDIES.items()))
        print("\nExample: python -m studies bound --quick (each study explains its options with --help)")
        return
    check_choice(argv[0], STUDIES, "study", "python -m studies")
    module, _, function = STUDIES[argv[0]][0].partition(":")
    status = getattr(importlib.import_module(f"studies.{module}"), function or "main")(argv[1:])
    if status:
        raise SystemExit(status)


if __name__ == "__main__":
    with one_line_errors():
        main(sys.argv[1:])
