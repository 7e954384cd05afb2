"""Compare the time of methods with that of their encoder passes alone.

python benchmarks/methods.py --method clip,tent,dmn --classes 1000
"""

from __future__ import annotations

import argparse
import dataclasses
from functools import partial

import torch
from timer import Work, interleave
from torch import Tensor
from workload import measure_methods, timing_options, warm_up

from tta_panda import TrainedMethod, create_method
from tta_panda.methods.adaptation import adaptable_copy
from tta_panda.methods.base import Method
from tta_panda.methods.features import VIEWS_PER_PASS, encode_images
from tta_panda.models import Classifier
from tta_panda.models.base import PromptableModel

TEXTS_PER_PASS = 500


def main() -> None:
    measure_methods(__doc__, "x passes: ratio to the encoder passes alone", measure)


def measure(name: str, classifier: Classifier, images: Tensor, arguments: argparse.Namespace) -> dict[str, object]:
    """Measure one row: the method without and with Panda, and ratios to the same number of encoder passes alone."""
    row: dict[str, object] = {"method": name}
    for title, full_name in (("", name), ("panda: ", f"{name}+panda")):
        method = create_method(full_name, classifier)
        restore = {"adapt": warm_up(method, images)}
        ways: dict[str, Work] = {"passes": bare_passes(method, images), "adapt": partial(method.adapt, images)}
        timings = interleave(ways, before=restore, **timing_options(arguments))
        row |= {f"{title}ms": timings.milliseconds("adapt"), f"{title}x passes": timings.ratio("adapt", "passes")}
    return row


def bare_passes(method: Method, images: Tensor) -> Work:
    """Make a function that encodes as many images and texts as `method.adapt(images)`, with and without gradient."""
    before = dataclasses.replace(method.passes)
    method.adapt(images)
    passes = method.passes - before
    model = method.classifier.model
    if isinstance(method, TrainedMethod):
        model, _ = adaptable_copy(model, text=method.adapts_text)
    encode_pixels = partial(encode_images, model)
    prepared = model.prepare(images)
    forward = [partial(encode_pixels, *piece) for piece in _pieces((prepared,), passes.images, VIEWS_PER_PASS)]
    backward = [
        partial(encode_pixels, *piece) for piece in _pieces((prepared,), passes.images_with_gradient, VIEWS_PER_PASS)
    ]
    if isinstance(model, PromptableModel) and passes.texts + passes.texts_with_gradient:
        tokens = model.tokenize([f"a photo of a {name}." for name in method.classifier.class_names])
        texts = (model.embed_tokens(tokens).detach(), tokens)
        forward += [partial(model.encode_embedded, *piece) for piece in _pieces(texts, passes.texts, TEXTS_PER_PASS)]
        pieces = _pieces(texts, passes.texts_with_gradient, TEXTS_PER_PASS)
        backward += [partial(model.encode_embedded, words.requires_grad_(), ends) for words, ends in pieces]

    def encode_all() -> None:
        with torch.no_grad():
            for encode in forward:
                encode()
        for encode in backward:
            encode().mean().backward()

    return encode_all


def _pieces(tensors: tuple[Tensor, ...], count: int, size: int) -> list[tuple[Tensor, ...]]:
    """Take `count` rows of tensors, repeated as needed, in pieces of at most `size`."""
    rows = torch.arange(count) % len(tensors[0])
    return [tuple(tensor[piece] for tensor in tensors) for piece in rows.split(size) if len(piece)]


if __name__ == "__main__":
    main()
