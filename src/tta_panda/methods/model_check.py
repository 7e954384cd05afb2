"""Check a model of your own against the protocol, by inspecting it and by running it."""

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
        The methods that need more than this model offers, and why. Nothing is wrong with the model if there are any.

    Raises:
        InvalidInputError: listing everything that is missing or wrong.
    """
    reads_text = not isinstance(model, LinearHeadModel)
    problems = list(_missing(model, reads_text))
    if not problems:  # what is missing cannot be tried
        trials = [_settings, _preparation, _image_features, _adaptation]
        trials += [_text_features] if reads_text else []
        trials += [_prompt_path] if any(hasattr(model, call) for call in _PROMPT_CALLS) else []
        problems = [problem for trial in trials for problem in _tried(trial, model)]
    if problems:
        raise InvalidInputError(
            f"{type(model).__name__} cannot be used yet:\n" + "\n".join(f"- {problem}" for problem in problems)
        )
    return _unavailable_methods(model)


def _missing(model: Any, reads_text: bool) -> Iterator[str]:
    if not isinstance(model, nn.Module):
        yield "it must be a torch.nn.Module, with its networks as sub-modules, so that methods can copy it"
    calls = ("prepare", "encode_image", "encode_text") if reads_text else ("prepare", "encode_image")
    yield from (f"the method {call} is missing" for call in calls if not callable(getattr(model, call, None)))
    wanted: dict[str, tuple[type | tuple[type, ...], str]] = {
        "name": (str, "what it is called in messages and records"),
        "image_size": (int, "the side in pixels of the square images that it sees"),
        "negative_patch_size": (int, "the side in pixels of Panda's patches: the paper has 32 for 224"),
        "device": (torch.device, "where it is"),
        "image_encoder": (nn.Module, "the part whose normalisation layers may adapt"),
    }
    if reads_text:
        wanted["logit_scale"] = (float, "what cosine similarities are multiplied with, such as 100.0")
        wanted["text_encoder"] = ((nn.Module, type(None)), "the part of the text side that may adapt, or None")
    for name, (kind, meaning) in wanted.items():
        if not hasattr(model, name):
            yield f"the attribute {name} is missing: {meaning}"
        elif not isinstance(getattr(model, name), kind):
            found = type(getattr(model, name)).__name__
            yield f"{name} is a {found}; expected {getattr(kind, '__name__', 'torch.nn.Module or None')}: {meaning}"


def _tried(trial: Callable[[Any], Iterator[str]], model: Any) -> list[str]:
    """What a trial found; an error that the model raises is a finding, too."""
    try:
        with torch.inference_mode(False), torch.no_grad(), full_precision(model.device):
            return list(trial(model))
    except Exception as error:  # whatever the model raises
        return [f"{trial.__name__.strip('_').replace('_', ' ')}: {type(error).__name__}: {error}"]


def _pictures(height: int, width: int) -> Tensor:
    return torch.randint(256, (3, 3, height, width), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def _prepared(model: Any) -> Tensor:
    return cast(Tensor, model.prepare(_pictures(model.image_size, model.image_size)))


def _settings(model: Any) -> Iterator[str]:
    if model.training or any(part.training for part in model.modules()):
        yield "it is in training mode; call model.eval()"
    if any(parameter.requires_grad for parameter in model.parameters()):
        yield "its parameters require gradients; call model.requires_grad_(False), methods choose what they train"
    if not 0 < model.negative_patch_size <= model.image_size:
        yield f"negative_patch_size is {model.negative_patch_size}, but must lie in 1..image_size ({model.image_size})"
    scale = getattr(model, "logit_scale", 1.0)
    if not (0 < scale < math.inf):
        yield f"logit_scale is {scale}, but must be a positive number (not its logarithm)"


def _preparation(model: Any) -> Iterator[str]:
    side = model.image_size
    prepared = model.prepare(_pictures(side + 5, side + 13))
    if tuple(prepared.shape) != (3, 3, side, side) or prepared.dtype != torch.float32:
        yield f"prepare gave {prepared.dtype} {tuple(prepared.shape)}; expected torch.float32 {(3, 3, side, side)}"
        return
    if prepared.min() < -0.5 or prepared.max() > 1.5:
        yield "prepare must return images in [0, 1]: normalise in encode_image, after Panda and views were made"
    if prepared.device != model.device:
        yield f"prepare left images on {prepared.device}; the model is on {model.device}"
    if not torch.allclose(model.prepare(prepared), prepared):
        yield "prepare must not change images that it has prepared"
    whole = _pictures(side, side)
    if not torch.allclose(model.prepare(whole), model.prepare(whole.double() / 255), rtol=1e-3, atol=1e-3):
        yield "prepare must read uint8 images and floats in [0, 1] alike"


def _image_features(model: Any) -> Iterator[str]:
    images = _prepared(model)
    features = model.encode_image(images)
    if features.ndim != 2 or len(features) != 3 or not features.is_floating_point():
        yield f"encode_image gave {features.dtype} {tuple(features.shape)} for 3 images; expected floats (3, D)"
        return
    if not features.isfinite().all():
        yield "encode_image gave values that are not finite"
    if not torch.equal(model.encode_image(images), features):
        yield "encode_image differs from call to call: something in it is random, or changes (eval mode?)"
    if not torch.allclose(model.encode_image(images[:1]), features[:1], rtol=1e-3, atol=1e-3):
        yield "encode_image of one image depends on the others in the batch (batch statistics?)"


def _adaptation(model: Any) -> Iterator[str]:
    images = _prepared(model)
    before = model.encode_image(images)
    try:
        twin, adapted = adaptable_copy(model)
    except UnsupportedModelError:
        return  # listed among the methods that cannot run
    with torch.enable_grad():
        features = twin.encode_image(images)
        if features.requires_grad:
            features.float().square().sum().backward()
    if not any(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in adapted.values()):
        yield "no gradient reaches the normalisation layers of image_encoder (no_grad or detach inside encode_image?)"
    for parameter in adapted.values():
        parameter.add_(1.0)
    if torch.equal(twin.encode_image(images), before):
        yield "a copy with other normalisation layers still encodes the same: encode_image must use its own sub-modules"
    if not torch.equal(model.encode_image(images), before):
        yield "changing a copy changes the model: networks must be sub-modules, not kept in lists, closures or globals"


def _text_features(model: Any) -> Iterator[str]:
    text, image = model.encode_text(_TEXTS), model.encode_image(_prepared(model))
    if text.ndim != 2 or text.shape != (len(_TEXTS), image.shape[-1]):
        yield f"encode_text gave {tuple(text.shape)} for 2 texts; expected (2, {image.shape[-1]}), as for images"
    elif not text.isfinite().all():
        yield "encode_text gave values that are not finite"
    elif text.device != model.device:
        yield f"encode_text left embeddings on {text.device}; the model is on {model.device}"


def _prompt_path(model: Any) -> Iterator[str]:
    if not isinstance(model, PromptableModel):
        missing = ", ".join(call for call in _PROMPT_CALLS if not hasattr(model, call))
        yield f"the prompt path is there in parts; {missing} is missing (or omit all three)"
        return
    tokens = model.tokenize(_TEXTS)
    with torch.enable_grad():
        embedded = model.embed_tokens(tokens).detach().requires_grad_(True)
        encoded = model.encode_embedded(embedded, tokens)
        (gradient,) = torch.autograd.grad(encoded.float().square().sum(), embedded, allow_unused=True)
    if not torch.allclose(encoded, model.encode_text(_TEXTS), rtol=1e-3, atol=1e-3):  # type: ignore[attr-defined]
        yield "encode_embedded(embed_tokens(tokens), tokens) must equal encode_text of the same texts"
    if gradient is None or not gradient.any():
        yield "no gradient reaches the embeddings given to encode_embedded"


def _unavailable_methods(model: Any) -> list[str]:
    rows = model.head.out_features if isinstance(model, LinearHeadModel) else 2
    classifier = make_classifier(model, [f"class {row}" for row in range(rows)])
    found = []
    for name in METHODS:
        try:
            METHODS.get(name)(classifier)
        except UnsupportedModelError as error:
            found.append(f"{name}: {error}")
    return found
