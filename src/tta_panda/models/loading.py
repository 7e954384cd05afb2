"""What the loaders of all libraries share: explained failures, silenced logs, and packages that may be missing."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

from tta_panda.errors import MissingExtraError, ModelLoadError, TtaPandaError


def require_transformers(what: str) -> None:
    """Raise `MissingExtraError` where the transformers library is not installed."""
    if importlib.util.find_spec("transformers") is None:
        raise MissingExtraError(f"{what} need a missing package. Type: pip install 'tta-panda[transformers]'")


@contextlib.contextmanager
def failures_explained(failure: str, advice: str = "") -> Iterator[None]:
    """Turn whatever a library raises into a `ModelLoadError`: what failed, the reason's first line, and advice."""
    try:
        yield
    except TtaPandaError:
        raise
    except Exception as error:  # open_clip, transformers, timm, torch, safetensors and the hub each have their own
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelLoadError(f"{failure}: {reason}{advice}") from error


@contextlib.contextmanager
def open_clip_silenced() -> Iterator[None]:
    """Drop what open_clip logs and warns about while it loads; what matters is raised as an error.

    open_clip logs on the root logger. Only its own messages are dropped, and the root logger is left as it was: a call
    of `logging.info` would give it a handler if it had none.
    """
    import open_clip

    folder = str(Path(open_clip.__file__).parent)
    root = logging.getLogger()

    def is_not_open_clip(record: logging.LogRecord) -> bool:
        return not record.pathname.startswith(folder)

    with contextlib.ExitStack() as stack:
        if not root.handlers and logging.lastResort is not None:
            root.addHandler(logging.lastResort)
            stack.callback(root.removeHandler, logging.lastResort)
        root.addFilter(is_not_open_clip)
        stack.callback(root.removeFilter, is_not_open_clip)
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", module=r"(open_clip|timm)\b")
        yield


@contextlib.contextmanager
def transformers_silenced() -> Iterator[None]:
    """Drop the loading reports and progress bars of transformers; what matters is raised as an error."""
    from transformers.utils import logging as their_logging

    level, bars = their_logging.get_verbosity(), their_logging.is_progress_bar_enabled()
    their_logging.set_verbosity(logging.CRITICAL)
    their_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        their_logging.set_verbosity(level)
        if bars:
            their_logging.enable_progress_bar()
