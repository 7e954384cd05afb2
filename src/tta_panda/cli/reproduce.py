"""`tta-panda reproduce`: the paper's tables and figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from tta_panda.cli.common import JsonOption, make_console, numbers, print_json
from tta_panda.cli.runs import BenchmarkRequest, run_with_progress, takes_request
from tta_panda.errors import InvalidInputError

if TYPE_CHECKING:
    from rich.console import Console

    from tta_panda.evaluation.record import RunConfig, RunRecord
    from tta_panda.evaluation.run import Runner
    from tta_panda.experiments.base import Experiment
    from tta_panda.experiments.setup import Beta, Setup
    from tta_panda.reporting.reproduction import Reproduction

ALL = "all"


@dataclass(frozen=True)
class ReproduceRequest(BenchmarkRequest):
    """Of which experiments a setup is made."""

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

    def setup(self) -> Setup:
        from tta_panda.evaluation.presets import PRESETS, get_preset
        from tta_panda.experiments.setup import PAPER_SEEDS, QUICK_SEEDS, Setup
        from tta_panda.methods.base import PROTOCOLS

        # The paper's data are run as the paper runs them, without being asked.
        named = self.preset or (self.data if self.data in PRESETS else None)
        preset = None if named is None else get_preset(named)
        seeds = QUICK_SEEDS if self.quick else PAPER_SEEDS
        protocol = next((known for known in PROTOCOLS if known == self.protocol), None)
        if protocol is None:
            raise InvalidInputError(f"Unknown protocol {self.protocol!r}. Known: {', '.join(PROTOCOLS)}.")
        return Setup(
            model=self.model_name(preset),
            data=self.data_name(preset),
            preset=preset,
            protocol=protocol,
            seeds=tuple(dict.fromkeys(numbers(self.seeds))) if self.seeds else seeds,
            limit=self.limit,
            beta=_parse_beta(self.beta) if self.beta else "paper" if preset else "auto",
            quick=self.quick,
            preprocess=self.preprocess,
            image_list=self.image_list,
            data_root=self.data_root,
        )


class Part(NamedTuple):
    """Runs that are made in one way: together, or each alone and timed."""

    runs: list[RunConfig]
    runner: Runner


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
    from tta_panda.reporting.pages import write_page
    from tta_panda.reporting.reproduction import Reproduction, render_reproductions, write_files
    from tta_panda.reporting.terminal import print_experiment

    chosen = list(EXPERIMENTS) if ALL in names else list(dict.fromkeys(names))
    experiments = {name: EXPERIMENTS.get(name)() for name in chosen}
    setup = request.setup()
    parts = _parts(request, setup, list(experiments.values()))
    if dry_run:
        _print_plan(parts, as_json)
        return
    made = {alone: run_with_progress(part.runner, part.runs) for alone, part in parts.items()}
    by_key = {alone: {record.config.key: record for record in records} for alone, (records, _) in made.items()}
    reproductions = []
    for name, experiment in experiments.items():
        each = Reproduction.of(name, experiment, setup, by_key.get(experiment.measured_alone, {}))
        write_files(each, request.output / name)
        reproductions.append(each)
    page = request.output / ("report.html" if len(chosen) > 1 else f"{chosen[0]}/report.html")
    write_page(page, render_reproductions(setup, reproductions))
    finished = sum(existing for _, existing in made.values())
    if as_json:
        rows = [_json_row(each, request.output) for each in reproductions]
        print_json(rows, runs=sum(len(p.runs) for p in parts.values()), skipped=finished, report=str(page))
        return
    console = make_console()
    console.print(str(setup))
    for each in reproductions:
        print_experiment(console, f"{each.name}: {each.experiment.title}", each.result)
    _print_ending(console, parts, by_key, finished, page)


def _parse_beta(text: str) -> Beta:
    if text in ("paper", "auto", "grid"):
        return text  # type: ignore[return-value]
    try:
        return float(text)
    except ValueError:
        raise InvalidInputError(f"--beta is paper, auto, grid or a number, got {text!r}.") from None


def _parts(request: ReproduceRequest, setup: Setup, experiments: list[Experiment]) -> dict[bool, Part]:
    """The runs of all experiments, each once: those that may share passes and cores, and those timed alone."""
    from tta_panda.evaluation.store import RunStore

    parts = {}
    for alone in dict.fromkeys(experiment.measured_alone for experiment in sorted(experiments, key=_is_timed)):
        own = [experiment for experiment in experiments if experiment.measured_alone == alone]
        runs = list({config.key: config for experiment in own for config in experiment.runs(setup)}.values())
        records = request.output / "records"
        runner = request.runner(RunStore(records / "alone" if alone else records), runs)
        runner.alone, runner.skip_diverged = alone, True
        runner.workers = 1 if alone else runner.workers
        parts[alone] = Part(runs, runner)
    return parts


def _is_timed(experiment: Experiment) -> bool:
    return experiment.measured_alone


def _print_plan(parts: dict[bool, Part], as_json: bool) -> None:
    from tta_panda.evaluation.estimate import estimate_seconds

    rows: list[dict[str, Any]] = []
    seconds = 0.0
    for alone, (runs, runner) in parts.items():
        existing = runner.store.existing(runs)
        seconds += estimate_seconds([config for config in runs if config.key not in existing], runner)
        rows += [
            {
                "record": config.key,
                "method": str(config.method_name),
                "corruption": config.corruption,
                "seed": config.seed,
                "batch": config.batch_size,
                "images": config.limit or ALL,
                "options": config.options,
                "exists": config.key in existing,
                "alone": alone,
            }
            for config in runs
        ]
    exist = sum(row["exists"] for row in rows)
    if as_json:
        print_json(rows, exist=exist, estimated_seconds=round(seconds, 1))
        return
    console = make_console()
    for row in rows:
        options = ", ".join(f"{key}={value}" for key, value in row["options"].items())
        state = "exists " if row["exists"] else "to run "
        console.print(
            f"{state} {row['method']} {row['corruption']} seed {row['seed']} batch {row['batch']} ({options})"
        )
    console.print(f"{len(rows)} runs, {exist} exist. The others take about {_duration(seconds)} here.")


def _duration(seconds: float) -> str:
    return (
        f"{seconds:.0f} seconds"
        if seconds < 100
        else f"{seconds / 60:.0f} minutes"
        if seconds < 6000
        else f"{seconds / 3600:.1f} hours"
    )


def _json_row(reproduction: Reproduction, output: Path) -> dict[str, Any]:
    from tta_panda.reporting.cells import grid_of

    grids = [grid_of(table) for table in reproduction.result.tables]
    tables = [
        {"title": g.title, "columns": list(g.headers), "rows": {r.name: [c.text for c in r.cells] for r in g.rows}}
        for g in grids
    ]
    return {"name": reproduction.name, "files": str(output / reproduction.name), "tables": tables}


def _print_ending(
    console: Console, parts: dict[bool, Part], by_key: dict[bool, dict[str, RunRecord]], finished: int, page: Path
) -> None:
    diverged = [c for alone, part in parts.items() for c in part.runs if c.key not in by_key[alone]]
    for config in diverged:
        console.print(f"diverged, so left out: {config.method_name} on {config.corruption}, {config.options}")
    count = sum(len(part.runs) for part in parts.values())
    existed = f" ({finished} of {count} runs existed already)" if finished else ""
    console.print(f"\nReport: {page}{existed}")
