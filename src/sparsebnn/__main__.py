"""``python -m sparsebnn`` is the ``sparsebnn`` command."""

from sparsebnn.cli import main

if __name__ == "__main__":
    main()
