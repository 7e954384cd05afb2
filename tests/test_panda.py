"""Offset, choice of beta and theorem against independent formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tta_panda.errors import InvalidInputError
from tta_panda.panda import Batch, Debiaser, Encoded, Panda, split_encoded, theorem
from tta_panda.panda.beta import AutoBeta


def unit(rng: np.random.Generator, *shape: int) -> np.ndarray:
    values = rng.normal(size=shape)
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


def test_offset_is_the_mean_of_unit_negatives_and_is_not_normalised():
    rng = np.random.default_rng(0)
    raw = rng.normal(size=(12, 6)) * rng.uniform(0.1, 10, size=(12, 1))
    batch = Batch(torch.zeros(10, 3, 4, 4), torch.zeros(2, 3, 4, 4), number=1)
    encoded = split_encoded(torch.from_numpy(raw).float(), batch)
    normalised = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    np.testing.assert_allclose(encoded.features, normalised[:10], atol=1e-6)
    np.testing.assert_allclose(encoded.offset, normalised[10:].mean(0, keepdims=True), atol=1e-6)
    debiased = Debiaser(Panda(beta=0.7), 4, 0).debias(encoded, torch.rand(3, 6), 100.0)
    np.testing.assert_allclose(debiased, normalised[:10] - 0.7 * normalised[10:].mean(0), atol=1e-6)


def test_an_assigned_negative_is_subtracted_from_its_image_only():
    raw = torch.eye(6)
    batch = Batch(torch.zeros(4, 3, 4, 4), torch.zeros(2, 3, 4, 4), torch.tensor([1, 0, 0, 1]), 1)
    debiased = Debiaser(Panda(beta=1.0, average=False), 4, 0).debias(split_encoded(raw, batch), torch.rand(3, 6), 1.0)
    expected = torch.eye(6)[:4]
    expected[[1, 2], 4] = -1
    expected[[0, 3], 5] = -1
    assert torch.equal(debiased, expected)


def test_detached_offset_sends_no_gradient_to_negatives():
    for detach in (False, True):
        raw = torch.randn(5, 4, requires_grad=True)
        batch = Batch(torch.zeros(4, 3, 4, 4), torch.zeros(1, 3, 4, 4), number=1)
        panda = Debiaser(Panda(beta=0.5, detach_offset=detach), 4, 0)
        panda.debias(split_encoded(raw, batch), torch.rand(3, 4), 1.0).sum().backward()
        assert (raw.grad[4].abs().sum() == 0) == detach


def reference_auto_beta(stream, scale):
    """Mutual information on a grid, times the positive part of the correlation; numpy, whole stream at once."""
    chosen = []
    for upto in range(1, len(stream) + 1):
        plain = np.concatenate([similarities for similarities, _ in stream[:upto]])
        bias = np.concatenate([np.repeat(b, len(similarities), axis=0) for similarities, b in stream[:upto]])
        information = []
        for beta in np.linspace(0, 1, 21):
            logits = scale * (plain - beta * bias)
            p = np.exp(logits - logits.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            mean = p.mean(0)
            information.append(-(mean * np.log(mean)).sum() + (p * np.log(p)).sum(1).mean())
        correlation = np.corrcoef(plain.mean(0), bias.mean(0))[0, 1]
        chosen.append(np.linspace(0, 1, 21)[np.argmax(information)] * max(0, correlation))
    return chosen


def test_auto_beta_equals_an_independent_reference_over_a_stream():
    rng = np.random.default_rng(1)
    text = unit(rng, 5, 8)
    shared = 2 * rng.normal(size=8)
    stream = []
    for size in (30, 30, 7):
        features = rng.normal(size=(size, 8)) + shared
        features /= np.linalg.norm(features, axis=1, keepdims=True)
        offset = (shared + 0.3 * rng.normal(size=8))[None]
        offset /= np.linalg.norm(offset)
        stream.append((features @ text.T, offset @ text.T))
    rule = AutoBeta()
    ours = [rule.choose(torch.from_numpy(plain), torch.from_numpy(bias), 20.0) for plain, bias in stream]
    np.testing.assert_allclose(ours, reference_auto_beta(stream, 20.0), atol=1e-4)
    assert 0.3 < ours[-1] <= 1  # a bias that the negatives share is found


def test_auto_beta_leaves_a_bias_alone_that_negatives_do_not_share():
    rng = np.random.default_rng(2)
    text = np.eye(4)
    features = np.tile([1.0, 0.0, 0.0, 0.0], (50, 1)) + 0.01 * rng.normal(size=(50, 4))  # one class only: label shift
    rule = AutoBeta()
    chosen = rule.choose(torch.from_numpy(features @ text.T), torch.tensor([[-0.5, 0.2, 0.2, 0.1]]), 10.0)
    assert chosen == 0.0


def test_one_beta_per_batch_however_many_passes():
    panda = Debiaser(Panda(), 4, 0)
    first = Encoded(torch.eye(3), torch.full((1, 3), 0.4), number=1)
    text = torch.eye(3)
    panda.debias(first, text, 10.0)
    seen = float(panda.rule.images)
    panda.debias(first, text, 10.0)
    assert float(panda.rule.images) == seen
    panda.debias(first._replace(number=2), text, 10.0)
    assert float(panda.rule.images) == seen + 3


def test_a_batch_without_negatives_cannot_be_debiased():
    with pytest.raises(InvalidInputError, match="without negatives"):
        Debiaser(Panda(beta=0.5), 4, 0).debias(Encoded(torch.eye(3)), torch.eye(3), 1.0)


@pytest.mark.parametrize("noise", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_theorem_agrees_with_simulation(noise, correlation, beta):
    samples = 200_000
    simulated = theorem.simulate_accuracy(noise, correlation, beta, samples, np.random.default_rng(7))
    expected = theorem.accuracy(noise, correlation, beta)
    assert abs(simulated - expected) < 4 * np.sqrt(expected * (1 - expected) / samples)


def test_theorem_without_offset_and_at_its_best():
    assert theorem.accuracy(2.0) == pytest.approx(0.5 + np.arctan(1 / 2.0) / np.pi)
    betas = np.linspace(0, 1, 101)
    best = betas[np.argmax([theorem.accuracy(1.5, 0.6, beta) for beta in betas])]
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
    expected = theorem.accuracy(noise, direction @ correlation @ direction, beta)
    assert abs(simulated - expected) < 4 * np.sqrt(expected * (1 - expected) / samples)
