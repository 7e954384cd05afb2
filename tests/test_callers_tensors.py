"""What the caller's tensors and settings of torch are, before and after: every method leaves them alone."""

from __future__ import annotations

import functools

import pytest
import torch
from conftest import TINY_OPTIONS, make_tiny
from torch import Tensor

from tta_panda import ZeroShotClassifier
from tta_panda.errors import InvalidInputError
from tta_panda.methods import DEBIASES, METHODS, create_method
from tta_panda.methods.base import Method

VARIANTS = [name for base in METHODS for name in (base, f"{base}+panda")]
VARIANTS += [f"{base}+{debias}" for base in ("clip", "tent", "tps", "dmn") for debias in DEBIASES if debias != "panda"]
every_variant = pytest.mark.parametrize("variant", VARIANTS)


def tiny_classifier() -> ZeroShotClassifier:
    return ZeroShotClassifier(make_tiny(), ["heart", "star", "anchor", "cloud"])


def make(variant: str, classifier: ZeroShotClassifier | None = None) -> Method:
    options = TINY_OPTIONS.get(variant.partition("+")[0], {})
    return create_method(variant, classifier or tiny_classifier(), **options)


def adapted(method: Method, images: Tensor) -> list[Tensor]:
    return [method.adapt(batch) for batch in images.split(6)]


@functools.cache
def expected(variant: str, images: Tensor) -> list[Tensor]:
    return adapted(make(variant), images)


@pytest.fixture(scope="module")
def pictures(images: Tensor) -> Tensor:
    """Two batches, as floats."""
    return images[:12] / 255


@every_variant
def test_images_of_a_graph_are_neither_trained_nor_kept(variant: str, pictures: Tensor) -> None:
    """A graph that was used once is freed; a second batch of the same graph must not need it."""
    leaf = pictures.clone().requires_grad_()
    found = adapted(make(variant), leaf * 1.0)
    assert leaf.grad is None and not any(logits.requires_grad for logits in found)
    assert all(map(torch.equal, found, expected(variant, pictures)))


@pytest.mark.parametrize("variant", ["clip+panda", "tent", "tpt"])
def test_lists_of_pictures_of_a_graph(variant: str, images: Tensor) -> None:
    pictures = [(picture / 255).requires_grad_() for picture in images[:4]]
    make(variant).adapt(pictures)
    assert all(picture.grad is None for picture in pictures)


@every_variant
def test_the_default_dtype_changes_nothing(variant: str, pictures: Tensor) -> None:
    """A classifier is made once; methods are made and used under whatever default the caller sets."""
    classifier = tiny_classifier()
    torch.set_default_dtype(torch.float64)
    try:
        found = adapted(make(variant, classifier), pictures)
    finally:
        torch.set_default_dtype(torch.float32)
    for logits, other in zip(found, expected(variant, pictures), strict=True):
        assert logits.dtype == torch.float32
        torch.testing.assert_close(logits, other, rtol=0, atol=1e-4)


@pytest.mark.parametrize("variant", ["clip+panda+level", "tent+panda"])
def test_the_settings_of_kernels_stay_those_of_the_caller(variant: str, pictures: Tensor) -> None:
    def settings() -> list[object]:
        cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        flags = [cuda.allow_tf32, cuda.allow_fp16_reduced_precision_reduction, torch.backends.mkldnn.enabled]
        flags += [cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, torch.get_num_threads()]
        return [*flags, torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()]

    before = settings()
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    try:
        chosen = settings()
        adapted(make(variant), pictures)
        assert settings() == chosen != before
    finally:
        torch.set_float32_matmul_precision(before[-2])
        torch.backends.cudnn.benchmark = before[4]
    assert settings() == before


def test_tensors_without_values_are_refused(images: Tensor) -> None:
    method = make("clip")
    for batch in (images[:2].to("meta"), (images[:2] / 255).to("meta"), images[:2].to_sparse()):
        with pytest.raises(InvalidInputError, match="dense tensor with values"):
            method.adapt(batch)
