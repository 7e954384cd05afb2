"""`tta-panda reproduce`: tables and figures of the paper, and others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tta_panda.cli import runs
from tta_panda.cli.common import parse_ints, parse_shard, print_json, split_commas
from tta_panda.cli.options import INPUT, METHOD, OUTPUT, ExecutionOptions, JsonOption, RunOptions
from tta_panda.errors import InvalidInputError, UnknownNameError
from tta_panda.progress import make_console

if TYPE_CHECKING:
    from tta_panda.evaluation.config import RunConfig
    from tta_panda.evaluation.run import Outcome
    from tta_panda.experiments.base import Experiment
    from tta_panda.experiments.setup import Beta, Setup
    from tta_panda.methods.presets import Preset
    from tta_panda.reporting.cells import Cell
    from tta_panda.reporting.page import Part, Section

Outcomes = Mapping[tuple[str, bool], "Outcome"]
"""Outcomes by the name of a setup, and whether the runs are timed."""


def reproduce(
    *,
    names: Annotated[list[str], typer.Argument(help="all, paper, beyond, or see tta-panda ls experiments.")],
    quick: Annotated[
        bool, INPUT("--quick", help="Use fewer images, seeds and settings, to finish in minutes.")
    ] = False,
    seed: Annotated[
        str | None, INPUT(metavar="N", help="Random seed; several as 0,1,2 or 0-4.", show_default="0-4; quick: 0,1")
    ] = None,
    method: Annotated[
        str | None,
        METHOD(
            metavar="NAMES",
            help="Only these methods, or frozen, views or trained, in tables by method.",
            show_default="all",
        ),
    ] = None,
    preset: Annotated[
        str | None, METHOD(metavar="NAMES", help="Benchmarks of the paper, comma-separated, or all.")
    ] = None,
    output: Annotated[
        Path, OUTPUT("--output", "-o", metavar="DIR", help="Folder of records, tables, figures and report.")
    ] = Path("reproduction"),
    as_json: JsonOption = False,
    run: RunOptions,
    execution: ExecutionOptions,
) -> None:
    """Make the tables and figures of the paper, and others, from records.

    Runs that have a record are not repeated. The embedded model and data are
    the default.

    --set beta=paper uses the preset's beta (default for the benchmarks of the
    paper), and beta=auto chooses it without labels (default otherwise).

    \b
    Examples:
      tta-panda reproduce all --quick
      tta-panda reproduce table-main --preset cifar10-c --data-root data
    """
    from tta_panda.evaluation.plan import select_shard
    from tta_panda.evaluation.store import RunStore
    from tta_panda.experiments import select_experiments

    with runs.note_records_on_interrupt(output):
        experiments = select_experiments(names)
        seeds = parse_ints(seed) if seed else None
        methods = _expand_methods(method) if method else ()
        setups = _setups(run, preset, seeds, quick, methods, _experiment_defaults(experiments, quick))
        # A run may be in both folders: timed alone, and sharing encoder passes with others.
        stores = {False: RunStore(output / "records"), True: RunStore(output / "records" / "timed")}
        planned = {
            (name, timed): runs.PlannedRuns(
                select_shard(_runs(experiments, setup, timed), *parse_shard(run.shard)), store, setup.sources, timed
            )
            for timed, store in stores.items()  # first those that share passes and cores
            for name, setup in setups.items()
        }
        if run.dry_run:
            runs.print_dry_run(list(planned.values()), run, as_json)
            return
        outcomes = {
            (name, timed): runs.run_with_progress(work, execution, run.cache)
            for (name, timed), work in planned.items()
            if work.configs or any(each.timed == timed for each in experiments)
        }
        count = sum(len(work.configs) for work in planned.values())
        existed = sum(outcome.existed for outcome in outcomes.values())
        suffix = f" ({existed} of {count} runs existed already)" if existed else ""
        parts = {} if run.shard else _parts(experiments, setups, outcomes, output)
        page = None
        if parts:
            page = output / (experiments[0].name if len(experiments) == len(setups) == 1 else "") / "report.html"
            keys = {config.key for work in planned.values() for config in work.configs}
            _write_page(page, list(parts.values()), keys, outcomes)
        if as_json:
            rows = [_json_row(section, folder) for folder, part in parts.items() for section in part.sections]
            missing = [row for outcome in outcomes.values() for row in outcome.missing()]
            print_json(rows, runs=count, skipped=existed, missing=missing, report=page and str(page))
        else:
            _print_parts(list(parts.values()))
            typer.echo(f"\nReport: {page}{suffix}" if page else f"{count} runs, with records in {output}{suffix}")
        raise typer.Exit(runs.exit_code(outcomes.values()))


def _expand_methods(text: str) -> tuple[str, ...]:
    """Expand names and kinds of methods into names of plain methods."""
    from tta_panda.methods import METHODS
    from tta_panda.methods.trained import TrainedMethod
    from tta_panda.methods.views import ViewMethod

    kinds: dict[str, list[str]] = {"frozen": [], "views": [], "trained": []}
    for name in METHODS:
        cls = METHODS.get(name)
        kind = "views" if issubclass(cls, ViewMethod) else "trained" if issubclass(cls, TrainedMethod) else "frozen"
        kinds[kind].append(name)
    names = [name for each in split_commas(text) for name in kinds.get(each, [each])]
    for name in names:
        if name not in METHODS:
            raise UnknownNameError("method", name, [*METHODS, *kinds])
    return tuple(dict.fromkeys(names))


def _experiment_defaults(experiments: Sequence[Experiment], quick: bool) -> dict[str, Any]:
    """Default options of an experiment that has its own."""
    own = [each for each in experiments if each.defaults]
    if own and len(experiments) > 1:
        raise InvalidInputError(f"{own[0].name} has its own settings: reproduce it alone.")
    defaults = own[0].defaults if own else {}
    return {name: value for name, value in defaults.items() if not (quick and name in ("limit", "seeds"))}


def _setups(
    run: RunOptions,
    presets: str | None,
    seeds: Sequence[int] | None,
    quick: bool,
    methods: Sequence[str],
    defaults: Mapping[str, Any],
) -> dict[str, Setup]:
    """Create a setup per preset, by name; data of the paper imply their preset.

    Without a preset, options that are not set have the experiment's own defaults.
    """
    from tta_panda.experiments.printed import BACKBONES
    from tta_panda.experiments.setup import PAPER_SEEDS, QUICK_SEEDS, Setup
    from tta_panda.methods.presets import get_preset

    if presets is None and run.data is None:
        presets = defaults.get("preset")
    seeds = seeds or defaults.get("seeds")
    if presets is not None:
        names = list(BACKBONES if presets == "all" else dict.fromkeys(split_commas(presets)))
        chosen: list[Preset | None] = [get_preset(name) for name in names]
    else:
        chosen = [get_preset(run.data) if run.data in BACKBONES else None]
        own = {name: defaults[name] for name in ("data", "model", "limit") if name in defaults}
        run = replace(run, **{name: value for name, value in own.items() if getattr(run, name) is None})
    if len(chosen) > 1 and run.data:
        raise InvalidInputError(f"--preset selects {len(chosen)} benchmarks, each with its own data: omit --data.")
    seeds = tuple(dict.fromkeys(seeds or (QUICK_SEEDS if quick else PAPER_SEEDS)))
    setups = {}
    for preset in chosen:
        stream, sources, values = run.resolve(preset)
        settings = run.parsed_settings()
        beta = _checked_beta(settings.pop("beta", "paper" if preset and preset.name in BACKBONES else "auto"))
        name = preset.name if preset else stream.data
        setups[name] = Setup(stream, sources, values, run.protocol, settings, seeds, beta, quick, methods)
    return setups


def _checked_beta(value: Any) -> Beta:
    words = ("paper", "auto")
    if value in words or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value if isinstance(value, str) else float(value)  # type: ignore[return-value]
    raise InvalidInputError(f"beta must be {', '.join(words)} or a number, got {value!r}.")


def _runs(experiments: Sequence[Experiment], setup: Setup, timed: bool) -> list[RunConfig]:
    """The runs of experiments, without duplicates."""
    own = [config for each in experiments if each.timed == timed for config in each.runs(setup)]
    return list({config.key: config for config in own}.values())


def _parts(
    experiments: Sequence[Experiment], setups: Mapping[str, Setup], outcomes: Outcomes, output: Path
) -> dict[Path, Part]:
    """Write the files of all tables and figures, and return the parts of the page by folder."""
    from tta_panda.reporting.exports import write_figures, write_tables
    from tta_panda.reporting.page import Part

    parts = {}
    for name, setup in setups.items():
        sections = [
            each.section(setup, outcomes[name, each.timed].records, outcomes[name, each.timed].diverged)
            for each in experiments
        ]
        parts[output / name if len(setups) > 1 else output] = Part(name, sections, setup.notes())
    for folder, part in parts.items():
        for section in part.sections:
            write_tables(section, folder / section.name)
            write_figures(section, folder / section.name)
    return parts


def _write_page(page: Path, parts: Sequence[Part], keys: Set[str], outcomes: Outcomes) -> None:
    from tta_panda.reporting.page import write_page

    records = {key: record for outcome in outcomes.values() for key, record in outcome.records.items()}
    missing = len(keys - records.keys())
    lead = f"Made from {len(records)} records."
    lead += f" {missing} runs are missing; their cells are marked." if missing else ""
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
    return number | ({"paper": {"value": cell.paper.value, "sd": cell.paper.sd}} if cell.paper else {})
