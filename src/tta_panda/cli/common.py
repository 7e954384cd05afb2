"""What commands share: options, lists written with commas, tables and JSON."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tta_panda.errors import InvalidInputError
from tta_panda.escapes import printable

if TYPE_CHECKING:
    from rich.console import Console

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]


def words(text: str) -> list[str]:
    """`"fog, snow"` as a list."""
    found = [word.strip() for word in text.split(",") if word.strip()]
    if not found:
        raise InvalidInputError(f"Expected one or more words separated by commas, got {text!r}.")
    return found


_MOST_NUMBERS = 10_000


def numbers(text: str) -> list[int]:
    """`"0,1,2"` or `"0-2"` as a list."""
    try:
        ranges = [_range(word) for word in words(text)]
    except ValueError:
        raise InvalidInputError(
            f"Expected whole numbers separated by commas, or a range as 0-4, got {text!r}."
        ) from None
    if (count := sum(each.stop - each.start for each in ranges)) > _MOST_NUMBERS:
        raise InvalidInputError(f"{text!r} means {count:,} numbers; at most {_MOST_NUMBERS:,} can be given at once.")
    return list(itertools.chain.from_iterable(ranges))


def _range(word: str) -> range:
    first, dash, last = word.partition("-")
    if not (first and dash):
        first = last = word
    found = range(int(first), int(last) + 1)
    if not found:
        raise ValueError(word)
    return found


def say(message: str) -> None:
    """Print a message on stderr, safe for terminals whatever names it quotes."""
    typer.echo("\n".join(map(printable, message.split("\n"))), err=True)


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
        return printable(", ".join(f"{key}={item}" for key, item in value.items()))
    if isinstance(value, list):
        return printable(", ".join(map(str, value)))
    return f"{value:.2f}" if isinstance(value, float) else printable(str(value))
