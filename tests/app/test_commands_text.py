"""Text from files and arguments: no formulas in tables, no codes on terminals."""

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest

from app.calls import call, refused, write
from report.records import example
from sparsebnn.app.cli import one_line_errors
from sparsebnn.app.commands import running, writing
from sparsebnn.checks import InvalidInput, printable

FORMULA = '=HYPERLINK("http://x.example","open me")'
CODES = "\x1b[2J\x07"
LABELS = [FORMULA, "'=kept", f"-red{CODES}"]


def unescaped(cell):
    """As docs/command_line.md says."""
    text = (Path(__file__).parents[2] / "docs/command_line.md").read_text(encoding="utf-8")
    pattern = re.search(r"""`re\.sub\(r"(.*)", "", cell\)`""", text)[1]
    return re.sub(pattern, "", cell)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A run on a table whose labels, names and words try to be something else."""
    folder = tmp_path_factory.mktemp("text")
    random = np.random.RandomState(0)
    rows = [(i % 3 + 0.01 * random.randn(), "+word", LABELS[i % 3]) for i in range(60)]
    write(folder / "rows.csv", [f"=A1{CODES}", f"b{CODES}", f"y{CODES}"], rows)
    options = ["--epochs", "2", "--replicates", "1", "--out", folder / "run"]
    done = call("fit", folder / "rows.csv", "--target", f"y{CODES}", *options)
    assert done.exit_code == 0, done.output
    return folder, done


def test_no_text_in_predictions_is_a_formula(fitted):
    folder, _ = fitted
    done = call("predict", folder / "run", folder / "rows.csv", "--out", folder / "predicted.csv", "--force")
    assert done.exit_code == 0, done.output
    for path in (folder / "run" / "predictions.csv", folder / "predicted.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        labels = [row[name] for row in rows for name in ("truth", "prediction") if name in row]
        assert all(text[0] not in "=+-@\t\r" for text in [*rows[0], *labels])
        assert {unescaped(label) for label in labels} <= set(LABELS)


@pytest.mark.parametrize(
    "cell",
    ["=1", "+a", "-a", "@a", "\ta", "\ra", "\na", "'=1", "''-", "\uff1d1", "-", "--1", "+1+1", "-1e", "=-1"],
)
def test_escaped_text_can_be_read_back(cell):
    assert writing.as_text(cell) == f"'{cell}"
    assert unescaped(writing.as_text(cell)) == cell


@pytest.mark.parametrize(
    "cell", ["-3.5", "+1", "-.5", "-1e-7", "-1,5", "1", "it's", "'quoted'", "a=b", "", "a-b"]
)
def test_numbers_and_ordinary_text_stay_as_they_are(cell):
    assert writing.as_text(cell) == cell == unescaped(cell)


def test_cells_that_are_numbers_are_written_as_numbers():
    file = io.StringIO()
    writing.write_rows(file, {"=x": [-3.5, float("-inf"), -2]})
    assert file.getvalue().splitlines() == ["'=x", "-3.5", "-inf", "-2"]


def test_text_of_a_file_sends_no_codes_to_the_terminal(fitted, monkeypatch):
    folder, done = fitted
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", terminal)
        running.predict(folder / "run", str(folder / "rows.csv"), None)
    for text in (done.output, call("info", folder / "run").output, terminal.getvalue()):
        assert "\x1b" not in text
        assert "\x07" not in text
        assert "\\x1b[2J" in text


def test_a_file_gets_text_as_it_is(fitted):
    """Only a terminal obeys codes."""
    folder, _ = fitted
    assert CODES in call("predict", folder / "run", folder / "rows.csv").stdout


@pytest.mark.parametrize("command", ["fit", "predict", "export", "info", "report"])
def test_messages_send_no_codes_to_the_terminal(command, tmp_path):
    name = f"none{CODES}\nError: forged\u202e\udcff"
    words = {
        "fit": ["fit", name, "--target", "y", "--out", tmp_path / "run"],
        "predict": ["predict", name, "rows.csv"],
        "export": ["export", name, tmp_path / "m.onnx"],
        "info": ["info", name],
        "report": ["report", name],
    }
    done = call(*words[command])
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1
    assert "none\\x1b[2J\\x07\\nError: forged\\u202e\\udcff" in done.stderr


def test_errors_nobody_foresaw_and_interrupts_send_no_codes(monkeypatch, capsys):
    def broken(*_):
        raise ZeroDivisionError(CODES)

    monkeypatch.setattr(running, "info", broken)
    done = call("info", "run")
    assert done.exit_code == 70
    assert "\x1b" not in done.stderr
    for error in (KeyboardInterrupt(CODES), InvalidInput(CODES)):
        with pytest.raises(SystemExit), one_line_errors():
            raise error
    assert "\x1b" not in capsys.readouterr().err


def test_ordinary_text_is_printed_as_it_is():
    text = "Bærum, naïve café, 東京, \U0001f469\u200d\U0001f52c, می\u200cخواهم, 10\u00a0%"
    assert printable(text) == text


def test_the_help_lists_the_commands():
    listed = re.findall(r"^│ (\w+) ", call("--help").output, flags=re.MULTILINE)
    assert listed == ["fit", "predict", "export", "info", "report"]


def test_report_writes_the_page(tmp_path):
    refused(call("report", tmp_path), "The 'folder' of report")
    (tmp_path / "record.json").write_text("{", encoding="utf-8")
    refused(call("report", tmp_path), "JSON")
    (tmp_path / "record.json").write_text(json.dumps(example()), encoding="utf-8")
    assert "report.html" in call("report", tmp_path).output
    first = (tmp_path / "report.html").read_bytes()
    assert call("report", tmp_path, "--out", tmp_path / "new" / "page.html", "--quiet").output == ""
    assert (tmp_path / "new" / "page.html").read_bytes() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "record.json", "report.html"]
