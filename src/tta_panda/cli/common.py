"""Helpers of several commands: comma-separated lists, tables and JSON, Ctrl-C and SIGTERM."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from tta_panda.errors import InvalidInputError
from tta_panda.escapes import printable

if TYPE_CHECKING:
    from rich.console import Console


def split_commas(text: str) -> list[str]:
    """Split `"fog, snow"` into a list."""
    found = [word.strip() for word in text.split(",") if word.strip()]
    if not found:
        raise InvalidInputError(f"Expected one or more words separated by commas, got {text!r}.")
    return found


_MAX_NUMBERS = 10_000


def parse_ints(text: str) -> list[int]:
    """Parse `"0,1,2"` or `"0-2"` into a list."""
    try:
        ranges = [_range(word) for word in split_commas(text)]
    except ValueError:
        raise InvalidInputError(
            f"Expected whole numbers separated by commas, or a range such as 0-4, got {text!r}."
        ) from None
    if (count := sum(each.stop - each.start for each in ranges)) > _MAX_NUMBERS:
        raise InvalidInputError(f"{text!r} means {count:,} numbers; at most {_MAX_NUMBERS:,} can be given at once.")
    return list(itertools.chain.from_iterable(ranges))


def _range(word: str) -> range:
    first, dash, last = word.partition("-")
    if not (first and dash):
        first = last = word
    found = range(int(first), int(last) + 1)
    if not found:
        raise ValueError(word)
    return found


def parse_shard(text: str | None) -> tuple[int, int]:
    """Parse `"3/8"`, a part and the number of parts; without a text, everything is one part."""
    found = re.fullmatch(r"(\d+)/(\d+)", "1/1" if text is None else text.strip())
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise InvalidInputError(f"A shard is written K/N with K from 1 to N, as in 3/8; got {text!r}.")
    return int(found[1]), int(found[2])


def check_outputs(outputs: Sequence[Path], inputs: Iterable[str | os.PathLike[str]] = ()) -> None:
    """Refuse outputs that would overwrite each other, or a file that the command reads."""
    written = {os.path.realpath(path) for path in outputs}
    if len(written) < len(outputs):
        raise InvalidInputError(
            f"Two outputs would be written to the same file: {', '.join(map(str, outputs))}. Give each its own name."
        )
    if overwritten := written & set(map(os.path.realpath, inputs)):
        raise InvalidInputError(f"{min(overwritten)} is read by this command; choose another name for the output.")


def print_stderr(message: str) -> None:
    """Print a message on stderr, with control characters escaped."""
    typer.echo("\n".join(map(printable, message.split("\n"))), err=True)


def print_json(rows: Sequence[dict[str, Any]], **more: Any) -> None:
    """Print the JSON document of `--json`."""
    typer.echo(json.dumps({"rows": list(rows), **more}, indent=1))


def print_rows(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    """Print rows with the same keys as a table."""
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


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM, so that it is handled like Ctrl-C."""


def catch_sigterm() -> None:
    """Raise `Terminated` on SIGTERM, which by default ends a process without any clean-up."""

    def terminate(_signal: int, _frame: FrameType | None) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)


@contextlib.contextmanager
def note_on_interrupt(what: str) -> Iterator[None]:
    """Add a note to the message if this block is interrupted, such as what is kept and how to continue."""
    try:
        yield
    except KeyboardInterrupt as interruption:
        interruption.add_note(what)
        raise


class InterruptibleGroup(TyperGroup):
    """Commands that, when interrupted, print a message and exit with the code of the signal: 130 or 143."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interruption:
            print_stderr(" ".join(["Interrupted.", *getattr(interruption, "__notes__", ())]))
            caught = signal.SIGTERM if isinstance(interruption, Terminated) else signal.SIGINT
            raise typer.Exit(128 + caught) from None
