"""The embedded model: a small ViT CLIP whose weights come with the package. `MODEL_CARD.md` says how it was made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tta_panda.models.openclip import OpenClipModel

ARCHITECTURE = "tta-panda-mini"
WEIGHTS = Path(__file__).with_name("mini.safetensors")

PATCH_SIZE = 16
"""Half the image's side. On validation symbols, pieces of 8 px do as well; the model card has the figures."""


def register_architecture() -> None:
    """Make the configuration known to open_clip, by its own mechanism."""
    import open_clip

    if open_clip.get_model_config(ARCHITECTURE) is None:
        open_clip.add_model_config(Path(__file__).with_name(f"{ARCHITECTURE}.json"))


def load_mini(device: str = "cpu") -> OpenClipModel:
    from tta_panda.models.openclip import create_open_clip

    register_architecture()
    return create_open_clip(ARCHITECTURE, str(WEIGHTS), "mini", device, PATCH_SIZE)
