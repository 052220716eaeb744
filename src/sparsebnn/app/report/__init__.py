"""The HTML report of a run folder: one self-contained page.

>>> import json, pathlib, tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     record = {"format_version": 1, "task": "regression", "target": "price"}
...     _ = pathlib.Path(folder, "record.json").write_text(json.dumps(record))
...     write(folder).name
'report.html'
"""

from sparsebnn.app.report.page import render, write

__all__ = ["render", "write"]
