"""Check a custom model against the protocol, by inspecting and running it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from tta_panda.errors import InvalidInputError, UnsupportedModelError
from tta_panda.methods import METHODS
from tta_panda.methods.adaptation import adaptable_copy
from tta_panda.models import make_classifier
from tta_panda.models.base import PromptableModel
from tta_panda.models.devices import full_precision
from tta_panda.models.linear import LinearHeadModel

_TEXTS = ["a photo of a cat.", "a photo of a dog."]
_PROMPT_CALLS = ("tokenize", "embed_tokens", "encode_embedded")


def check_model(model: Any) -> list[str]:
    """Check a model against the `VisionLanguageModel` protocol.

    Returns:
        The methods that this model does not support, and why. A valid model need not support all methods.

    Raises:
        InvalidInputError: listing everything that is missing or wrong.
    """
    has_text = not isinstance(model, LinearHeadModel)
    problems = list(_missing(model, has_text))
    if not problems:  # a model with missing attributes cannot be run
        checks = [_settings, _preparation, _image_features, _adaptation]
        checks += [_text_features] if has_text else []
        checks += [_prompt_path] if any(hasattr(model, call) for call in _PROMPT_CALLS) else []
        problems = [problem for check in checks for problem in _run_check(check, model)]
    if problems:
        raise InvalidInputError(
            f"{type(model).__name__} cannot be used yet:\n" + "\n".join(f"- {problem}" for problem in problems)
        )
    return _unavailable_methods(model)


def _missing(model: Any, has_text: bool) -> Iterator[str]:
    if not isinstance(model, nn.Module):
        yield "it must be a torch.nn.Module, with its networks as submodules, so that methods can copy it"
    calls = ("prepare", "encode_image", "encode_text") if has_text else ("prepare", "encode_image")
    yield from (f"the method {call} is missing" for call in calls if not callable(getattr(model, call, None)))
    required: dict[str, tuple[type | tuple[type, ...], str]] = {
        "name": (str, "the model's name in messages and records"),
        "image_size": (int, "the side in pixels of its square input images"),
        "negative_patch_size": (int, "the side in pixels of Panda's patches: in the paper, 32 for inputs of 224"),
        "device": (torch.device, "the device of its weights"),
        "image_encoder": (nn.Module, "the module whose normalisation layers may adapt"),
    }
    if has_text:
        required["logit_scale"] = (float, "the factor from cosine similarities to logits, such as 100.0")
        required["text_encoder"] = ((nn.Module, type(None)), "the module of the text encoder that may adapt, or None")
    for name, (kind, meaning) in required.items():
        if not hasattr(model, name):
            yield f"the attribute {name} is missing: {meaning}"
        elif not isinstance(getattr(model, name), kind):
            found = type(getattr(model, name)).__name__
            yield f"{name} is a {found}; expected {getattr(kind, '__name__', 'torch.nn.Module or None')}: {meaning}"


def _run_check(check: Callable[[Any], Iterator[str]], model: Any) -> list[str]:
    """Return the problems that a check finds, or the error that the model raises."""
    try:
        with torch.inference_mode(False), torch.no_grad(), full_precision(model.device):
            return list(check(model))
    except Exception as error:  # whatever the model raises
        return [f"{check.__name__.strip('_').replace('_', ' ')}: {type(error).__name__}: {error}"]


def _pictures(height: int, width: int) -> Tensor:
    return torch.randint(256, (3, 3, height, width), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def _prepared(model: Any) -> Tensor:
    return cast(Tensor, model.prepare(_pictures(model.image_size, model.image_size)))


def _settings(model: Any) -> Iterator[str]:
    if model.training or any(part.training for part in model.modules()):
        yield "it is in training mode; call model.eval()"
    if any(parameter.requires_grad for parameter in model.parameters()):
        yield "its parameters require gradients; call model.requires_grad_(False), as methods train copies"
    if not 0 < model.negative_patch_size <= model.image_size:
        yield f"negative_patch_size is {model.negative_patch_size}, but must be in 1..image_size ({model.image_size})"
    scale = getattr(model, "logit_scale", 1.0)
    if not (0 < scale < math.inf):
        yield f"logit_scale is {scale}, but must be a positive number (not its logarithm)"


def _preparation(model: Any) -> Iterator[str]:
    side = model.image_size
    prepared = model.prepare(_pictures(side + 5, side + 13))
    if tuple(prepared.shape) != (3, 3, side, side) or prepared.dtype != torch.float32:
        yield f"prepare returned {prepared.dtype} {tuple(prepared.shape)}; expected torch.float32 {(3, 3, side, side)}"
        return
    if prepared.min() < -0.5 or prepared.max() > 1.5:
        yield "prepare must return images in [0, 1]; normalise in encode_image, after negatives and views were created"
    if not _same_device(prepared.device, model.device):
        yield f"prepare returned images on {prepared.device}; the model is on {model.device}"
    if not torch.allclose(model.prepare(prepared), prepared):
        yield "prepare must not change images that are already prepared"
    whole = _pictures(side, side)
    if not torch.allclose(model.prepare(whole), model.prepare(whole.double() / 255), rtol=1e-3, atol=1e-3):
        yield "prepare must return the same for uint8 images and for floats in [0, 1]"


def _same_device(first: torch.device, second: torch.device) -> bool:
    """Whether these are one device; a model may leave out the index."""
    return first.type == second.type and (first.index == second.index or None in (first.index, second.index))


def _image_features(model: Any) -> Iterator[str]:
    images = _prepared(model)
    features = model.encode_image(images)
    if features.ndim != 2 or len(features) != 3 or not features.is_floating_point():
        yield f"encode_image returned {features.dtype} {tuple(features.shape)} for 3 images; expected floats (3, D)"
        return
    if not features.isfinite().all():
        yield "encode_image returned NaN or infinite values"
    if not torch.equal(model.encode_image(images), features):
        yield "encode_image is not deterministic: two calls with the same images differ (not in eval mode?)"
    if not torch.allclose(model.encode_image(images[:1]), features[:1], rtol=1e-3, atol=1e-3):
        yield "encode_image of one image depends on the others in the batch (batch statistics?)"


def _adaptation(model: Any) -> Iterator[str]:
    images = _prepared(model)
    before = model.encode_image(images)
    try:
        duplicate, adapted = adaptable_copy(model)
    except UnsupportedModelError:
        return  # reported as unsupported methods
    with torch.enable_grad():
        features = duplicate.encode_image(images)
        if features.requires_grad:
            features.float().square().sum().backward()
    if not any(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in adapted.values()):
        yield "no gradient reaches the normalisation layers of image_encoder (no_grad or detach inside encode_image?)"
    for parameter in adapted.values():
        parameter.add_(1.0)
    if torch.equal(duplicate.encode_image(images), before):
        yield "changing the normalisation layers of a copy has no effect: encode_image must use its own submodules"
    if not torch.equal(model.encode_image(images), before):
        yield "changing a copy changes the model: networks must be submodules, not kept in lists, closures or globals"


def _text_features(model: Any) -> Iterator[str]:
    text, image = model.encode_text(_TEXTS), model.encode_image(_prepared(model))
    if text.ndim != 2 or text.shape != (len(_TEXTS), image.shape[-1]):
        yield f"encode_text returned {tuple(text.shape)} for 2 texts; expected (2, {image.shape[-1]}), as for images"
    elif not text.isfinite().all():
        yield "encode_text returned NaN or infinite values"
    elif not _same_device(text.device, model.device):
        yield f"encode_text returned embeddings on {text.device}; the model is on {model.device}"


def _prompt_path(model: Any) -> Iterator[str]:
    if not isinstance(model, PromptableModel):
        missing = ", ".join(call for call in _PROMPT_CALLS if not hasattr(model, call))
        yield f"the prompt path is incomplete: {missing} is missing (or omit all of {', '.join(_PROMPT_CALLS)})"
        return
    tokens = model.tokenize(_TEXTS)
    with torch.enable_grad():
        embedded = model.embed_tokens(tokens).detach().requires_grad_(True)
        encoded = model.encode_embedded(embedded, tokens)
        (gradient,) = torch.autograd.grad(encoded.float().square().sum(), embedded, allow_unused=True)
    if not torch.allclose(encoded, model.encode_text(_TEXTS), rtol=1e-3, atol=1e-3):  # type: ignore[attr-defined]
        yield "encode_embedded(embed_tokens(tokens), tokens) must equal encode_text of the same texts"
    if gradient is None or not gradient.any():
        yield "no gradient reaches the embeddings passed to encode_embedded"


def _unavailable_methods(model: Any) -> list[str]:
    rows = model.head.out_features if isinstance(model, LinearHeadModel) else 2
    classifier = make_classifier(model, [f"class {row}" for row in range(rows)])
    unavailable = []
    for name in METHODS:
        try:
            METHODS.get(name)(classifier)
        except UnsupportedModelError as error:
            unavailable.append(f"{name}: {error}")
    return unavailable
