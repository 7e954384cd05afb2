"""The embedded model: a small ViT CLIP whose weights come with the package. `MODEL_CARD.md` says how it was made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tta_panda.errors import InvalidInputError

if TYPE_CHECKING:
    from tta_panda.models.devices import Precision
    from tta_panda.models.names import ModelName
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


def load_mini(name: ModelName | None = None, device: str = "cpu", precision: Precision = "fp32") -> OpenClipModel:
    from tta_panda.models.openclip_load import create_open_clip

    if name is not None and name.weights:
        raise InvalidInputError(f"The mini model has its own weights; leave {name.weights!r} away.")
    register_architecture()
    return create_open_clip(ARCHITECTURE, "mini", device, precision, file=WEIGHTS, negative_patch_size=PATCH_SIZE)
