"""The sections of the report, one file each, in the order of the page.

To add one, write a file with a function ``section(record)`` that returns a
:class:`~sparsebnn.app.report.parts.Section` or None, and list it here. What it shows must be in the record:
add its key to ``report/record.py`` and its values to ``commands/recording.py``.
"""

from __future__ import annotations

from sparsebnn.app.report.parts import Section
from sparsebnn.app.report.record import Record
from sparsebnn.app.report.sections import (
    effects,
    how_sure,
    how_well,
    made_from,
    mistakes,
    stand_ins,
    survival,
    the_network,
    training,
    which_inputs,
    which_rows,
)

__all__ = ["sections"]

_ORDER = (
    how_well,
    mistakes,
    how_sure,
    survival,
    which_inputs,
    stand_ins,
    effects,
    the_network,
    which_rows,
    training,
    made_from,
)


def sections(record: Record) -> list[Section]:
    """The sections that the record has data for."""
    found = [part.section(record) for part in _ORDER]
    return [each for each in found if each is not None]
