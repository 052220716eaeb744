"""``python -m sparsebnn`` is the ``sparsebnn`` command."""

from sparsebnn.app.cli import main

if __name__ == "__main__":
    main()
