"""The sections of the report, in the order of the page.

To add one, write a function of the record that returns a :class:`~sparsebnn.app.report.parts.Section` or
None, and list it here. What it shows must be in the record: add its key to ``report/record.py`` and its
values to ``commands/recording.py``.
"""

from __future__ import annotations

from sparsebnn.app.report.parts import Section
from sparsebnn.app.report.record import Record
from sparsebnn.app.report.sections.certainty import how_sure, survival, which_rows
from sparsebnn.app.report.sections.columns import effects, stand_ins, which_inputs
from sparsebnn.app.report.sections.networks import made_from, the_network, training
from sparsebnn.app.report.sections.predictions import how_well, mistakes

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
    found = [section(record) for section in _ORDER]
    return [each for each in found if each is not None]
