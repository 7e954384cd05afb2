"""What commands share: options, lists written with commas, consoles and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tta_panda.errors import InvalidInputError

if TYPE_CHECKING:
    from rich.console import Console

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]


def words(text: str) -> list[str]:
    """`"fog, snow"` as a list."""
    found = [word.strip() for word in text.split(",") if word.strip()]
    if not found:
        raise InvalidInputError(f"Expected one or more words separated by commas, got {text!r}.")
    return found


def numbers(text: str) -> list[int]:
    """`"0,1,2"` as a list."""
    try:
        return [int(word) for word in words(text)]
    except ValueError:
        raise InvalidInputError(f"Expected whole numbers separated by commas, got {text!r}.") from None


def make_console(*, stderr: bool = False) -> Console:
    """A console that does not squeeze tables into 80 columns where output goes to a file or a pipe."""
    from rich.console import Console

    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=120)


def print_json(rows: Sequence[dict[str, Any]], **more: Any) -> None:
    """The one JSON document that `--json` promises."""
    typer.echo(json.dumps({"rows": list(rows), **more}, indent=1))
