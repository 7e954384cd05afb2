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

from tta_panda.atomic import write_atomically
from tta_panda.errors import StoreError
from tta_panda.evaluation.config import RunConfig
from tta_panda.evaluation.record import RunRecord
from tta_panda.reporting.exports import to_csv, to_latex, to_markdown
from tta_panda.reporting.figures import FORMATS, draw, to_bytes, to_svg
from tta_panda.reporting.text import to_text
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
    def drawings(self) -> list[tuple[Figure, Drawing]]:
        """Its figures, drawn once for files and page."""
        return [(figure, draw(figure)) for figure in self.result.figures]


@dataclass(frozen=True)
class Part:
    """Sections that belong together, such as those of one benchmark."""

    title: str
    sections: Sequence[Section]
    notes: Sequence[str] = ()


def write_page(path: Path, title: str, lead: str, parts: Sequence[Part], records: Iterable[RunRecord]) -> Path:
    return _write(path, render_page(title, lead, parts, records))


def render_page(title: str, lead: str, parts: Sequence[Part], records: Iterable[RunRecord]) -> str:
    """All parts on one page, with the environments that their records were made in."""
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("tta_panda.reporting"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    several = len(parts) > 1
    return templates.get_template("page.html.j2").render(
        title=title,
        lead=lead,
        parts=[_part(part, f"{part.title.lower().replace(' ', '-')}-" if several else "") for part in parts],
        environment=_environments(records),
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
                "figures": [(figure.caption, to_svg(drawing)) for figure, drawing in section.drawings],
                "options": _options(section.runs),
            }
            for section in part.sections
        ],
    }


def _options(runs: Iterable[RunConfig]) -> str:
    """Every method with its options, once."""
    lines = {f"{run.method.name}: {json.dumps(run.method.options, sort_keys=True)}": None for run in runs}
    return "\n".join(lines)


def _environments(records: Iterable[RunRecord]) -> str:
    found = {json.dumps({"tta-panda": record.version, **record.environment}, indent=1) for record in records}
    return "\n".join(sorted(found))


def write_tables(section: Section, folder: Path) -> list[Path]:
    """Tables as CSV, Markdown and LaTeX."""
    writers = {"csv": to_csv, "md": to_markdown, "tex": to_latex}
    return [
        _write(folder / f"{_stem(section, table)}.{suffix}", write(table))
        for table in section.result.tables
        for suffix, write in writers.items()
    ]


def write_figures(section: Section, folder: Path) -> list[Path]:
    """Figures as SVG, PNG and PDF."""
    return [
        _write(folder / f"{_stem(section, figure)}.{suffix}", to_bytes(drawing, suffix))
        for figure, drawing in section.drawings
        for suffix in FORMATS
    ]


def _stem(section: Section, part: Table | Figure) -> str:
    return f"{section.name}-{part.name}" if part.name else section.name


def _write(path: Path, content: str | bytes) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise StoreError(f"Cannot write {path} ({error.strerror or error}).") from error
    return path
