"""Context managers around the loading code of other libraries: errors explained, nothing run, nothing logged."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import pickle
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

from tta_panda.errors import ModelLoadError, TtaPandaError, missing_extra


def require_transformers(what: str) -> None:
    """Raise `MissingExtraError` where the transformers library is not installed."""
    if importlib.util.find_spec("transformers") is None:
        raise missing_extra(f"{what} need", "transformers")


@contextlib.contextmanager
def weights_only() -> Iterator[None]:
    """Make every `torch.load` read weights only, even where a library calls it with `weights_only=False`."""
    variables = ("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
    before = {name: value for name in variables if (value := os.environ.pop(name, None)) is not None}
    os.environ[variables[0]] = "1"
    try:
        yield
    finally:
        os.environ.pop(variables[0], None)
        os.environ.update(before)


@contextlib.contextmanager
def remote_code_refused() -> Iterator[None]:
    """Keep transformers from asking on the terminal whether to run a model's own code: the answer is no."""
    from transformers import dynamic_module_utils

    seconds = dynamic_module_utils.TIME_OUT_REMOTE_CODE
    dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0
    try:
        yield
    finally:
        dynamic_module_utils.TIME_OUT_REMOTE_CODE = seconds


@contextlib.contextmanager
def failures_explained(failure: str, advice: str = "") -> Iterator[None]:
    """Turn whatever a library raises into a `ModelLoadError`: what failed, the reason's first line, and advice."""
    try:
        yield
    except TtaPandaError:
        raise
    except pickle.UnpicklingError as error:  # torch's own advice, to run what the file holds, is not passed on
        requested = re.search(r"(?:GLOBAL|asks for) ([\w.]+)", str(error))
        problem = f"a pickle asks for {requested[1]}" if requested else "a file is not a pickle of weights alone"
        raise ModelLoadError(
            f"{failure}: {problem}, and was not run. If you trust it, save the weights where it came from: "
            "safetensors.torch.save_file(model.state_dict(), 'weights.safetensors')."
        ) from error
    except Exception as error:  # open_clip, transformers, timm, torch, safetensors and the hub each have their own
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelLoadError(f"{failure}: {reason}{advice}") from error


@contextlib.contextmanager
def open_clip_silenced() -> Iterator[None]:
    """Drop what open_clip logs and warns about while it loads; what matters is raised as an error.

    open_clip logs on the root logger, so only messages from its own files are dropped.
    """
    import open_clip

    root, handler = logging.getLogger(), logging.NullHandler()
    folder = str(Path(open_clip.__file__).parent)

    def is_not_open_clip(record: logging.LogRecord) -> bool:
        return not record.pathname.startswith(folder)

    root.addHandler(handler)  # without any, `logging.info` would add one for good
    root.addFilter(is_not_open_clip)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"(open_clip|timm)\b")
            yield
    finally:
        root.removeFilter(is_not_open_clip)
        root.removeHandler(handler)


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
