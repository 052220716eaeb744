"""``python -m sparsebnn`` is the ``sparsebnn`` command; torchrun can start several processes of it."""

import sys

from sparsebnn.app.cli import main, one_line_errors
from sparsebnn.app.jobs import grouped

if __name__ == "__main__":
    with one_line_errors(), grouped(sys.argv[1:]) as words:
        sys.argv[1:] = words
        main()
