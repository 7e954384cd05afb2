"""Where models come from: one entry per library, with what is known of its models before any is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ModelSource:
    """A library of models, or a model that comes with the package.

    Args:
        load: `"module:function"`, called with a `ModelName`, a device and a precision.
        adapter: `"module:Class"`, the `ImageAdapter` around networks of this library.
        weights: file names of weights in a model directory, as wildcards, the preferred one first.
        directory: of the model that comes with the package.
        small: the model is too small to gain from threads; several processes use the cores better.
        preset: the name of the settings that suit the model.
    """

    load: str
    adapter: str
    weights: tuple[str, ...] = ()
    directory: Path | None = None
    small: bool = False
    preset: str | None = None

    @property
    def embedded(self) -> bool:
        """Whether the model comes with the package."""
        return self.directory is not None


_OPEN_CLIP = "tta_panda.models.openclip_load:load_open_clip", "tta_panda.models.openclip:OpenClipModel"
_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")  # the preferred one first: safetensors cannot hold code
_ANY_WEIGHTS = tuple(f"{stem}*{suffix}" for stem in ("open_clip", "") for suffix in _SUFFIXES)

MINI = Path(__file__).with_name("mini")

SOURCES = {
    "mini": ModelSource(*_OPEN_CLIP, _ANY_WEIGHTS, directory=MINI, small=True, preset="mini"),
    "open_clip": ModelSource(*_OPEN_CLIP, _ANY_WEIGHTS),
    "transformers": ModelSource(
        "tta_panda.models.transformers:load_transformers",
        "tta_panda.models.transformers:TransformersModel",
        ("model*.safetensors", "pytorch_model*.bin"),
    ),
    "timm": ModelSource("tta_panda.models.linear:load_timm", "tta_panda.models.linear:LinearHeadModel"),
}
"""By library. A model that comes with the package is its own library."""
