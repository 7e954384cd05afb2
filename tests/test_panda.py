"""Offset, settings and theorem against independent formulas."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from tta_panda import CLIP, Tent
from tta_panda.errors import InvalidInputError
from tta_panda.experiments.figures import simulated_accuracy, theorem_accuracy
from tta_panda.methods.features import Encoded, Features
from tta_panda.panda import Negatives, Panda


def unit(rng: np.random.Generator, *shape: int) -> np.ndarray:
    values = rng.normal(size=shape)
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


def split(classifier, raw, panda: Panda, count: int, assignment=None):
    """Embeddings and offset of features, the last `count` of which are of negatives."""
    features = Features(classifier, panda, seed=0)
    encoded = features.split(raw, Negatives(torch.zeros(count, 3, 4, 4), assignment))
    return encoded.corrected(features.decide(encoded))


def test_offset_is_the_mean_of_unit_negatives_and_is_not_normalised(tiny_classifier):
    rng = np.random.default_rng(0)
    raw = rng.normal(size=(12, 16)) * rng.uniform(0.1, 10, size=(12, 1))
    encoded = split(tiny_classifier, torch.from_numpy(raw).float(), Panda(beta=0.7), 2)
    normalised = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    np.testing.assert_allclose(encoded.features, normalised[:10], atol=1e-6)
    np.testing.assert_allclose(encoded.offset, normalised[10:].mean(0, keepdims=True), atol=1e-6)
    np.testing.assert_allclose(encoded.debiased, normalised[:10] - 0.7 * normalised[10:].mean(0), atol=1e-6)


def test_an_assigned_negative_is_subtracted_from_its_image_only(tiny_classifier):
    encoded = split(tiny_classifier, torch.eye(16)[:6], Panda(beta=1.0, average=False), 2, torch.tensor([1, 0, 0, 1]))
    expected = torch.eye(16)[:4]
    expected[[1, 2], 4] = -1
    expected[[0, 3], 5] = -1
    assert torch.equal(encoded.debiased, expected)


def test_detached_offset_sends_no_gradient_to_negatives(tiny_classifier):
    for detach in (False, True):
        raw = torch.randn(5, 16, requires_grad=True)
        split(tiny_classifier, raw, Panda(beta=0.5, detach_offset=detach), 1).debiased.sum().backward()
        assert (raw.grad[4].abs().sum() == 0) == detach


@pytest.mark.parametrize("sampler", ["pool", "same_cell", "within_image"])
def test_a_single_image_of_a_single_patch_has_no_offset(sampler, tiny_classifier, images):
    """Its only negative would be itself, and subtracting that would only shrink its logits."""
    plain = CLIP(tiny_classifier)
    for beta in (0.5, "auto"):
        method = CLIP(tiny_classifier, debias=Panda(beta=beta, patch_size=32, sampler=sampler))
        assert torch.equal(method.adapt(images[:1]), plain.adapt(images[:1]))
        assert method.passes.images == 1
    several = CLIP(tiny_classifier, debias=Panda(beta=0.5, patch_size=32, sampler=sampler)).adapt(images[:4])
    assert torch.equal(several, plain.adapt(images[:4])) == (sampler == "within_image")


def test_panda_shows_what_is_not_default():
    assert repr(Panda()) == "Panda(beta='auto')"
    assert repr(Panda(0.4, sampler="pool", average=False)) == "Panda(beta=0.4, sampler='pool', average=False)"


@pytest.mark.parametrize(
    "wrong",
    [
        {"beta": -0.1},
        {"beta": "slope"},
        {"beta": np.nan},
        {"beta": True},
        {"ratio": 0},
        {"ratio": 1.5},
        {"ratio": True},
        {"patch_size": 0},
        {"patch_size": 8.0},
        {"average": 1},
        {"pool": -1},
        {"negatives_half_life": 0.5},
        {"refresh_every": 0},
    ],
    ids=str,
)
def test_panda_refuses_what_it_cannot_use(wrong):
    [(name, value)] = wrong.items()
    with pytest.raises(InvalidInputError, match=f"{name} must be .* got {value!r}|{name} must be .* got {value}"):
        Panda(**wrong)


def test_one_beta_per_batch_however_many_passes(tiny_classifier, images):
    method = Tent(tiny_classifier, debias=Panda())
    batch, auto = method.features.prepare(images[:10]), method.features.debiaser.auto
    first = method.encode(batch)
    fresh = dataclasses.replace(batch, negatives=None)
    again, part = method.encode(fresh), method.encode(batch.select(torch.tensor([1, 4])))
    assert batch.correction.beta > 0
    for encoded in (first, again, part):
        torch.testing.assert_close(encoded.shift, batch.correction.beta * encoded.offset, rtol=0, atol=0)
    assert not torch.equal(first.offset, again.offset)
    torch.testing.assert_close(part.debiased, first.debiased[[1, 4]])
    assert auto.offset.weight == 10
    method.encode(method.features.prepare(images[10:15]))
    assert auto.offset.weight == pytest.approx(10 * 0.5 ** (5 / 200) + 5)


def test_a_batch_without_negatives_cannot_be_debiased(tiny_classifier):
    with pytest.raises(InvalidInputError, match="without negatives"):
        CLIP(tiny_classifier, debias=Panda(beta=0.5)).adapt_encoded(Encoded(torch.eye(16)))


@pytest.mark.parametrize("noise", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_theorem_agrees_with_simulation(noise, correlation, beta):
    samples = 200_000
    simulated = simulated_accuracy(noise, correlation, beta, samples, np.random.default_rng(7))
    expected = theorem_accuracy(noise, correlation, beta)
    assert abs(simulated - expected) < 4 * np.sqrt(expected * (1 - expected) / samples)


def test_theorem_without_offset_and_at_its_best():
    assert theorem_accuracy(2.0) == pytest.approx(0.5 + np.arctan(1 / 2.0) / np.pi)
    betas = np.linspace(0, 1, 101)
    best = betas[np.argmax([theorem_accuracy(1.5, 0.6, beta) for beta in betas])]
    assert best == pytest.approx(0.6)


def test_theorem_holds_along_a_direction_of_a_space():
    rng = np.random.default_rng(3)
    dimension, samples, noise, beta = 4, 200_000, 1.2, 0.5
    root = rng.normal(size=(dimension, dimension))
    correlation = root @ root.T
    correlation *= 0.8 / np.linalg.eigvalsh(correlation).max()  # symmetric, a valid correlation matrix of n with v_corr
    direction = unit(rng, dimension)
    of_class, of_corruption, independent = rng.standard_normal((3, samples, dimension))
    rest = np.linalg.cholesky(np.eye(dimension) - correlation @ correlation)
    negative = of_corruption @ correlation + independent @ rest.T
    debiased = of_class + noise * of_corruption - beta * noise * negative
    simulated = np.mean(np.sign(debiased @ direction) == np.sign(of_class @ direction))
    expected = theorem_accuracy(noise, direction @ correlation @ direction, beta)
    assert abs(simulated - expected) < 4 * np.sqrt(expected * (1 - expected) / samples)
