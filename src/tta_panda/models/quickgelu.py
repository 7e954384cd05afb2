"""Which activation open_clip weights need. The wrong one raises no error: predictions are just worse.

OpenAI's weights, and some others, were trained with QuickGELU. An architecture exists with and without it, under names
that differ by a suffix, and a checkpoint file does not say which it belongs to.
"""

from __future__ import annotations

import warnings
from collections.abc import Container
from pathlib import Path

import open_clip

from tta_panda.errors import ModelLoadError, TtaPandaWarning, UnknownNameError
from tta_panda.models.names import RANDOM, ModelName

OPENAI_MARKS = ("input_resolution", "context_length", "vocab_size")
"""Numbers that OpenAI's own checkpoints hold beside the weights, and nobody else's do."""


def file_wants_quick_gelu(source: str, state: Container[str], label: str) -> bool:
    """Whether weights of a file need QuickGELU that the architecture as named does not have."""
    if (open_clip.get_model_config(source) or {}).get("quick_gelu", False):
        return False
    if all(mark in state for mark in OPENAI_MARKS):
        _note(f"{label} holds OpenAI's weights: they run with QuickGELU, as they were trained.")
        return True
    if open_clip.get_model_config(f"{source}-quickgelu" if ":" not in source else "") is not None:
        _note(
            f"{label} runs with the activation of {source}, GELU. If these weights were trained with QuickGELU, load "
            f"them as {label.replace(source, f'{source}-quickgelu', 1)}"
        )
    return False


def tag_uses_quick_gelu(name: ModelName) -> bool:
    """Whether the weights behind a tag were trained with QuickGELU, which they then always have to run with."""
    architecture, tag = name.source, name.weights
    published = open_clip.get_pretrained_cfg(architecture, tag)
    if not published:
        if "/" in tag or "\\" in tag or Path(tag).suffix:
            raise ModelLoadError(
                f"There is no checkpoint file {tag}. Check the path, or give a tag of {architecture} instead."
            )
        known = [*open_clip.list_pretrained_tags_by_model(architecture), RANDOM]
        raise UnknownNameError(f"weights tag for {architecture}", tag, known)
    trained_with = bool(published.get("quick_gelu", False))
    configured_with = bool((open_clip.get_model_config(architecture) or {}).get("quick_gelu", False))
    if configured_with and not trained_with:
        raise ModelLoadError(
            f"The weights {tag!r} were trained without QuickGELU, but {architecture} has it; "
            f"use {architecture.removesuffix('-quickgelu')}:{tag} instead."
        )
    if trained_with and not configured_with:
        _note(f"The weights {tag!r} of {architecture} run with QuickGELU, as they were trained.")
    return trained_with


def _note(text: str) -> None:
    warnings.warn(text, TtaPandaWarning, stacklevel=2)
