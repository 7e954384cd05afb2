"""Prompts for class names, by name. The embeddings of several are averaged."""

from __future__ import annotations

from collections.abc import Sequence

from tta_panda.models.base import DEFAULT_TEMPLATE, Template
from tta_panda.registry import Registry

PHOTO = (DEFAULT_TEMPLATE,)

MINT = (
    "itap of a {}.",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)
"""Seven that OpenAI found for ImageNet; Mint uses them everywhere."""

TEMPLATES: Registry[Sequence[Template]] = Registry(
    "set of templates",
    {"photo": f"{__name__}:PHOTO", "mint": f"{__name__}:MINT", "openai": "open_clip:OPENAI_IMAGENET_TEMPLATES"},
)
