"""Models of several libraries behind one protocol, and the classifiers they give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tta_panda.errors import InvalidInputError
from tta_panda.models.base import Classifier, ImageModel, VisionLanguageModel, ZeroShotClassifier
from tta_panda.models.names import ModelName, parse_model_name
from tta_panda.registry import Registry

if TYPE_CHECKING:
    from tta_panda.models.devices import Precision

__all__ = [
    "Classifier",
    "ImageModel",
    "VisionLanguageModel",
    "ZeroShotClassifier",
    "load_model",
    "make_classifier",
    "parse_model_name",
    "weights_digest",
]

LOADERS: Registry[Callable[[ModelName, str, Precision], ImageModel]] = Registry(
    "model library",
    {
        "mini": "tta_panda.models.mini:load_mini",
        "open_clip": "tta_panda.models.openclip_load:load_open_clip",
        "transformers": "tta_panda.models.transformers:load_transformers",
        "timm": "tta_panda.models.linear:load_timm",
    },
)


def load_model(
    name: str, pretrained: str | None = None, device: str = "cpu", precision: Precision = "fp32"
) -> VisionLanguageModel:
    """A model by name. `tta_panda.models.names` lists how names are written.

    Args:
        name: `"mini"`, `"ViT-B-32-quickgelu:openai"`, `"ViT-B-32-quickgelu:weights/clip.safetensors"`, a local
            directory, `"hf-hub:..."`, `"transformers:..."` or `"timm:..."`. A timm classifier is an `ImageModel` only:
            it has no text encoder, and `make_classifier` takes its classes from its head.
        pretrained: the weights, where `name` does not say: a tag, a file, or `"random"`.
        device: where the model runs, as torch names it, or `"auto"` for the best one there is.
        precision: what the encoders compute in: `"fp32"`, `"bf16"` or `"fp16"`.
    """
    import torch

    from tta_panda.models.devices import check_precision, resolve_device

    check_precision(precision)
    parsed = parse_model_name(name, pretrained)
    with torch.inference_mode(False):  # a model that was loaded in inference mode could never be adapted
        return LOADERS.get(parsed.library)(parsed, resolve_device(device), precision)  # type: ignore[return-value]


def make_classifier(model: ImageModel, class_names: Sequence[str]) -> Classifier:
    """The classifier for these classes: by their names where the model reads text, by its head where it has one."""
    if isinstance(model, VisionLanguageModel):
        return ZeroShotClassifier(model, class_names)
    from tta_panda.models.linear import LinearClassifier, LinearHeadModel

    if not isinstance(model, LinearHeadModel):
        raise InvalidInputError(
            f"{type(model).__name__} has neither a text encoder nor a linear head; tta_panda.check_model(model) says "
            "what is missing."
        )
    return LinearClassifier(model, class_names)


def weights_digest(name: str) -> str | None:
    """A short hash of the weights behind a name, where these are files here; None where a tag names them."""
    from tta_panda.models.checkpoints import file_digest

    parsed = parse_model_name(name)
    if parsed.library == "mini":
        from tta_panda.models.mini import WEIGHTS

        files = [WEIGHTS]
    elif parsed.directory:
        files = sorted(path for path in parsed.directory.iterdir() if path.is_file())
    else:
        files = [Path(parsed.weights).expanduser()] if parsed.weights else []
    return file_digest(files) if files and all(file.is_file() for file in files) else None
