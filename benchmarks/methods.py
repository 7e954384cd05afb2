"""How close methods come to the encoder passes that they cannot avoid.

python benchmarks/methods.py --method clip,tent,dmn --classes 1000
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from functools import partial

import torch
from timer import Work, interleave
from torch import Tensor
from workload import add_method, foggy_images, load_classifier, make_parser, print_table, timing_options, warm_up

from tta_panda import TrainedMethod, UnsupportedModelError, create_method
from tta_panda.methods.adaptation import adaptable_copy
from tta_panda.methods.base import Method
from tta_panda.models import Classifier
from tta_panda.models.base import PromptableModel

IMAGES_PER_PASS, TEXTS_PER_PASS = 128, 500


def main() -> None:
    parser = make_parser(__doc__)
    add_method(parser)
    arguments = parser.parse_args()
    classifier = load_classifier(arguments)
    images = foggy_images(arguments.batch_size, classifier.model.image_size)
    rows, notes = [], [f"{arguments.model}, {len(images)} images, {arguments.classes} classes; times bare passes."]
    for name in arguments.method.split(","):
        try:
            rows.append(measure(name, classifier, images, arguments))
        except UnsupportedModelError as error:
            notes.append(f"{name} is skipped: {error}")
    print_table(rows, " ".join(notes))


def measure(name: str, classifier: Classifier, images: Tensor, arguments: argparse.Namespace) -> dict[str, object]:
    """One row: the method and the method with Panda, each beside encoder passes over as many images and texts."""
    row: dict[str, object] = {"method": name}
    for title, full_name in (("", name), ("panda: ", f"{name}+panda")):
        method = create_method(full_name, classifier)
        restore = {"adapt": warm_up(method, images)}
        ways: dict[str, Work] = {"passes": bare_passes(method, images), "adapt": partial(method.adapt, images)}
        timings = interleave(ways, before=restore, **timing_options(arguments))
        row |= {f"{title}ms": timings.milliseconds("adapt"), f"{title}x passes": timings.ratio("adapt", "passes")}
    return row


def bare_passes(method: Method, images: Tensor) -> Callable[[], None]:
    """A function that encodes as many images and texts as `method.adapt(images)`, with and without gradient."""
    before = dataclasses.replace(method.passes)
    method.adapt(images)
    passes = method.passes - before
    model = method.classifier.model
    if isinstance(method, TrainedMethod):
        model, _ = adaptable_copy(model, text=method.adapts_text)
    jobs: list[tuple[Callable[..., Tensor], bool, list[tuple[Tensor, ...]]]] = []
    prepared = model.prepare(images)
    for count, gradient in ((passes.images, False), (passes.images_with_gradient, True)):
        jobs.append((model.encode_image, gradient, _pieces((prepared,), count, IMAGES_PER_PASS)))
    if isinstance(model, PromptableModel) and passes.texts + passes.texts_with_gradient:
        tokens = model.tokenize([f"a photo of a {name}." for name in method.classifier.class_names])
        texts = (model.embed_tokens(tokens).detach(), tokens)
        for count, gradient in ((passes.texts, False), (passes.texts_with_gradient, True)):
            jobs.append((model.encode_embedded, gradient, _pieces(texts, count, TEXTS_PER_PASS)))

    def encode_all() -> None:
        for encode, gradient, pieces in jobs:
            for first, *others in pieces:
                inputs = first.detach().requires_grad_(gradient and encode is not model.encode_image)
                with torch.set_grad_enabled(gradient):
                    embedded = encode(inputs, *others)
                if gradient:
                    embedded.mean().backward()

    return encode_all


def _pieces(tensors: tuple[Tensor, ...], count: int, size: int) -> list[tuple[Tensor, ...]]:
    """`count` rows of tensors, repeated as needed, in pieces of at most `size`."""
    rows = torch.arange(count) % len(tensors[0])
    return [tuple(tensor[piece] for tensor in tensors) for piece in rows.split(size) if len(piece)]


if __name__ == "__main__":
    main()
