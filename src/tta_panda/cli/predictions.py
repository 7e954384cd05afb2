"""Predictions as people and programs see them: rows on stdout, a page, and a summary."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tta_panda.cli.common import print_rows
from tta_panda.escapes import printable
from tta_panda.progress import make_console

if TYPE_CHECKING:
    from rich.console import Console

    from tta_panda.images import Decoding
    from tta_panda.prediction.files import Row
    from tta_panda.prediction.summary import Summary

MOST_CLASSES = 12
"""In the histogram; `--json` has all of them."""
_PATH = 50  # letters


def row_printer(output: Path | None) -> Callable[[Sequence[Row]], None]:
    """What shows rows on stdout, unless they have a file: a table for people, CSV for programs."""
    from tta_panda.files import csv_cell, csv_line
    from tta_panda.prediction.files import COLUMNS

    if output is not None:
        return lambda _rows: None
    if sys.stdout.isatty():
        return lambda rows: typer.echo("\n".join(map(_line, rows)))
    typer.echo(csv_line(COLUMNS), nl=False)
    return lambda rows: typer.echo("".join(csv_line(map(csv_cell, row.values())) for row in rows), nl=False)


def _line(row: Row) -> str:
    path = row["path"] if len(row["path"]) <= _PATH else f"…{row['path'][1 - _PATH :]}"
    if row["predicted"] is None:
        return printable(f"{path:{_PATH}}  skipped: {row['status']}")
    plain = "" if row["predicted"] == row["plain_predicted"] else f"  (plain: {row['plain_predicted']})"
    return printable(f"{path:{_PATH}}  {row['probability']:4.0%}  {row['predicted']}{plain}")


def write_page(
    page: Path, predictions: Path, method: str, model: str, paths: Sequence[str] | None, decoding: Decoding
) -> Path:
    """The contact sheet of a file of predictions.

    Thumbnails are read from the pictures once more, so that they need no memory while predictions are made.
    """
    from tta_panda.prediction.files import read_rows
    from tta_panda.prediction.reading import thumbnails
    from tta_panda.reporting.contact_sheet import THUMBNAIL, write_contact_sheet

    pictures = paths or (row["path"] for row in read_rows(predictions))
    return write_contact_sheet(page, method, model, read_rows(predictions), thumbnails(pictures, THUMBNAIL, decoding))


def print_summary(method: str, summary: Summary, files: Mapping[str, Path | None]) -> None:
    """What all rows come to: on stdout where these have a file of their own."""
    console = make_console(stderr=files["Predictions"] is None)
    facts, read = summary.facts(), summary.pictures - summary.skipped
    speed = f"{facts['pictures_per_second']:.1f} per second, the encoder busy {facts['busy']:.0%} of the time"
    console.print(f"{read:,} pictures in {facts['seconds']:.1f} s: {speed}")
    if summary.skipped:
        _print_skipped(console, summary)
    if read:
        share = summary.changed / read
        console.print(
            f"{method} changed {summary.changed:,} of {read:,} predictions ({share:.1%}); how often each class:"
        )
        shown = sorted(facts["classes"].items(), key=lambda item: -max(item[1].values()))
        print_rows(console, [{"class": name, **counts} for name, counts in shown[:MOST_CLASSES]])
        if len(shown) > MOST_CLASSES:
            console.print(f"and {len(shown) - MOST_CLASSES:,} classes that were predicted less often")
    if summary.labelled:
        low, high = facts["gain_interval"]
        gain = f"{100 * facts['gain']:+.1f} points, paired 95 % interval {100 * low:+.1f} to {100 * high:+.1f}"
        accuracy = f"accuracy {facts['plain_accuracy']:.1%} -> {facts['accuracy']:.1%} ({gain})"
        bias = f"prediction bias {facts['plain_bias']:.3f} -> {facts['bias']:.3f}"
        console.print(f"{summary.labelled:,} labelled pictures: {accuracy}, {bias}", soft_wrap=True)
    for name, path in files.items():
        if path is not None:
            console.print(f"{name}: {path}", soft_wrap=True)


def _print_skipped(console: Console, summary: Summary) -> None:
    console.print(f"{summary.skipped:,} skipped:")
    for path, reason in summary.reasons.items():
        console.print(printable(f"  {path}: {reason}"), soft_wrap=True)
    if summary.skipped > len(summary.reasons):
        console.print(f"  and {summary.skipped - len(summary.reasons):,} more; their rows have the reasons")
