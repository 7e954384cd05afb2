"""Experiments as files and as a page."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure as Drawing

from tta_panda.errors import StoreError
from tta_panda.evaluation.record import RunConfig, RunRecord
from tta_panda.experiments.base import Experiment, Outcomes
from tta_panda.experiments.paper import BACKBONES
from tta_panda.experiments.results import Figure, Result, Table
from tta_panda.experiments.setup import BEST_OF_GRID, Setup
from tta_panda.reporting.cells import grid_of
from tta_panda.reporting.exports import to_csv, to_latex, to_markdown
from tta_panda.reporting.figures import draw, save, to_svg
from tta_panda.reporting.pages import environments, render

_BETA_NOTES = {
    "auto": "Beta is auto: chosen from the stream without labels, by the same rule for every corruption.",
    "paper": "Beta is the paper's for each method, which its authors chose as the best of a grid on test labels.",
    "grid": f"Beta is searched as in the paper ({BEST_OF_GRID}); beside it stands auto, which needs no labels.",
}


@dataclass(frozen=True)
class Reproduction:
    """An experiment that was run and laid out."""

    name: str
    experiment: Experiment
    runs: Sequence[RunConfig]
    records: Mapping[str, RunRecord]
    result: Result

    @functools.cached_property
    def drawings(self) -> list[tuple[Figure, Drawing]]:
        """Its figures, drawn once for files and page."""
        return [(figure, draw(figure)) for figure in self.result.figures]

    @classmethod
    def of(cls, name: str, experiment: Experiment, setup: Setup, records: Mapping[str, RunRecord]) -> Reproduction:
        """From whatever records there are; cells without one say so."""
        runs = experiment.runs(setup)
        own = {config.key: records[config.key] for config in runs if config.key in records}
        return cls(name, experiment, runs, own, experiment.lay_out(Outcomes(setup, own)))


def write_files(reproduction: Reproduction, folder: Path) -> list[Path]:
    """Tables as CSV, Markdown and LaTeX, and figures as SVG, PNG and PDF."""
    paths: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for table in reproduction.result.tables:
            for suffix, write in (("csv", to_csv), ("md", to_markdown), ("tex", to_latex)):
                paths.append(folder / f"{_stem(reproduction, table)}.{suffix}")
                paths[-1].write_text(write(table), encoding="utf-8")
        for figure, drawing in reproduction.drawings:
            paths += save(drawing, folder / _stem(reproduction, figure))
    except OSError as error:
        raise StoreError(f"Cannot write to {folder} ({error.strerror or error}).") from error
    return paths


def _stem(reproduction: Reproduction, part: Table | Figure) -> str:
    return f"{reproduction.name}-{part.name}" if part.name else reproduction.name


def render_reproductions(setup: Setup, reproductions: Sequence[Reproduction]) -> str:
    """All experiments on one page."""
    records = {key: record for each in reproductions for key, record in each.records.items()}
    wanted = {config.key for each in reproductions for config in each.runs}
    return render(
        "reproduction.html.j2",
        setup=str(setup),
        record_count=len(records),
        missing_count=len(wanted - set(records)),
        paper_note=_paper_note(setup),
        beta_note=_BETA_NOTES.get(str(setup.beta), f"Beta is {setup.beta} throughout."),
        sections=[_section(each) for each in reproductions],
        environment=environments(records.values()),
    )


def _paper_note(setup: Setup) -> str:
    if setup.benchmark is None:
        return (
            f"The paper has no numbers for {setup.model} on {setup.data}. What it printed for its own benchmarks "
            "stands in tables of its own, marked as the paper's."
        )
    return (
        f"What the paper printed for {BACKBONES[setup.benchmark]} stands under our numbers, marked “paper”. With "
        "Panda, its beta was the best of a grid, chosen on test labels."
    )


def _section(reproduction: Reproduction) -> dict[str, Any]:
    experiment, result = reproduction.experiment, reproduction.result
    return {
        "name": reproduction.name,
        "title": experiment.title,
        "about": experiment.about,
        "in_paper": experiment.in_paper,
        "tables": [{"grid": grid_of(table), "note": table.note, "of_paper": table.of_paper} for table in result.tables],
        "figures": [{"svg": to_svg(drawing), "caption": figure.caption} for figure, drawing in reproduction.drawings],
        "notes": result.notes,
        "options": _options(reproduction.runs),
    }


def _options(runs: Iterable[RunConfig]) -> str:
    """Every method with its options and what else tells its runs from others, once."""
    shared = {"seed", "corruption", "severity", "method", "panda", "data_fingerprint"}
    lines = {
        f"{config.method_name}: {json.dumps(config.model_dump(exclude=shared), sort_keys=True)}": None
        for config in runs
    }
    return "\n".join(lines)
