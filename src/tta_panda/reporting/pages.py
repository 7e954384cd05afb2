"""Self-contained HTML pages of tables and figures: nothing is loaded from outside."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from matplotlib.figure import Figure as Drawing

from tta_panda.escapes import printable
from tta_panda.evaluation.config import RunConfig
from tta_panda.evaluation.record import RunRecord
from tta_panda.files import save_file
from tta_panda.reporting.exports import to_csv, to_latex, to_markdown
from tta_panda.reporting.figures import FORMATS, draw, to_bytes, to_svg
from tta_panda.reporting.text import MARGIN_NOTE, to_text
from tta_panda.results.figure import Figure, Result
from tta_panda.results.table import Table


@dataclass(frozen=True)
class Section:
    """A result under a title: an experiment, or a comparison."""

    name: str
    title: str
    result: Result
    runs: Sequence[RunConfig]
    about: str = ""
    source: str = ""
    """Where it comes from, or how to make it."""
    figures_first: bool = False

    @functools.cached_property
    def drawings(self) -> list[tuple[Figure, list[Drawing]]]:
        """Its figures, drawn once for files and page."""
        return [(figure, draw(figure)) for figure in self.result.figures]


@dataclass(frozen=True)
class Part:
    """Sections that belong together, such as those of one benchmark."""

    title: str
    sections: Sequence[Section]
    notes: Sequence[str] = ()


def write_page(path: Path, title: str, lead: str, parts: Sequence[Part], records: Iterable[RunRecord]) -> Path:
    return save_file(path, render_page(title, lead, parts, records))


def render_page(title: str, lead: str, parts: Sequence[Part], records: Iterable[RunRecord]) -> str:
    """All parts on one page, with the environments that their records were made in."""
    several = len(parts) > 1
    page = templates().get_template("page.html.j2")
    return page.render(
        title=title,
        lead=lead,
        margin_note=MARGIN_NOTE,
        parts=[_part(part, f"{part.title.lower().replace(' ', '-')}-" if several else "") for part in parts],
        environments=_environments(records),
    )


def templates() -> jinja2.Environment:
    """The templates of this package. `style.css.j2` is what all pages look like; names are escaped in each."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("tta_panda.reporting"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,  # markup is a type of its own
    )


def _part(part: Part, prefix: str) -> dict[str, Any]:
    return {
        "title": part.title,
        "notes": part.notes,
        "sections": [
            {
                "anchor": f"{prefix}{section.name}",
                "section": section,
                "tables": [(table, to_text(table)) for table in section.result.tables],
                "figures": [(figure.caption, list(map(to_svg, drawings))) for figure, drawings in section.drawings],
                "options": _options(section.runs),
            }
            for section in part.sections
        ],
    }


def _options(runs: Iterable[RunConfig]) -> list[str]:
    """Every method with its options, once."""
    lines = (f"{run.method.name}: {json.dumps(run.method.options, sort_keys=True)}" for run in runs)
    return list(dict.fromkeys(lines))


def _environments(records: Iterable[RunRecord]) -> dict[str, list[str]]:
    """Facts about the machines, each with its value for every set of records that were made alike."""
    alike: dict[str, list[RunRecord]] = {}
    for record in records:
        alike.setdefault(json.dumps({"tta-panda": record.version, **record.environment}), []).append(record)
    columns = []
    for facts, made in sorted(alike.items()):
        seconds = sum(record.seconds for record in made)
        columns.append({"runs": str(len(made)), "seconds in methods": f"{seconds:.0f}", **json.loads(facts)})
    names = dict.fromkeys(name for column in columns for name in column)
    return {name: [column.get(name, "–") for column in columns] for name in names}


def write_tables(section: Section, folder: Path) -> list[Path]:
    """Tables as CSV, Markdown and LaTeX."""
    writers = {"csv": to_csv, "md": to_markdown, "tex": to_latex}
    return [
        save_file(folder / f"{_stem(section, table)}.{suffix}", write(table))
        for table in section.result.tables
        for suffix, write in writers.items()
    ]


def write_figures(section: Section, folder: Path) -> list[Path]:
    """Figures as SVG, PNG and PDF, numbered where one has several drawings."""
    return [
        save_file(folder / f"{_stem(section, figure)}{number}.{suffix}", to_bytes(drawing, suffix))
        for figure, drawings in section.drawings
        for number, drawing in zip(_numbers(drawings), drawings, strict=True)
        for suffix in FORMATS
    ]


def _numbers(drawings: Sequence[Drawing]) -> list[str]:
    return [f"-{index}" for index in range(1, len(drawings) + 1)] if len(drawings) > 1 else [""]


def _stem(section: Section, part: Table | Figure) -> str:
    return f"{section.name}-{part.name}" if part.name else section.name
