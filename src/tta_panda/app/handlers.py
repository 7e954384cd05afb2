"""What the handlers of all tabs have in common."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr

from tta_panda.errors import TtaPandaError

NO_PROGRESS: Any = {"queue": False, "show_progress": "hidden"}
"""For what takes milliseconds."""


def sentences(handler: Callable[..., Any]) -> Callable[..., Any]:
    """The same handler; errors of this package are shown in the page as what they say."""

    @functools.wraps(handler)
    def call(*arguments: Any) -> Any:
        try:
            return handler(*arguments)
        except TtaPandaError as error:
            raise _shown(error) from error

    @functools.wraps(handler)
    def iterate(*arguments: Any) -> Iterator[Any]:
        try:
            yield from handler(*arguments)
        except TtaPandaError as error:
            raise _shown(error) from error

    return iterate if inspect.isgeneratorfunction(handler) else call


def _shown(error: TtaPandaError) -> gr.Error:
    return gr.Error(str(error), print_exception=False)
