"""Self-contained HTML pages of tables and figures, or of predicted pictures, without external resources."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from tta_panda.escapes import printable
from tta_panda.evaluation.config import RunConfig
from tta_panda.evaluation.record import RunRecord
from tta_panda.files import save_file, saving
from tta_panda.reporting.figures import Figure, draw, to_svg
from tta_panda.reporting.tables import Table, spread_notes

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


@dataclass(frozen=True)
class Section:
    """Tables and figures under a title: an experiment, or a comparison."""

    tables: Sequence[Table]
    figures: Sequence[Figure] = ()
    notes: Sequence[str] = ()
    """What readers have to know to interpret the numbers."""
    name: str = ""
    title: str = ""
    runs: Sequence[RunConfig] = ()
    about: str = ""
    source: str = ""
    """Where it comes from, or how to make it."""
    figures_first: bool = False

    @functools.cached_property
    def drawings(self) -> list[tuple[Figure, list[Drawing]]]:
        """Its figures, drawn once for both files and page."""
        return [(figure, draw(figure)) for figure in self.figures]


@dataclass(frozen=True)
class Part:
    """Sections that belong together, such as those of one benchmark."""

    title: str
    sections: Sequence[Section]
    notes: Sequence[str] = ()


def write_page(path: Path, title: str, lead: str, parts: Sequence[Part], records: Iterable[RunRecord]) -> Path:
    return save_file(path, render_page(title, lead, parts, records))


def render_page(title: str, lead: str, parts: Sequence[Part], records: Iterable[RunRecord]) -> str:
    """Render all parts as one page, with the environments in which their records were made."""
    several = len(parts) > 1
    page = templates().get_template("page.html.j2")
    return page.render(
        title=title,
        lead=lead,
        spread_notes=spread_notes(table for part in parts for section in part.sections for table in section.tables),
        parts=[_part(part, f"{part.title.lower().replace(' ', '-')}-" if several else "") for part in parts],
        environments=_environments(records),
    )


def templates() -> jinja2.Environment:
    """The templates of this package, which escape names. `style.css.j2` is the style of all pages."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("tta_panda.reporting"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,  # `Markup` stays as it is
    )


def _part(part: Part, prefix: str) -> dict[str, Any]:
    return {
        "title": part.title,
        "notes": part.notes,
        "sections": [
            {
                "anchor": f"{prefix}{section.name}",
                "section": section,
                "figures": [(figure.caption, list(map(to_svg, drawings))) for figure, drawings in section.drawings],
                "options": _options(section.runs),
            }
            for section in part.sections
        ],
    }


def _options(runs: Iterable[RunConfig]) -> list[str]:
    """Methods with their options, without duplicates."""
    lines = (f"{run.method.name}: {json.dumps(run.method.options, sort_keys=True)}" for run in runs)
    return list(dict.fromkeys(lines))


def _environments(records: Iterable[RunRecord]) -> dict[str, list[str]]:
    """Facts about the environments of records by name, with one value per distinct environment."""
    alike: dict[str, list[RunRecord]] = {}
    for record in records:
        alike.setdefault(json.dumps({"tta-panda": record.version, **record.environment}), []).append(record)
    columns = []
    for facts, made in sorted(alike.items()):
        seconds = sum(record.seconds for record in made)
        columns.append({"runs": str(len(made)), "seconds in methods": f"{seconds:.0f}", **json.loads(facts)})
    names = dict.fromkeys(name for column in columns for name in column)
    return {name: [column.get(name, "–") for column in columns] for name in names}


_PREDICTION_FIELDS = (
    "thumbnail", "path", "label", "predicted", "probability", "plain_predicted", "plain_probability", "error", "top",
    "p_value", "rejected",
)  # fmt: skip


def write_contact_sheet(
    path: Path, rows: Iterable[Mapping[str, Any]], method: str, model: str, notes: Sequence[str] = ()
) -> Path:
    """Write a page of thumbnails and their predictions, from any number of rows with little memory.

    Args:
        path: the page.
        rows: predictions, each with its `thumbnail` as JPEG in base64, which is empty if there is none.
        method: name of the method.
        model: name of the model.
        notes: findings of the run, if any.
    """
    # Lists, because repeated field names would take half of the page.
    entries = ([row[name] for name in _PREDICTION_FIELDS] for row in rows)
    template = templates().get_template("contact_sheet.html.j2")
    page = template.stream(method=method, model=model, notes=notes, entries=entries)
    page.enable_buffering(64)
    with saving(path) as part:
        page.dump(str(part), encoding="utf-8", errors="backslashreplace")
    return path
