"""What methods say of the bias that they found."""

from __future__ import annotations

import pytest
import torch

from tta_panda import CLIP, Centering, Level, Panda
from tta_panda.panda.beta import AutoBeta
from tta_panda.panda.debias import Evidence


def evidence(similarities: torch.Tensor, offset: torch.Tensor) -> Evidence:
    return Evidence(torch.zeros(len(similarities), 4), similarities, offset[None], 100.0, similarities.shape[1] - 1.0)


def stream(bias: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Similarities (B, K) of images of these classes, with noise and one bias for all."""
    noise = 0.01 * torch.randn(len(labels), len(bias), generator=torch.Generator().manual_seed(0))
    return bias + noise + 0.1 * torch.nn.functional.one_hot(labels, len(bias))


BIAS = torch.linspace(-0.05, 0.05, 10)
LABELS = torch.arange(100) % 10


@pytest.mark.parametrize(
    ("offset", "labels", "said"),
    [
        (2 * BIAS, LABELS, "was subtracted from the last batch (r = 1.00)"),
        (-BIAS, LABELS, "do not share a bias beyond chance (r = -1.00)"),
    ],
)
def test_auto_beta_says_why_it_subtracts_nothing(offset, labels, said):
    auto = AutoBeta()
    assert auto.explain() == "No batch has been seen."
    auto.choose(evidence(stream(BIAS, labels), offset))
    assert said in auto.explain()


def test_a_stream_of_a_single_class_is_named_as_the_reason():
    auto = AutoBeta()
    noise = -torch.empty(100, 10).exponential_(generator=torch.Generator().manual_seed(0))  # further down than up
    auto.choose(evidence(BIAS + 0.01 * noise, BIAS))
    assert auto.beta == 0
    assert "look like a single class" in auto.explain()


def test_methods_name_the_classes_that_negatives_look_like(tiny_classifier):
    images = torch.rand(20, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    for debias in (Panda(beta=0.5), Panda(), Level(), Level(gate=Panda()), Centering()):
        method = CLIP(tiny_classifier, debias=debias)
        method.adapt(images)
        assert "subtracted" in method.explain() or "as set" in method.explain()
        if isinstance(debias, Panda):
            negatives = method.features.debiaser.total
            nearest = int((tiny_classifier.class_embeddings @ negatives).argmax())
            assert f"look like {tiny_classifier.class_names[nearest]}" in method.explain()
    assert CLIP(tiny_classifier).explain() == CLIP(tiny_classifier, debias=Panda(beta=0.0)).explain() == ""
