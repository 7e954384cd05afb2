"""What a page holds, whatever its width and the browser's colours."""

from __future__ import annotations

import re

import pytest
from documents import links_outside
from records import make_record

from tta_panda.cli import app
from tta_panda.cli.report import write_report
from tta_panda.evaluation.store import RunStore
from tta_panda.reporting.cells import Cell
from tta_panda.reporting.comparison import read_comparisons
from tta_panda.reporting.figures import DotFigure, draw, to_bytes, to_svg
from tta_panda.reporting.page import templates


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    """The report of a method on two corruptions with three seeds, from two machines."""
    store = RunStore(tmp_path_factory.mktemp("runs"))
    for seed in range(3):
        for corruption in ("fog", "snow"):
            better = 0.3 if corruption == "fog" else 0.1 * (seed - 1)
            for name, accuracy in (("clip", 0.4), ("clip+panda", 0.4 + better)):
                record = make_record(name, corruption, seed=seed, accuracy=accuracy, bias=1 - accuracy)
                store.save(record.model_copy(update={"environment": {"torch": "2.9"} if seed else {"torch": "2.4"}}))
    return write_report(*read_comparisons(store), store.root / "report.html").read_text("utf-8")


def test_every_entry_of_the_contents_leads_somewhere(page):
    own = re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL)  # drawings have references of their own
    targets, anchors = re.findall(r'href="#([^"]+)"', own), re.findall(r' id="([^"]+)"', own)
    assert len(targets) == len(set(targets)) == 8  # five tables, their section, its figures, the versions
    assert set(targets) <= set(anchors)
    assert len(anchors) == len(set(anchors))


def test_nothing_is_loaded_from_outside(page):
    assert "<svg" in page and links_outside(page) == []


def test_differences_have_their_margin_and_a_colour_only_beyond_it(page):
    cells = re.findall(r'<td class="(\w*)">([+-][\d.]+) <span class="spread">± ([\d.]+)</span>', page)
    assert {(kind, change) for kind, change, _ in cells} >= {("better", "+30.0"), ("better", "-0.300"), ("", "+0.0")}
    assert ("", "+0.0", "24.8") in cells  # Student's t of -10, 0 and 10


def test_accuracy_calibration_time_and_versions_are_on_the_page(page):
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page)
    assert [caption.split(",")[0] for caption in captions] == [
        "Accuracy (%)",
        "Prediction bias (L1)",
        "Predicted classes",
    ]
    assert "calibration error (ECE)" in page and "negative log-likelihood (NLL)" in page
    versions = page.split('id="environment"')[1]
    assert re.search(r"torch</th><td>2.4</td><td>2.9</td>", versions)
    assert re.search(r"runs</th><td>4</td><td>8</td>", versions)
    assert re.search(r"seconds in methods</th><td>4</td><td>8</td>", versions)


def test_tables_scroll_in_their_box_and_names_stay(page):
    assert page.count("<table") == page.count('<div class="tables"')
    assert re.search(r"\.tables \{[^}]*overflow-x: auto", page)
    assert re.search(r"\.name \{[^}]*position: sticky", page)


def test_drawings_are_narrow_and_take_their_colours_from_the_page(page):
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawings) == 3 and "heart" in drawings[2]
    for drawing in drawings:
        assert float(re.search(r'width="([\d.]+)pt"', drawing)[1]) * 4 / 3 < 410  # pixels
        assert "currentColor" in drawing and "#ffffff" not in drawing and "#000000" not in drawing
    defined = set(re.findall(r"(--\w+):", page))
    assert set(re.findall(r"var\((--\w+)\)", page)) <= defined
    assert len(defined) == len(re.findall(r"--\w+:", page.split("prefers-color-scheme: dark")[1].split("\n}")[0]))


def test_files_of_drawings_have_a_background_of_their_own():
    [drawing] = draw(DotFigure("caption", "x", ["a"], {"b": [Cell(1.0)]}))
    assert b"#ffffff" in to_bytes(drawing, "svg") and b"var(" not in to_bytes(drawing, "svg")
    assert "var(--line)" in to_svg(drawing)


def test_the_style_stands_alone():
    style = templates().get_template("style.css.j2").render()
    assert style.strip().startswith(":root") and "{#" not in style and "url(" not in style


def test_one_page_of_a_command_holds_everything(tmp_path, capsys):
    arguments = ["fig-evolution", "fig-theorem", "--limit", "10", "--seed", "0", "--workers", "1", "-o", str(tmp_path)]
    app(["reproduce", *arguments], standalone_mode=False)
    printed = capsys.readouterr().out
    assert "Chunks of 1 image," in printed and "Report:" in printed
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<svg" in page and links_outside(page) == []
    assert 'href="#fig-evolution"' in page and 'id="fig-evolution"' in page and "aria-sort" in page
    assert {path.suffix for path in (tmp_path / "fig-evolution").iterdir()} >= {".csv", ".md", ".tex", ".svg", ".pdf"}
