"""What the caller's tensors and settings of torch are, before and after: every method leaves them alone."""

from __future__ import annotations

import pytest
import torch
from conftest import TINY_OPTIONS, make_tiny
from torch import Tensor

from tta_panda import ZeroShotClassifier
from tta_panda.errors import InvalidInputError
from tta_panda.methods import DEBIASES, METHODS, create_method
from tta_panda.methods.base import Method

VARIANTS = [f"{base}{'+' if debias else ''}{debias}" for base in METHODS for debias in ("", *DEBIASES)]


def tiny_classifier() -> ZeroShotClassifier:
    return ZeroShotClassifier(make_tiny(), ["heart", "star", "anchor", "cloud"])


def make(variant: str, classifier: ZeroShotClassifier | None = None) -> Method:
    options = TINY_OPTIONS.get(variant.partition("+")[0], {})
    return create_method(variant, classifier or tiny_classifier(), **options)


def adapted(variant: str, images: Tensor) -> list[Tensor]:
    method = make(variant)
    return [method.adapt(batch) for batch in images.split(6)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_images_of_a_graph_are_neither_trained_nor_kept(variant: str, images: Tensor) -> None:
    """A graph that was used once is freed; a second batch of the same graph must not need it."""
    plain = images[:12] / 255
    leaf = plain.clone().requires_grad_()
    attached = leaf * 1.0
    expected, found = adapted(variant, plain), adapted(variant, attached)
    assert leaf.grad is None
    assert all(torch.equal(one, other) and not one.requires_grad for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("variant", ["clip+panda", "tent", "tpt"])
def test_lists_of_pictures_of_a_graph(variant: str, images: Tensor) -> None:
    pictures = [(picture / 255).requires_grad_() for picture in images[:4]]
    make(variant).adapt(pictures)
    assert all(picture.grad is None for picture in pictures)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_default_dtype_changes_nothing(variant: str, images: Tensor) -> None:
    """A classifier is made once; methods are made and used under whatever default the caller sets."""
    expected, classifier = adapted(variant, images[:18]), tiny_classifier()
    torch.set_default_dtype(torch.float64)
    try:
        method = make(variant, classifier)
        found = [method.adapt(batch) for batch in images[:18].split(6)]
    finally:
        torch.set_default_dtype(torch.float32)
    for logits, other in zip(found, expected, strict=True):
        assert logits.dtype == torch.float32
        torch.testing.assert_close(logits, other, rtol=0, atol=1e-4)


def test_tensors_without_values_are_refused(images: Tensor) -> None:
    method = make("clip")
    for batch in (images[:2].to("meta"), (images[:2] / 255).to("meta"), images[:2].to_sparse()):
        with pytest.raises(InvalidInputError, match="dense tensor with values"):
            method.adapt(batch)
