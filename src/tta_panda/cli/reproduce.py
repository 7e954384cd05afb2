"""`tta-panda reproduce`: the paper's tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tta_panda.cli import engines as where
from tta_panda.cli import runs
from tta_panda.cli.common import JsonOption, numbers, print_json, words
from tta_panda.errors import InvalidInputError
from tta_panda.progress import make_console

if TYPE_CHECKING:
    from tta_panda.evaluation.run import Outcome
    from tta_panda.experiments.base import Experiment
    from tta_panda.experiments.setup import Beta, Setup
    from tta_panda.methods.presets import Preset
    from tta_panda.reporting.cells import Cell
    from tta_panda.reporting.page import Part, Section

ALL = "all"

Outcomes = Mapping[tuple[str, bool], "Outcome"]
"""By the name of a setup, and whether the runs are timed."""


def reproduce(
    names: Annotated[
        list[str],
        typer.Argument(
            help="all; paper or beyond: what is in the paper, or is not; or names: tta-panda ls experiments."
        ),
    ],
    model: runs.ModelOption = None,
    data: runs.DataOption = None,
    preset: Annotated[
        str | None, typer.Option("--preset", help="The paper's benchmarks, comma-separated, or all.")
    ] = None,
    seed: Annotated[
        str | None, typer.Option("--seed", help="Random seeds, as 0,1,2 or 0-4.", show_default="0-4; quick: 0,1")
    ] = None,
    limit: runs.LimitOption = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer images, seeds, corruptions and grid points: takes minutes.")
    ] = False,
    protocol: runs.ProtocolOption = "paper",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Option of methods or of Panda, as name=value; repeatable. beta=paper: the preset's, the default of "
            "the paper's benchmarks; beta=auto: without labels; beta=grid: best of the paper's search, beside auto.",
        ),
    ] = None,
    templates: runs.TemplatesOption = None,
    precision: runs.PrecisionOption = "fp32",
    backend: runs.BackendOption = "torch",
    preprocess: runs.PreprocessOption = "batched",
    ignore_orientation: runs.IgnoreOrientationOption = False,
    data_root: runs.DataRootOption = None,
    image_list: runs.ImageListOption = None,
    skip_broken: runs.SkipBrokenOption = False,
    engine: where.EngineOption = where.LOCAL,
    workers: where.WorkersOption = None,
    address: where.AddressOption = None,
    gpus_per_worker: where.GpusOption = None,
    device: where.DeviceOption = "auto",
    cache: runs.CacheOption = None,
    output: runs.OutputOption = Path("reproduction"),
    shard: runs.ShardOption = None,
    dry_run: runs.DryRunOption = False,
    throughput: runs.ThroughputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make tables and figures of the paper and beyond from records; runs that have a record are not made again.

    Uses the embedded model and data by default.
    """
    from tta_panda.evaluation.config import EMBEDDED
    from tta_panda.evaluation.plan import select_shard
    from tta_panda.evaluation.store import RunStore
    from tta_panda.experiments import select_experiments
    from tta_panda.experiments.paper import BACKBONES
    from tta_panda.experiments.setup import PAPER_SEEDS, QUICK_SEEDS, Setup
    from tta_panda.methods.factory import parse_setting

    with runs.keeping_records(output):
        experiments = select_experiments(names)
        seeds = tuple(dict.fromkeys(numbers(seed))) if seed else QUICK_SEEDS if quick else PAPER_SEEDS
        setups: dict[str, Setup] = {}
        for named in _presets(preset, data):
            stream, sources, values = runs.resolve(
                named,
                model=model,
                data=data,
                templates=templates,
                data_root=data_root,
                image_list=image_list,
                skip_broken=skip_broken,
                limit=limit,
                precision=precision,
                backend=backend,
                preprocess=preprocess,
                ignore_orientation=ignore_orientation,
            )
            chosen = dict(parse_setting(text) for text in settings or [])
            beta = _checked_beta(chosen.pop("beta", "paper" if named and named.name in BACKBONES else "auto"))
            name = named.name if named else data or EMBEDDED.data
            setups[name] = Setup(stream, sources, values, protocol, chosen, seeds, beta, quick)

        planned = {
            (name, timed): select_shard(_runs(experiments, setup, timed), shard)
            for timed in (False, True)  # runs that share passes and cores first
            for name, setup in setups.items()
        }
        # The same run may exist in both folders: alone and timed, or while it shared encoder passes with others.
        stores = {
            timed: RunStore(output / "records" / "timed" if timed else output / "records") for timed in (False, True)
        }
        if runs.is_dry_run(dry_run, throughput):
            works = [
                (configs, stores[timed], setups[name].sources, timed) for (name, timed), configs in planned.items()
            ]
            runs.print_dry_run(works, throughput, as_json)
            return
        engines = where.EngineOptions(engine, workers, address, gpus_per_worker, device)
        outcomes = {
            (name, timed): runs.run_with_progress(
                configs, stores[timed], setups[name].sources, engines, cache, timed=timed
            )
            for (name, timed), configs in planned.items()
            if configs or any(each.timed == timed for each in experiments)
        }
        parts = {} if shard else _parts(experiments, setups, outcomes, output)
        if not as_json:
            _print_parts(list(parts.values()))
        page = output / (experiments[0].name if len(experiments) == len(setups) == 1 else "") / "report.html"
        if not shard:
            planned_keys = {config.key for configs in planned.values() for config in configs}
            _write_page(page, list(parts.values()), planned_keys, outcomes)
        count, existed = sum(map(len, planned.values())), sum(outcome.existed for outcome in outcomes.values())
        if as_json:
            rows = [_json_row(section, folder) for folder, part in parts.items() for section in part.sections]
            missing = [row for outcome in outcomes.values() for row in outcome.missing()]
            print_json(rows, runs=count, skipped=existed, missing=missing, report=None if shard else str(page))
        else:
            suffix = f" ({existed} of {count} runs existed already)" if existed else ""
            typer.echo(f"{count} runs, with records in {output}{suffix}" if shard else f"\nReport: {page}{suffix}")
        raise typer.Exit(max((runs.exit_code(outcome) for outcome in outcomes.values()), default=0))


def _presets(names: str | None, data: str | None) -> list[Preset | None]:
    """The presets that were asked for. The paper's data are run as the paper runs them, without being asked."""
    from tta_panda.experiments.paper import BACKBONES
    from tta_panda.methods.presets import get_preset

    if names is None:
        return [get_preset(data) if data in BACKBONES else None]
    chosen = list(BACKBONES) if names == ALL else list(dict.fromkeys(words(names)))
    if len(chosen) > 1 and data:
        raise InvalidInputError(f"--preset names {len(chosen)} benchmarks, each with its data: omit --data.")
    return [get_preset(name) for name in chosen]


def _checked_beta(value: Any) -> Beta:
    words = ("paper", "grid", "auto")
    if value in words or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value if isinstance(value, str) else float(value)  # type: ignore[return-value]
    raise InvalidInputError(f"beta is {', '.join(words)} or a number, got {value!r}.")


def _runs(experiments: Sequence[Experiment], setup: Setup, timed: bool) -> list[Any]:
    """The runs of experiments, each once."""
    own = [config for each in experiments if each.timed == timed for config in each.runs(setup)]
    return list({config.key: config for config in own}.values())


def _parts(
    experiments: Sequence[Experiment], setups: Mapping[str, Setup], outcomes: Outcomes, output: Path
) -> dict[Path, Part]:
    """All that is shown, by the folder that holds its files, which are written here."""
    from tta_panda.experiments.base import across_benchmarks
    from tta_panda.reporting.exports import write_figures, write_tables
    from tta_panda.reporting.page import Part

    sections = {
        name: [
            each.section(setup, outcomes[name, each.timed].records, outcomes[name, each.timed].diverged)
            for each in experiments
        ]
        for name, setup in setups.items()
    }
    several = len(setups) > 1
    parts = {output: Part("All benchmarks", across_benchmarks(experiments, sections))} if several else {}
    for name, setup in setups.items():
        parts[output / name if several else output] = Part(name, sections[name], setup.notes())
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
    return number | ({"paper": {"value": cell.paper.value, "sd": cell.paper.sd}} if cell.paper else {})
