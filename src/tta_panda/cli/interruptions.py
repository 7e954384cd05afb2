"""How commands end on Ctrl-C and on SIGTERM: at once, with a sentence about what is kept and how to go on."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

import typer
from typer.core import TyperGroup

from tta_panda.cli.common import say


class Terminated(KeyboardInterrupt):
    """SIGTERM, so that whatever handles Ctrl-C handles it, too."""


def catch_sigterm() -> None:
    """Raise `Terminated` on SIGTERM. By itself it would end this process at once, and clean nothing up."""

    def terminate(_signal: int, _frame: FrameType | None) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)


@contextlib.contextmanager
def keeping(what: str) -> Iterator[None]:
    """Have an interruption of this block say what is kept of its work, and how to go on."""
    try:
        yield
    except KeyboardInterrupt as interruption:
        interruption.add_note(what)
        raise


class InterruptibleGroup(TyperGroup):
    """Commands whose interruption is a message and the exit code that shells give to the signal: 130 or 143."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interruption:
            say(" ".join(["Interrupted.", *getattr(interruption, "__notes__", ())]))
            caught = signal.SIGTERM if isinstance(interruption, Terminated) else signal.SIGINT
            raise typer.Exit(128 + caught) from None
