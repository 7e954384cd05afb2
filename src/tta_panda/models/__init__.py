"""Models of several libraries behind one protocol, and the classifiers made from them."""

from __future__ import annotations

import pkgutil
import warnings
from collections.abc import Iterable, Sequence
from typing import cast

import torch

from tta_panda.errors import InvalidInputError, TtaPandaWarning
from tta_panda.models.adapter import ImageAdapter
from tta_panda.models.base import TEMPLATES, Classifier, ImageModel, Template, VisionLanguageModel, ZeroShotClassifier
from tta_panda.models.checkpoints import check_directory, file_digest, model_files
from tta_panda.models.devices import (
    Backend,
    OpenVinoEncoder,
    Precision,
    check_backend,
    check_precision,
    resolve_device,
)
from tta_panda.models.linear import LinearClassifier, LinearHeadModel
from tta_panda.models.names import (
    SOURCES,
    list_models,
    model_source,
    parse_model_name,
    recorded_name,
)
from tta_panda.models.wrap import factory_digest, wrap_model

__all__ = [
    "TEMPLATES",
    "Classifier",
    "ImageModel",
    "LinearClassifier",
    "VisionLanguageModel",
    "ZeroShotClassifier",
    "list_models",
    "load_model",
    "make_classifier",
    "model_source",
    "parse_model_name",
    "recorded_name",
    "weights_digest",
    "wrap_model",
]


def load_model(name: str, device: str = "cpu", precision: Precision = "fp32", backend: Backend = "torch") -> ImageModel:
    """A model by name. `tta_panda.models.names` lists how names are written.

    Args:
        name: `"mini"`, `"lite0"`, `"ViT-B-32-quickgelu:openai"`, `"ViT-B-32-quickgelu:weights/clip.safetensors"`, a
            local directory such as `"./clip"`, `"hf-hub:..."`, `"transformers:..."`, `"timm:..."`, or
            `"module:function"` for a model of your own. Most are
            `VisionLanguageModel`s; `lite0` and timm's classifiers have no text encoder, and `make_classifier` takes
            their classes from their heads.
        device: where the model runs, as torch names it, or `"auto"` for the best one there is.
        precision: what the encoders compute in: `"fp32"`, `"bf16"` or `"fp16"`.
        backend: what computes image embeddings: `"torch"`, or `"openvino"` on the CPU, which is faster for
            convolutional networks and serves methods that do not train.
    """
    device = resolve_device(device)
    check_precision(precision, device)
    check_backend(backend, device, precision)
    parsed = parse_model_name(name)
    source = SOURCES[parsed.library]
    if parsed.directory:
        check_directory(parsed.directory)
    with torch.inference_mode(False):  # a model that was loaded in inference mode could never be adapted
        model = pkgutil.resolve_name(source.load)(parsed).to(device)
    model.preset = source.preset
    if isinstance(model, ImageAdapter):
        model.precision = precision
    elif precision != "fp32":
        raise InvalidInputError(f"{name} decides itself what it computes in; use it with precision fp32.")
    if backend == "openvino":
        model.encode_image = OpenVinoEncoder(model)
    return cast(ImageModel, model)


def make_classifier(
    model: ImageModel, class_names: Iterable[str], templates: str | Sequence[Template] = "photo"
) -> Classifier:
    """The classifier for these classes: by their names where the model reads text, by its head where it has one.

    Args:
        model: the encoders.
        class_names: two or more different names; underscores are read as spaces.
        templates: prompts for the names: `"photo"`, `"mint"`, `"openai"`, or a list of your own, as
            `ZeroShotClassifier` takes it. A model without text has no use for them, and warns.
    """
    if isinstance(model, VisionLanguageModel):
        prompts = TEMPLATES.get(templates) if isinstance(templates, str) else templates
        return ZeroShotClassifier(model, class_names, prompts)
    if not isinstance(model, LinearHeadModel):
        raise InvalidInputError(
            f"{type(model).__name__} has neither a text encoder nor a linear head; tta_panda.check_model(model) says "
            "what is missing."
        )
    if templates != "photo":
        warnings.warn(
            f"{model.name} reads no text, so the templates {templates!r} make no difference.",
            TtaPandaWarning,
            stacklevel=2,
        )
    return LinearClassifier(model, class_names)


def weights_digest(name: str) -> str | None:
    """A short hash of what makes up the model behind a name on this machine; None where a tag or the hub names it."""
    parsed = parse_model_name(name)
    source = SOURCES[parsed.library]
    if parsed.library == "python":  # a file does not say what a function makes
        return factory_digest(parsed)
    files = [parsed.file] if parsed.file else []
    if parsed.directory:
        files = model_files(parsed.directory, source.weights)
    return file_digest(files) if files and all(file.is_file() for file in files) else None
