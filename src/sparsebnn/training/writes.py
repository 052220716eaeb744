"""Writes that may fail: a full disk is a warning, never the end of a training run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from sparsebnn.io.storage import StorageError

__all__ = ["RETRY_SECONDS", "Writes"]

_log = logging.getLogger("sparsebnn")
# A write that failed is not tried again before: at every step it would cost more than the training.
RETRY_SECONDS = 10.0


class Writes:
    """Tries to write; logs every cause of failure once, and says when to try again."""

    def __init__(self, errors: tuple[type[Exception], ...] = (OSError, StorageError, MemoryError)) -> None:
        self._errors = errors
        self._known: set[tuple[str, str]] = set()
        self._not_before = 0.0

    @property
    def paused(self) -> bool:
        """Whether the last write failed only a moment ago."""
        return time.monotonic() < self._not_before

    def attempt(self, what: str, write: Callable[[], object], consequence: str) -> bool:
        """Whether ``write`` succeeded; ``what`` it writes and the ``consequence`` go into the warning."""
        try:
            write()
        except self._errors as error:
            self._not_before = time.monotonic() + RETRY_SECONDS
            # A StorageError already says which file could not be written, and why.
            why = (
                str(error)
                if isinstance(error, StorageError)
                else f"{what} could not be written ({_reason(error)})."
            )
            if (why, consequence) not in self._known:
                self._known.add((why, consequence))
                _log.warning("%s %s", why, consequence)
            return False
        self._not_before = 0.0
        return True


def _reason(error: Exception) -> str:
    """Without the name of a temporary file, which differs every time."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
