"""`tta-panda reproduce`: the paper's tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tta_panda.cli.common import JsonOption, make_console, numbers, print_json, words
from tta_panda.cli.runs import BenchmarkRequest, Outcome, run_with_progress, takes_request
from tta_panda.errors import InvalidInputError

if TYPE_CHECKING:
    from tta_panda.evaluation.presets import Preset
    from tta_panda.experiments.base import Experiment
    from tta_panda.experiments.setup import Beta, Setup
    from tta_panda.experiments.work import Work
    from tta_panda.reporting.reproduction import Part, Reproduction

ALL = "all"


@dataclass(frozen=True)
class ReproduceRequest(BenchmarkRequest):
    """What experiments are made of, and where their results go."""

    preset: Annotated[
        str | None,
        typer.Option("--preset", help="The paper's settings of a benchmark; several with commas, or all."),
    ] = None
    seeds: Annotated[
        str | None,
        typer.Option("--seeds", help="Of data order and negatives, as 0,1,2 or 0-4.", show_default="0-4; quick: 0,1"),
    ] = None
    beta: Annotated[
        str | None,
        typer.Option(
            "--beta",
            help="paper: the preset's; auto: without labels; a number; grid: best of the paper's search, beside auto.",
            show_default="paper with a preset, else auto",
        ),
    ] = None
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer images, seeds, corruptions and grid points: a look in minutes.")
    ] = False
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for records, tables, figures, report.")] = Path(
        "reproduction"
    )

    def setups(self) -> list[Setup]:
        """One for each benchmark."""
        from tta_panda.evaluation.presets import PRESETS, get_preset

        if self.preset is None:
            # The paper's data are run as the paper runs them, without being asked.
            return [self._setup(PRESETS.get(self.data_name(None)))]
        names = list(PRESETS) if self.preset == ALL else list(dict.fromkeys(words(self.preset)))
        if len(names) > 1 and self.data:
            raise InvalidInputError(f"--preset names {len(names)} benchmarks, each with its data: leave out --data.")
        return [self._setup(get_preset(name)) for name in names]

    def _setup(self, preset: Preset | None) -> Setup:
        from tta_panda.experiments.setup import PAPER_SEEDS, QUICK_SEEDS, Setup

        seeds = QUICK_SEEDS if self.quick else PAPER_SEEDS
        return Setup(
            model=self.model_name(preset),
            data=self.data_name(preset),
            preset=preset,
            protocol=self.protocol,
            seeds=tuple(dict.fromkeys(numbers(self.seeds))) if self.seeds else seeds,
            limit=self.limit,
            beta=_parse_beta(self.beta) if self.beta else "paper" if preset else "auto",
            quick=self.quick,
            precision=self.precision,
            preprocess=self.preprocess,
            image_list=self.image_list,
            data_root=self.data_root,
        )


@takes_request
def reproduce(
    names: Annotated[list[str], typer.Argument(help="all, or names; see: tta-panda ls experiments.")],
    request: ReproduceRequest,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be run, what exists, and how long it would take.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make tables and figures of the paper, from records; what has one is not run again.

    Without a model and data, on the embedded ones.
    """
    from tta_panda.experiments import EXPERIMENTS
    from tta_panda.experiments.work import divide_work
    from tta_panda.reporting.pages import write_page
    from tta_panda.reporting.reproduction import render_reproductions

    chosen = list(EXPERIMENTS) if ALL in names else list(dict.fromkeys(names))
    experiments = {name: EXPERIMENTS.get(name)() for name in chosen}
    setups = request.setups()
    works = divide_work(list(experiments.values()), setups, request.output / "records", request.runner)
    if dry_run:
        _print_plan(works, as_json)
        return
    outcomes = [run_with_progress(work.runner, work.runs) for work in works]
    for outcome in outcomes:
        outcome.report_left_out()
    parts = _lay_out(experiments, setups, list(zip(works, outcomes, strict=True)), request.output)
    page = request.output / (f"{chosen[0]}/report.html" if len(chosen) == len(setups) == 1 else "report.html")
    write_page(page, render_reproductions(list(parts.values())))
    count, existed = sum(len(work.runs) for work in works), sum(outcome.finished for outcome in outcomes)
    if as_json:
        rows = [_json_row(each, folder) for folder, part in parts.items() for each in part.reproductions]
        print_json(rows, runs=count, skipped=existed, report=str(page))
        return
    _print_results(list(parts.values()))
    for config in [config for work in works for config in work.diverged().values()]:
        typer.echo(f"Diverged: {config.method_name} on {config.corruption}, seed {config.seed}, {config.options}")
    suffix = f" ({existed} of {count} runs existed already)" if existed else ""
    typer.echo(f"\nReport: {page}{suffix}")


def _parse_beta(text: str) -> Beta:
    named: dict[str, Beta] = {"paper": "paper", "auto": "auto", "grid": "grid"}
    try:
        return named[text] if text in named else float(text)
    except ValueError:
        raise InvalidInputError(f"--beta is paper, auto, grid or a number, got {text!r}.") from None


def _lay_out(
    experiments: Mapping[str, Experiment], setups: Sequence[Setup], done: Sequence[tuple[Work, Outcome]], output: Path
) -> dict[Path, Part]:
    """Tables and figures of all experiments, as files too, by the folder that holds them."""
    from tta_panda.reporting.reproduction import Part, Reproduction, write_files

    parts = {}
    for setup in setups:
        found = {work.alone: (outcome.by_key(), work.diverged()) for work, outcome in done if work.setup is setup}
        reproductions = [
            Reproduction.of(name, experiment, setup, *found[experiment.measured_alone])
            for name, experiment in experiments.items()
        ]
        parts[output / setup.data if len(setups) > 1 else output] = Part(setup, reproductions)
    if len(parts) > 1:
        parts = {output: Part.across(list(parts.values())), **parts}
    for folder, part in parts.items():
        for each in part.reproductions:
            write_files(each, folder / each.name)
    return parts


def _print_results(parts: Sequence[Part]) -> None:
    from tta_panda.reporting.terminal import print_experiment

    console = make_console()
    for part in parts:
        console.print(str(part.setup or part.title))
        for each in part.reproductions:
            print_experiment(console, f"{each.name}: {each.experiment.title}", each.result)


def _json_row(reproduction: Reproduction, folder: Path) -> dict[str, Any]:
    from tta_panda.reporting.cells import grid_of

    tables = []
    for table in reproduction.result.tables:
        grid = grid_of(table)
        rows = {row.name: [cell.full for cell in row.cells] for row in grid.rows}
        paper = {row.name: [cell.paper.full if cell.paper else None for cell in row.cells] for row in grid.rows}
        shown = {"title": grid.title, "of_paper": table.of_paper, "columns": list(grid.headers), "rows": rows}
        tables.append(shown | ({"paper": paper} if any(any(cells) for cells in paper.values()) else {}))
    return {"name": reproduction.name, "files": str(folder / reproduction.name), "tables": tables}


def _print_plan(works: Sequence[Work], as_json: bool) -> None:
    from tta_panda.evaluation.estimate import estimate_seconds

    missing = [work.missing() for work in works]
    rows = [row for work, keys in zip(works, missing, strict=True) for row in work.rows(keys)]
    seconds = sum(estimate_seconds(list(runs.values()), work.runner) for work, runs in zip(works, missing, strict=True))
    existing = sum(row["exists"] for row in rows)
    if as_json:
        print_json(rows, exist=existing, estimated_seconds=round(seconds, 1))
        return
    console = make_console()
    for row in rows:
        options = ", ".join(f"{key}={value}" for key, value in row["options"].items())
        where = f"{row['corruption']}, seed {row['seed']}, {row['images']} images in batches of {row['batch']}"
        console.print(f"{'exists' if row['exists'] else 'to run'}  {row['method']} on {where} ({options})")
    console.print(f"{len(rows)} runs, {existing} exist. The others take about {_duration(seconds)} here.")


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 6000 else f"{seconds / 3600:.1f} hours"
