"""`tta-panda plan`: the runs of another command in shards, for job arrays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tta_panda.cli import bench as bench_command
from tta_panda.cli.common import JsonOption, print_json, print_rows, words
from tta_panda.cli.reproduce import ReproduceOptions, divide_options
from tta_panda.cli.runs import RunOptions, plain_and_debiased, takes_options
from tta_panda.progress import make_console

if TYPE_CHECKING:
    from tta_panda.evaluation.shards import Part

app = typer.Typer(help="Divide the runs of a command into shards, for job arrays: tta-panda run --shard K/N.")

ShardsOption = Annotated[int, typer.Option("--shards", min=1, help="How many jobs there will be.")]
MethodOption = Annotated[str, typer.Option("--method", help="As the command takes it.")]


@app.command("run")
@takes_options
def run(options: RunOptions, shards: ShardsOption, method: MethodOption = "all", as_json: JsonOption = False) -> None:
    """Divide what `tta-panda run` would run."""
    names = plain_and_debiased("all") if method == "all" else words(method)
    _write([_part(options, names)], shards, options.output, as_json)


@app.command("bench")
@takes_options
def bench(options: RunOptions, shards: ShardsOption, method: MethodOption = "all", as_json: JsonOption = False) -> None:
    """Divide what `tta-panda bench` would run."""
    options = bench_command.with_limit(options)
    _write([_part(options, plain_and_debiased(method))], shards, options.output, as_json)


@app.command("reproduce")
@takes_options
def reproduce(
    names: Annotated[list[str], typer.Argument(help="Experiments, as tta-panda reproduce takes them.")],
    options: ReproduceOptions,
    shards: ShardsOption,
    as_json: JsonOption = False,
) -> None:
    """Divide what `tta-panda reproduce` would run."""
    from tta_panda.evaluation.shards import Part, absolute

    _, _, works = divide_options(names, options)
    parts = [
        Part(
            runs=work.runs,
            sources=absolute(work.setup.sources),
            folder=work.runner.store.root.relative_to(options.output),
            timed=work.runner.evaluator.timed,
        )
        for work in works
    ]
    _write(parts, shards, options.output, as_json)


def _part(options: RunOptions, methods: Sequence[str]) -> Part:
    from tta_panda.evaluation.shards import Part, absolute

    runs, sources = options.plan(methods)
    return Part(runs=runs, sources=absolute(sources))


def _write(parts: Sequence[Part], count: int, results: Path, as_json: bool) -> None:
    from tta_panda.evaluation.shards import write_shards

    shards = write_shards(parts, count, results)
    if as_json:
        rows: list[dict[str, Any]] = [
            {"shard": str(path), "runs": shard.runs, "images": shard.images} for path, shard in shards.items()
        ]
        print_json(rows)
        return
    console = make_console()
    rows = [
        {"shard": str(path), "runs": shard.runs, "images encoded": f"{shard.images:,.0f}"}
        for path, shard in shards.items()
    ]
    print_rows(console, rows)
    console.print(f"Run each with: tta-panda run --shard 1/{count} -o {results}", soft_wrap=True)
