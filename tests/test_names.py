"""Names with characters that mean something somewhere: shown as they are, in every format."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import sys
import unicodedata
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote_to_bytes
from xml.etree import ElementTree

import pytest
from records import make_record
from rich.console import Console
from typer.testing import CliRunner

from tta_panda.cli import app, main
from tta_panda.cli.common import print_rows, print_stderr
from tta_panda.cli.report import write_report
from tta_panda.escapes import csv_text, latex_text, markdown_text, printable
from tta_panda.evaluation.store import RunStore
from tta_panda.progress import make_console
from tta_panda.reporting.cells import Cell
from tta_panda.reporting.comparison import compare, read_comparisons
from tta_panda.reporting.exports import to_csv, to_latex, to_markdown
from tta_panda.reporting.figures import (
    DotFigure,
    HistogramFigure,
    Line,
    LineFigure,
    Panel,
    draw,
    to_svg,
)
from tta_panda.reporting.leaderboard import make_entries, read_submissions, write_leaderboard
from tta_panda.reporting.page import Part, Section, render_page
from tta_panda.reporting.tables import Column, Row, Table
from tta_panda.reporting.terminal import print_tables

NAMES = [
    "$5 bill",
    "a$b_c$",
    "_under_ *star* `tick`",
    "two\nlines",
    "a\ttab",
    "\tleading tab",
    "👩‍🔬 emoji 🐼",
    "<script>alert(1)</script>",
    "a & b",
    r"\input{x} 50% #1 ^~",
    '=cmd("calc")',
    "+1",
    "-1",
    "@SUM(A1)",
    "a|b",
    "[red]x[/red]",
    ":heart:",
    "*",
    "escape \x1b[31m\x07",
    "turned \u202e around",
    "not text \udcff",
    "quotes \" and '",
    "a--b",
]
TABLE = Table(
    "Title of $ & <b>", "name", [Column(name) for name in NAMES], [Row(n, [Cell(-1.0)] * len(NAMES)) for n in NAMES]
)


def test_what_is_printed_is_one_line_and_moves_no_cursor():
    for name in NAMES:
        shown = printable(name)
        assert not {unicodedata.category(character) for character in shown} & {"Cc", "Cs", "Zl", "Zp"}
        shown.encode()
        if name.isprintable():
            assert shown == name
    assert printable("a\nb\x1b") == r"a\nb\x1b"
    assert printable(NAMES[6]) == NAMES[6]  # joined by U+200D


def test_csv_gives_names_back_and_no_formula():
    header, *rows = csv.reader(io.StringIO(to_csv(TABLE)))
    for written, name in zip([row[0] for row in rows], NAMES, strict=True):
        assert written.removeprefix("'") == name
        assert written[0] not in "=+-@\t\r"
    assert [title.removeprefix("'") for title in header[1:]] == NAMES
    assert rows[0][1] == "-1.000000"  # a number stays one
    assert csv_text("a=b") == "a=b"


def unescaped_markdown(text: str) -> str:
    """What CommonMark shows of a text that has escapes only; an independent reading, character by character."""
    shown, characters = "", iter(text)
    for character in characters:
        shown += next(characters) if character == "\\" else character
    return shown


def test_markdown_shows_names_as_they_are_in_one_cell_each():
    lines = to_markdown(TABLE).splitlines()
    assert len(lines) == 4 + len(NAMES)
    for line, name in zip(lines[4:], NAMES, strict=True):
        unescaped_bars = sum(c == "|" and line[i - 1] != "\\" for i, c in enumerate(line) if i) + 1
        assert unescaped_bars == len(NAMES) + 2
        cell = line.removeprefix("| ").split(" | -1.0")[0]
        assert unescaped_markdown(cell) == printable(name)
    assert markdown_text("gaussian_noise") == "gaussian_noise"
    assert markdown_text("_a_ <b> $x$ [c]") == r"\_a\_ \<b\> \$x\$ \[c\]"


def test_latex_escapes_every_special_character():
    assert latex_text("50%_{}~^\\") == r"50\%\_\{\}\textasciitilde{}\textasciicircum{}\textbackslash{}"
    assert latex_text("$a$ & #1 <x> |") == r"\$a\$ \& \#1 \textless{}x\textgreater{} \textbar{}"
    assert latex_text("[red]*") == "{[}red{]}{*}"
    assert latex_text("a---b") == "a-{}-{}-b"
    rows = [line for line in to_latex(TABLE).splitlines() if line.endswith(r"\\")]
    assert len(rows) == 1 + len(NAMES)  # a line break in a name makes no row
    for row in rows:
        assert row.replace(r"\&", "").count("&") == len(NAMES)
        assert not row.startswith(("[", "*"))  # arguments of the line break before it


class Texts(HTMLParser):
    """The text and the tags of a page."""

    def __init__(self, page: str):
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[str] = []
        self.started: list[tuple[str, list]] = []
        self.feed(page)

    def handle_data(self, data):
        self.texts.append(data)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.started.append((tag, attributes))


def test_pages_show_names_as_text():
    page = render_page(
        NAMES[0], NAMES[7], [Part("", [Section([TABLE], notes=NAMES, name="x", title=NAMES[7], about=NAMES[3])])], []
    )
    page.encode()
    found = Texts(page)
    assert {printable(name) for name in NAMES} <= set(found.texts)
    assert found.tags.count("script") == 1  # our own
    assert not {"red", "b>"} & set(found.tags)


def test_the_leaderboard_shows_names_as_text(tmp_path):
    """Of people, files, data sets, models and languages; and links lead to files, and run nothing."""
    result = {"task": "zeroshot_classification", "metrics": {"acc1": 0.5}}
    people = [name.replace("/", "_") for name in NAMES] + ["javascript:alert(1)"]
    for name, person in zip([*NAMES, "plain"], people, strict=True):
        text = name.replace("\udcff", "")
        (tmp_path / "people" / person).mkdir(parents=True)
        content = json.dumps({**result, "dataset": text, "model": text, "pretrained": "", "language": text})
        (tmp_path / "people" / person / f"{person}.json").write_text(content)
        (tmp_path / "people" / person / "broken.json").write_text("{}")
    submissions, problems = read_submissions(tmp_path / "people")
    path = write_leaderboard(tmp_path / "people" / "page.html", make_entries(submissions), problems)
    assert len(submissions) == len(problems) == len(people)
    found = Texts(path.read_text("utf-8"))
    assert {printable(name) for name in people} <= set(found.texts)
    assert found.tags.count("script") == 1 and not {"red", "b>"} & set(found.tags)
    links = {dict(attributes)["href"] for tag, attributes in found.started if tag == "a"}
    assert len(links) == 2 * len(people) and not any(":" in link for link in links)
    assert all(Path(os.fsdecode(unquote_to_bytes(path.parent.as_posix() + "/" + link))).is_file() for link in links)


def figures() -> list:
    columns = [Column(name, better="higher") for name in NAMES[:3]]
    table = Table("title", "name", columns, [Row(name, [Cell(1.0)] * len(columns)) for name in NAMES])
    dots = DotFigure("caption", NAMES[0], table)
    two = {1: Cell(1.0), 2: Cell(2.0)}
    panels = [Panel("x", "y", [Line(name, two) for name in NAMES[i::5][:3]], NAMES[15 + i]) for i in range(5)]
    classes = NAMES[:20]
    counts = [1] * len(classes)
    histograms = {name: [counts] * 3 for name in NAMES[:5]}
    return [dots, LineFigure("caption", panels), HistogramFigure("caption", NAMES[:2], classes, histograms)]


@pytest.mark.filterwarnings("ignore:Glyph")
@pytest.mark.parametrize("figure", figures(), ids=lambda figure: type(figure).__name__)
def test_drawings_show_names_as_text(figure):
    drawings = draw(figure)
    shown = {
        "".join(each.itertext()) for drawing in drawings for each in ElementTree.fromstring(to_svg(drawing)).iter()
    }
    short = [printable(name) for name in NAMES[:20] if len(printable(name)) <= 20]
    assert len(short) > 10 and set(short) <= shown


def test_terminals_get_names_without_markup_or_control_characters(capsys):
    console = Console(width=10_000, file=io.StringIO(), force_terminal=True)
    print_tables(console, NAMES[18], [TABLE], NAMES)
    text = console.file.getvalue()
    assert "\x1b[31m" not in text and "\x07" not in text and r"\x1b[31m" in text
    for name in NAMES:
        assert printable(name) in text
    print_rows(make_console(), [{"name": name, "options": {name: name}} for name in NAMES])
    print_stderr(f"error: {NAMES[18]}\nsecond line")
    printed = capsys.readouterr()
    assert all(name in printed.out for name in ("[red]x[/red]", ":heart:", r"\x1b[31m"))
    assert printed.err.splitlines() == [r"error: escape \x1b[31m\x07", "second line"]


@pytest.mark.parametrize("command", ["predict --classes a,b --model mini", "corrupt --corruption fog --workers 1"])
def test_commands_show_names_of_files_without_control_characters(command, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "escape \x1b[31m\x07.png").write_bytes(b"no picture")
    name, *options = command.split()
    places = [tmp_path / "in"] if name == "predict" else [tmp_path / "in", tmp_path / "out"]
    result = CliRunner().invoke(app, [name, *map(str, places), *options])
    assert r"escape \x1b[31m\x07.png" in result.stderr and "\x1b" not in result.stderr


def test_a_report_of_nasty_names_from_records_to_page(tmp_path, undrawn):
    """Where records can hold such names: methods, models, data and classes."""
    store = RunStore(tmp_path)
    names = [name for name in NAMES if "\udcff" not in name]
    for method in ("$m$", "$m$+panda"):
        record = make_record(method, "a_b|c\n$", data="<script>", model="50% [red]")
        counts = [1] * len(names)
        change = {"class_names": names, "predicted_counts": counts, "label_counts": counts}
        store.save(record.model_copy(update=change))
    page = write_report(*read_comparisons(store), tmp_path / "report.html").read_text("utf-8")
    found = Texts(page)
    assert "script" not in found.tags[:-1]
    assert any("<script>" in text for text in found.texts) and "$m$+panda" in found.texts
    [comparison] = compare(store.records())
    assert "50\\% {[}red{]}" in latex_text(comparison.title)


def test_a_terminal_that_cannot_show_every_character_still_gets_the_tables(tmp_path, monkeypatch):
    store = RunStore(tmp_path)
    for method in ("clip", "clip+panda"):
        store.save(make_record(method, data="🐼"))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True))
    monkeypatch.setattr(sys, "argv", ["tta-panda", "report", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    printed = sys.stdout.buffer.getvalue().decode("ascii")
    assert re.search(r"clip\+panda +\?\n", printed)  # where Δ would be
    assert "Report: " in printed and (tmp_path / "report.html").exists()
