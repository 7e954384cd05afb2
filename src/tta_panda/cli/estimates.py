"""What experiments would cost on GPUs, for `tta-panda reproduce --dry-run --throughput`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tta_panda.cli.common import print_json, print_rows
from tta_panda.errors import InvalidInputError
from tta_panda.progress import make_console, make_progress

if TYPE_CHECKING:
    from tta_panda.evaluation.config import RunConfig
    from tta_panda.evaluation.cost import Cost
    from tta_panda.experiments.reproduction import Work
    from tta_panda.experiments.setup import Setup

GPUS = (1, 8, 64)
_NOTE = (
    "Encoder passes are counted in a batch of each method. One with a gradient is worth three, and a text its "
    "multiply-adds; methods in one row share what they encode. Reading images comes on top."
)


def print_estimate(works: Sequence[Work], setups: Sequence[Setup], throughput: Sequence[int], as_json: bool) -> None:
    """GPU-hours of what has no record yet, in rows of runs that share passes."""
    from tta_panda.evaluation.cost import balance

    if len(throughput) not in (1, len(setups)) or min(throughput) < 1:
        raise InvalidInputError(
            f"--throughput takes one number above 0, or one for each of {len(setups)} benchmarks; got {throughput}."
        )
    speeds = throughput if len(throughput) > 1 else [*throughput] * len(setups)
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    hours = []
    for work, task, cost in _costs(works):
        hours.append(cost.in_images / speeds[setups.index(work.setup)] / 3600)
        names = [config.method.name for config in task]
        row = rows.setdefault((work.setup.stream.data, *names), _row(work.setup.stream.data, names, cost))
        row["runs"] += len(task)
        row["GPU-hours"] += hours[-1]
    elapsed = {gpus: max(sum(hours[i] for i in part) for part in balance(hours, gpus)) for gpus in GPUS}
    runs = sum(len(work.runs) for work in works)
    exist = runs - sum(row["runs"] for row in rows.values())
    if as_json:
        print_json(list(rows.values()), runs=runs, exist=exist, gpu_hours=sum(hours), hours_on_gpus=elapsed)
        return
    console = make_console()
    print_rows(console, [{**row, "methods": ", ".join(row["methods"])} for row in rows.values()])
    console.print(_NOTE)
    console.print(f"{runs:,} runs, {exist:,} exist. The others take {sum(hours):,.0f} GPU-hours:", soft_wrap=True)
    print_rows(console, [{"GPUs": gpus, "hours": f"{value:,.1f}"} for gpus, value in elapsed.items()])


def _costs(works: Sequence[Work]) -> Iterator[tuple[Work, list[RunConfig], Cost]]:
    """Runs that are made together, and what they need."""
    from tta_panda.evaluation.cost import task_cost
    from tta_panda.evaluation.run import divide

    tasks = []
    for work in works:
        missing = work.runner.missing(work.runs)
        together = [[config] for config in missing] if work.runner.evaluator.timed else divide(missing)
        tasks += [(work, task) for task in together]
    groups = {tuple(config.method for config in task) for _, task in tasks}  # each is counted once
    with make_progress("counting encoder passes", len(groups)) as progress:
        for work, task in tasks:
            yield work, task, task_cost(task, work.setup.sources)
            if (methods := tuple(config.method for config in task)) in groups:
                groups.remove(methods)
                progress.advance(progress.task_ids[0])


def _row(data: str, names: list[str], cost: Cost) -> dict[str, Any]:
    return {
        "benchmark": data,
        "methods": names,
        **{name.replace("_with_gradient", ", gradient"): value for name, value in asdict(cost.per_image).items()},
        "runs": 0,
        "GPU-hours": 0.0,
    }
