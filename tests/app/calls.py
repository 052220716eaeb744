"""Run ``sparsebnn`` commands in the process, on small files."""

import csv
import zipfile
from xml.sax.saxutils import escape

import numpy as np
from typer.testing import CliRunner

from sparsebnn.app import cli


def call(*words, **options):
    return CliRunner().invoke(cli._app(), [str(word) for word in words], **options)


def refused(done, *fragments):
    """Status 1 and one line on standard error that contains the fragments."""
    assert done.exit_code == 1, done.output
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert all(fragment in done.stderr for fragment in fragments), done.stderr


def write(path, header, rows, delimiter=","):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows([header, *rows])
    return path


def numbers(rows=60, seed=0):
    return np.random.RandomState(seed).randn(rows).round(3)


def write_excel(path, rows):
    """The smallest workbook: one sheet with text and numbers, by the standard library alone."""
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    rel = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    office = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    sheet = "".join(f"<row>{''.join(map(_cell, row))}</row>" for row in rows)
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{package}/content-types"><Default Extension="rels" '
        'ContentType="application/vnd.openxmlformats-package.relationships+xml"/><Override '
        f'PartName="/xl/workbook.xml" ContentType="{office}.sheet.main+xml"/><Override '
        f'PartName="/xl/worksheets/sheet1.xml" ContentType="{office}.worksheet+xml"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="r1" '
        f'Type="{rel}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{rel}"><sheets><sheet name="a" sheetId="1" '
        'r:id="r1"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{package}/relationships"><Relationship '
        f'Id="r1" Type="{rel}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>',
        "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{main}"><sheetData>{sheet}</sheetData></worksheet>',
    }
    with zipfile.ZipFile(path, "w") as file:
        for name, content in parts.items():
            file.writestr(name, f'<?xml version="1.0" encoding="UTF-8"?>{content}')


def _cell(value):
    if isinstance(value, str):
        return f'<c t="inlineStr"><is><t>{escape(value)}</t></is></c>'
    return f"<c><v>{value}</v></c>"
