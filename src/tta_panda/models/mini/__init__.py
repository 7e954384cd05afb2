"""The embedded model: a small ViT CLIP whose weights come with the package. `MODEL_CARD.md` says how it was made."""

from __future__ import annotations

from pathlib import Path

import open_clip

from tta_panda.models.openclip import OpenClipModel

ARCHITECTURE = "tta-panda-mini"
WEIGHTS = Path(__file__).with_name("mini.safetensors")

PATCH_SIZE = 16
"""Half the image's side: a smaller piece of a symbol still reads as a symbol, and subtracting it would hurt."""


def register_architecture() -> None:
    """Make the configuration known to open_clip, by its own mechanism."""
    if open_clip.get_model_config(ARCHITECTURE) is None:
        open_clip.add_model_config(Path(__file__).with_name(f"{ARCHITECTURE}.json"))


def load_mini(device: str = "cpu") -> OpenClipModel:
    register_architecture()
    clip = open_clip.create_model(ARCHITECTURE, pretrained=str(WEIGHTS), device=device)
    return OpenClipModel(clip, open_clip.get_tokenizer(ARCHITECTURE), "mini", negative_patch_size=PATCH_SIZE)
