"""Which activation open_clip weights need. The wrong one raises no error: predictions are just worse.

OpenAI's weights, and some others, were trained with QuickGELU. An architecture exists with and without it, under names
that differ by a suffix, and a checkpoint file does not say which it belongs to.
"""

from __future__ import annotations

import warnings
from collections.abc import Container

import open_clip

from tta_panda.errors import ModelLoadError, TtaPandaWarning, UnknownNameError
from tta_panda.models.names import RANDOM, ModelName

SUFFIX = "-quickgelu"
"""What the name of an architecture with QuickGELU ends in, where it exists without it, too."""

OPENAI_MARKS = ("input_resolution", "context_length", "vocab_size")
"""Numbers that only OpenAI's own checkpoints hold beside the weights."""


def file_wants_quick_gelu(source: str, state: Container[str], label: str) -> bool:
    """Whether weights of a file need QuickGELU that the architecture as named does not have."""
    if _has_quick_gelu(source):
        return False
    if all(mark in state for mark in OPENAI_MARKS):
        _note(f"{label} holds OpenAI's weights: they run with QuickGELU, as they were trained.")
        return True
    if ":" not in source and open_clip.get_model_config(f"{source}{SUFFIX}") is not None:
        _note(
            f"{label} runs with the activation of {source}, GELU. If these weights were trained with QuickGELU, load "
            f"them as {label.replace(source, f'{source}{SUFFIX}', 1)}"
        )
    return False


def tag_uses_quick_gelu(name: ModelName) -> bool:
    """Whether the weights behind a tag were trained with QuickGELU, which they then always have to run with."""
    architecture, tag = name.source, name.weights
    published = open_clip.get_pretrained_cfg(architecture, tag)
    if not published:
        known = [*open_clip.list_pretrained_tags_by_model(architecture), RANDOM]
        raise UnknownNameError(f"weights tag for {architecture}", tag, known)
    trained_with, configured_with = bool(published.get("quick_gelu")), _has_quick_gelu(architecture)
    if configured_with and not trained_with:
        raise ModelLoadError(
            f"The weights {tag!r} were trained without QuickGELU, but {architecture} has it; "
            f"use {architecture.removesuffix(SUFFIX)}:{tag} instead."
        )
    if trained_with and not configured_with:
        _note(f"The weights {tag!r} of {architecture} run with QuickGELU, as they were trained.")
    return trained_with


def canonical_tag(name: ModelName) -> ModelName:
    """A published model by the architecture that has the activation of its weights, and the tag as it is listed."""
    published = open_clip.get_pretrained_cfg(name.source, name.weights)
    if not published:
        return name
    tag, twin = name.weights.lower().replace("-", "_"), f"{name.source}{SUFFIX}"  # open_clip reads tags like this
    is_twin = published.get("quick_gelu") and open_clip.get_pretrained_cfg(twin, tag)
    return name._replace(source=twin if is_twin else name.source, weights=tag)


def _has_quick_gelu(architecture: str) -> bool:
    return bool((open_clip.get_model_config(architecture) or {}).get("quick_gelu"))


def _note(text: str) -> None:
    warnings.warn(text, TtaPandaWarning, stacklevel=2)
