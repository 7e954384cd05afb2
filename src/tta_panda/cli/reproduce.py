"""`tta-panda reproduce`: the paper's tables and figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tta_panda.cli.common import JsonOption, numbers, print_json, words
from tta_panda.cli.estimates import print_estimate
from tta_panda.cli.runs import (
    CommonOptions,
    OutputOption,
    exit_code,
    run_with_progress,
    stream_options,
    takes_options,
)
from tta_panda.errors import DataError, InvalidInputError, ModelLoadError
from tta_panda.escapes import printable
from tta_panda.progress import make_console

if TYPE_CHECKING:
    from tta_panda.evaluation.outcome import Outcome
    from tta_panda.experiments.base import Experiment
    from tta_panda.experiments.reproduction import Work
    from tta_panda.experiments.setup import Beta, Setup
    from tta_panda.methods.presets import Preset
    from tta_panda.reporting.cells import Cell
    from tta_panda.reporting.page import Part, Section

ALL = "all"


@dataclass(frozen=True)
class ReproduceOptions(
    CommonOptions,
    stream_options("corruption", "severity", "order", "batch_size", "seed"),  # type: ignore[misc]
):
    """What experiments are made of, and where their results go."""

    preset: Annotated[str | None, typer.Option("--preset", help="The paper's benchmarks, comma-separated, or all.")] = (
        None
    )
    seed: Annotated[
        str | None,
        typer.Option("--seed", help="Random seeds, as 0,1,2 or 0-4.", show_default="0-4; quick: 0,1"),
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Option of methods or of Panda, as name=value; repeatable. beta=paper: the preset's, the default of "
            "the paper's benchmarks; beta=auto: without labels; beta=grid: best of the paper's search, beside auto.",
        ),
    ] = None
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer images, seeds, corruptions and grid points: takes minutes.")
    ] = False
    output: OutputOption = Path("reproduction")

    def setups(self) -> list[Setup]:
        """One for each benchmark."""
        from tta_panda.experiments.paper import BACKBONES
        from tta_panda.methods.presets import get_preset

        if self.preset is None:
            # The paper's data are run as the paper runs them, without being asked.
            data = self.stream(None).data
            return [self._setup(get_preset(data) if data in BACKBONES else None)]
        names = list(BACKBONES) if self.preset == ALL else list(dict.fromkeys(words(self.preset)))
        if len(names) > 1 and getattr(self, "data", None):
            raise InvalidInputError(f"--preset names {len(names)} benchmarks, each with its data: omit --data.")
        return [self._setup(get_preset(name)) for name in names]

    def _setup(self, named: Preset | None) -> Setup:
        from tta_panda.evaluation.plan import model_preset
        from tta_panda.experiments.paper import BACKBONES
        from tta_panda.experiments.setup import PAPER_SEEDS, QUICK_SEEDS, Setup
        from tta_panda.methods.factory import parse_setting

        settings = dict(parse_setting(text) for text in self.settings or [])
        beta = _checked_beta(settings.pop("beta", "paper" if named and named.name in BACKBONES else "auto"))
        sources = self.sources(named)
        return Setup(
            stream=self.stream(named),
            sources=sources,
            preset=named or model_preset(sources.model),
            protocol=self.protocol,
            settings=settings,
            seeds=tuple(dict.fromkeys(numbers(self.seed))) if self.seed else QUICK_SEEDS if self.quick else PAPER_SEEDS,
            beta=beta,
            quick=self.quick,
        )


@takes_options
def reproduce(
    names: Annotated[
        list[str],
        typer.Argument(
            help="all; paper or beyond: what is in the paper, or is not; or names: tta-panda ls experiments."
        ),
    ],
    options: ReproduceOptions,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be run, what exists, and how long it would take.")
    ] = False,
    throughput: Annotated[
        str | None,
        typer.Option(
            "--throughput",
            help="With --dry-run: GPU-hours if a GPU encodes so many images per second; one number, or one for each "
            "benchmark. Neither model nor data need be there.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make tables and figures of the paper and beyond from records; runs that have a record are not made again.

    Uses the embedded model and data by default.
    """
    experiments, setups, works = divide_options(names, options)
    if throughput is not None and not dry_run:
        raise InvalidInputError("--throughput is for an estimate: type --dry-run as well, or omit it.")
    if throughput is not None:
        print_estimate(works, setups, numbers(throughput), as_json)
        return
    if dry_run:
        _print_plan(works, as_json)
        return
    done = [(work, run_with_progress(work.runner, work.runs)) for work in works]
    parts = _parts(experiments, _sections(experiments, setups, done), setups, options.output)
    if not as_json:
        _print_parts(list(parts.values()))
    single = experiments[0].name if len(experiments) == len(setups) == 1 else ""
    page = options.output / single / "report.html"
    _write_page(page, list(parts.values()), done)
    count, existed = sum(len(work.runs) for work in works), sum(outcome.existed for _, outcome in done)
    if as_json:
        rows = [_json_row(section, folder) for folder, part in parts.items() for section in part.sections]
        missing = [row for _, outcome in done for row in outcome.missing()]
        print_json(rows, runs=count, skipped=existed, missing=missing, report=str(page))
    else:
        suffix = f" ({existed} of {count} runs existed already)" if existed else ""
        typer.echo(f"\nReport: {page}{suffix}")
    raise typer.Exit(max((exit_code(outcome) for _, outcome in done), default=0))


def divide_options(names: Sequence[str], options: ReproduceOptions) -> tuple[list[Experiment], list[Setup], list[Work]]:
    """Experiments, benchmarks, and the runs of all."""
    from tta_panda.experiments import select_experiments
    from tta_panda.experiments.reproduction import divide_work

    experiments = select_experiments(names)
    setups = options.setups()
    works = divide_work(
        experiments,
        setups,
        options.output / "records",
        lambda store, setup, runs, timed: options.runner(store, setup.sources, runs, timed),
    )
    return experiments, setups, works


def _checked_beta(value: Any) -> Beta:
    words = ("paper", "grid", "auto")
    if value in words or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value if isinstance(value, str) else float(value)  # type: ignore[return-value]
    raise InvalidInputError(f"beta is {', '.join(words)} or a number, got {value!r}.")


def _sections(
    experiments: Sequence[Experiment], setups: Sequence[Setup], done: Sequence[tuple[Work, Outcome]]
) -> dict[str, list[Section]]:
    """Tables and figures of all experiments, by benchmark."""
    found = {}
    for setup in setups:
        outcomes = {work.runner.evaluator.timed: outcome for work, outcome in done if work.setup is setup}
        found[setup.stream.data] = [
            each.section(setup, outcomes[each.timed].records, outcomes[each.timed].diverged) for each in experiments
        ]
    return found


def _parts(
    experiments: Sequence[Experiment], sections: Mapping[str, Sequence[Section]], setups: Sequence[Setup], output: Path
) -> dict[Path, Part]:
    """All that is shown, by the folder that holds its files, which are written here."""
    from tta_panda.experiments.base import across_benchmarks
    from tta_panda.reporting.exports import write_figures, write_tables
    from tta_panda.reporting.page import Part

    several = len(setups) > 1
    parts = {output: Part("All benchmarks", across_benchmarks(experiments, sections))} if several else {}
    for setup in setups:
        data = setup.stream.data
        parts[output / data if several else output] = Part(data, sections[data], setup.notes())
    for folder, part in parts.items():
        for section in part.sections:
            write_tables(section, folder / section.name)
            write_figures(section, folder / section.name)
    return parts


def _write_page(page: Path, parts: Sequence[Part], done: Sequence[tuple[Work, Outcome]]) -> None:
    from tta_panda.reporting.page import write_page

    records = {key: record for _, outcome in done for key, record in outcome.records.items()}
    missing = len({config.key for work, _ in done for config in work.runs} - records.keys())
    lead = f"Made from {len(records)} records."
    lead += f" {missing} runs are missing, and their cells say so." if missing else ""
    write_page(page, "Tables and figures", lead, parts, records.values())


def _print_parts(parts: Sequence[Part]) -> None:
    from tta_panda.reporting.terminal import print_tables

    console = make_console()
    for part in parts:
        console.print(part.notes[0] if part.notes else part.title)
        for section in part.sections:
            print_tables(console, f"{section.name}: {section.title}", section.tables, section.notes)


def _json_row(section: Section, folder: Path) -> dict[str, Any]:
    tables = [
        {
            "title": table.title,
            "of_paper": table.of_paper,
            "columns": [column.title for column in table.columns],
            "rows": {row.name: [_json_cell(cell) for cell in row.cells] for row in table.rows},
        }
        for table in section.tables
    ]
    return {"name": section.name, "files": str(folder / section.name), "tables": tables}


def _json_cell(cell: Cell) -> dict[str, Any]:
    number = {"missing": cell.why_empty} if cell.value is None else {"value": cell.value, "sd": cell.sd}
    return number | ({"paper": cell.paper._asdict()} if cell.paper else {})


def _print_plan(works: Sequence[Work], as_json: bool) -> None:
    from tta_panda.evaluation.estimate import estimate_seconds

    missing = [work.runner.missing(work.runs) for work in works]
    rows = [row for work, runs in zip(works, missing, strict=True) for row in work.rows(runs)]
    existing = sum(row["exists"] for row in rows)
    try:
        seconds = sum(estimate_seconds(runs, work.runner) for work, runs in zip(works, missing, strict=True))
        duration = f"The others take about {_duration(seconds)} here."
    except (DataError, ModelLoadError) as error:
        seconds, duration = math.nan, f"How long the others take cannot be measured: {error}"
    if as_json:
        print_json(rows, exist=existing, estimated_seconds=None if math.isnan(seconds) else round(seconds, 1))
        return
    console = make_console()
    for row in rows:
        options = ", ".join(f"{key}={value}" for key, value in row["options"].items())
        status = "exists" if row["exists"] else "to run"
        console.print(printable(f"{status}  {row['run']}; {row['stream']} ({options})"))
    console.print(f"{len(rows)} runs, {existing} exist. {duration}")


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 6000 else f"{seconds / 3600:.1f} hours"
