"""What commands share: options, lists written with commas, consoles and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tta_panda.errors import InvalidInputError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]


def words(text: str) -> list[str]:
    """`"fog, snow"` as a list."""
    found = [word.strip() for word in text.split(",") if word.strip()]
    if not found:
        raise InvalidInputError(f"Expected one or more words separated by commas, got {text!r}.")
    return found


def numbers(text: str) -> list[int]:
    """`"0,1,2"` or `"0-2"` as a list."""
    try:
        return [number for word in words(text) for number in _range(word)]
    except ValueError:
        raise InvalidInputError(
            f"Expected whole numbers separated by commas, or a range as 0-4, got {text!r}."
        ) from None


def _range(word: str) -> Sequence[int]:
    first, dash, last = word.partition("-")
    if not (first and dash):
        return [int(word)]
    found = range(int(first), int(last) + 1)
    if not found:
        raise ValueError(word)
    return found


def make_console(*, stderr: bool = False) -> Console:
    """A console that does not squeeze tables into 80 columns where output goes to a file or a pipe."""
    from rich.console import Console

    console = Console(stderr=stderr, markup=False, highlight=False)  # names and paths may hold brackets
    if not console.is_terminal:
        console.width = 120
    return console


def print_json(rows: Sequence[dict[str, Any]], **more: Any) -> None:
    """The one JSON document that `--json` promises."""
    typer.echo(json.dumps({"rows": list(rows), **more}, indent=1))


def print_rows(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    """Rows of equal keys as a table."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for header in rows[0] if rows else ():
        is_number = all(isinstance(row[header], int | float) for row in rows)
        table.add_column(header, overflow="fold", justify="right" if is_number else "left")
    for row in rows:
        table.add_row(*(_text(value) for value in row.values()))
    console.print(table)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def make_progress(description: str, total: float | None, *, in_bytes: bool = False) -> Progress:
    """A bar on stderr with one task, which vanishes when it is done."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    middle: tuple[ProgressColumn, ...] = (
        (DownloadColumn(), TransferSpeedColumn()) if in_bytes else (TaskProgressColumn(),)
    )
    columns = (TextColumn("{task.description:45}", markup=False), BarColumn(), *middle, TimeRemainingColumn())
    progress = Progress(*columns, console=make_console(stderr=True), transient=True)
    progress.add_task(description, total=total)
    return progress
