"""Experiments as files and as a page."""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure as Drawing

from tta_panda.errors import StoreError
from tta_panda.evaluation.record import RunConfig, RunRecord
from tta_panda.experiments.base import Experiment, Outcomes
from tta_panda.experiments.paper import BACKBONES
from tta_panda.experiments.results import Figure, Result, Table, side_by_side
from tta_panda.experiments.setup import BEST_OF_GRID, Setup
from tta_panda.reporting.cells import grid_of
from tta_panda.reporting.exports import to_csv, to_latex, to_markdown
from tta_panda.reporting.figures import draw, save, to_svg
from tta_panda.reporting.pages import environments, render

_BETA_NOTES = {
    "auto": "Beta is auto: chosen from the stream without labels, by the same rule for every corruption.",
    "paper": "Beta is the paper's for each method, which its authors chose as the best of a grid on test labels.",
    "grid": f"Beta is searched as in the paper ({BEST_OF_GRID}); beside it stands auto, which needs no labels. Where "
    "there is one number only, it is auto's.",
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
    def of(
        cls,
        name: str,
        experiment: Experiment,
        setup: Setup,
        records: Mapping[str, RunRecord],
        diverged: Collection[str] = (),
    ) -> Reproduction:
        """From whatever records there are; cells without one say so, also those of `diverged` runs."""
        runs = experiment.runs(setup)
        own = {config.key: records[config.key] for config in runs if config.key in records}
        return cls(name, experiment, runs, own, experiment.lay_out(Outcomes(setup, own, diverged)))


@dataclass(frozen=True)
class Part:
    """What one setup gave, or what several have in common."""

    setup: Setup | None
    reproductions: Sequence[Reproduction]

    @property
    def title(self) -> str:
        return self.setup.data if self.setup else "All benchmarks"

    @classmethod
    def across(cls, parts: Sequence[Part]) -> Part:
        """The experiments that are shown for several benchmarks side by side."""
        compared = []
        for several in zip(*(part.reproductions for part in parts), strict=True):
            first = several[0]
            if first.experiment.compares_benchmarks:
                table = side_by_side({p.title: each.result.tables[0] for p, each in zip(parts, several, strict=True)})
                runs = [config for each in several for config in each.runs]
                records = {key: record for each in several for key, record in each.records.items()}
                compared.append(Reproduction(first.name, first.experiment, runs, records, Result([table])))
        return cls(None, compared)


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


def render_reproductions(parts: Sequence[Part]) -> str:
    """All experiments on one page."""
    everything = [each for part in parts for each in part.reproductions]
    records = {key: record for each in everything for key, record in each.records.items()}
    wanted = {config.key for each in everything for config in each.runs}
    return render(
        "reproduction.html.j2",
        record_count=len(records),
        missing_count=len(wanted - set(records)),
        parts=[_part(part, f"{part.title.lower().replace(' ', '-')}-" if len(parts) > 1 else "") for part in parts],
        environment=environments(records.values()),
    )


def _part(part: Part, prefix: str) -> dict[str, Any]:
    return {
        "title": part.title,
        "notes": _notes(part.setup) if part.setup else [],
        "sections": [{**_section(each), "anchor": f"{prefix}{each.name}"} for each in part.reproductions],
    }


def _notes(setup: Setup) -> list[str]:
    return [f"{setup}.", _paper_note(setup), _BETA_NOTES.get(str(setup.beta), f"Beta is {setup.beta} throughout.")]


def _paper_note(setup: Setup) -> str:
    if setup.benchmark is None:
        return (
            "The paper has no numbers for this setting. What it printed for its own benchmarks stands in tables of its "
            "own, marked as the paper's."
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
