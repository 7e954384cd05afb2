"""How much computing an architecture needs, from its configuration alone."""

from __future__ import annotations

import functools
from typing import Any

from tta_panda.models.names import parse_model_name


@functools.cache
def text_cost(model: str) -> float:
    """Multiply-adds for a text, for each of an image; 1 for what open_clip does not know as two transformers."""
    import open_clip

    config: dict[str, Any] | None = open_clip.get_model_config(parse_model_name(model).source)
    try:
        vision, text = (config or {})["vision_cfg"], (config or {})["text_cfg"]
        patches = (vision["image_size"] // vision["patch_size"]) ** 2
        image = _multiply_adds(patches + 1, vision["width"], vision["layers"])
        return _multiply_adds(text.get("context_length", 77), text["width"], text["layers"]) / image
    except (KeyError, TypeError):  # a convolutional network, or one of another library
        return 1.0


def _multiply_adds(tokens: int, width: int, layers: int) -> int:
    """Of a transformer with the usual blocks: four projections, two layers of four times the width, attention."""
    return layers * tokens * (12 * width**2 + 2 * tokens * width)
