"""Progress bars on stderr: a bar in a terminal or a notebook, lines in a log."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

SECONDS_PER_LINE = 30.0
SHARE_PER_LINE = 0.1
SECONDS_BETWEEN_LINES = 3.0
"""Minimum time between two lines, so that short tasks print none."""


def make_console(*, stderr: bool = False) -> Console:
    """Make a console, 120 columns wide if its output goes to a file or a pipe."""
    console = Console(stderr=stderr, markup=False, emoji=False, highlight=False)  # names may have brackets or colons
    if not console.is_terminal:
        console.width = 120
    return console


def make_progress(description: str, total: float | None, *, in_bytes: bool = False) -> Progress:
    """Make a progress display with one task: a bar that vanishes when it is done, or lines in a log."""
    console = make_console(stderr=True)
    shown = console.is_terminal or console.is_jupyter
    middle: tuple[ProgressColumn, ...] = (
        (DownloadColumn(), TransferSpeedColumn()) if in_bytes else (TaskProgressColumn(show_speed=True),)
    )
    columns = (TextColumn("{task.description:45}", markup=False), BarColumn(), *middle, TimeRemainingColumn())
    progress = Progress(*columns, console=console, transient=True) if shown else LoggedProgress(console, in_bytes)
    progress.add_task(description, total=total)
    return progress


class LoggedProgress(Progress):
    """Progress that prints a line every 30 seconds, or for every tenth of the work."""

    def __init__(self, console: Console, in_bytes: bool):
        super().__init__(console=console, disable=True)
        self._in_bytes = in_bytes
        self._last = (time.monotonic(), 0.0)

    def stop(self) -> None:
        """Do nothing: rich before version 15 prints an empty line here."""

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        self._report(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._report(task_id)

    def _report(self, task_id: TaskID) -> None:
        task = self._tasks[task_id]
        share = task.completed / task.total if task.total else 0.0
        seconds, progress = time.monotonic() - self._last[0], share - self._last[1]
        if seconds < SECONDS_PER_LINE and (progress < SHARE_PER_LINE or seconds < SECONDS_BETWEEN_LINES):
            return
        self._last = time.monotonic(), share
        done = decimal(int(task.completed)) if self._in_bytes else f"{task.completed:,.0f}"
        parts = [f"{share:.0%}" if task.total else f"{done} done"]
        if task.total and task.time_remaining is not None:
            minutes, rest = divmod(int(task.time_remaining), 60)
            parts.append(f"{minutes} min {rest} s left" if minutes else f"{rest} s left")
        self.console.print(f"{task.description}: {', '.join(parts)}", soft_wrap=True)
