"""`beta="auto"` against straight-line numpy, and what holds of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tta_panda.panda import Evidence
from tta_panda.panda.beta import AutoBeta
from tta_panda.panda.statistics import ClassDiversity, agreement

GRID = np.linspace(0, 1, 21)
SCALE = 20.0

Stream = list[tuple[np.ndarray, np.ndarray]]


def softmax(logits: np.ndarray) -> np.ndarray:
    p = np.exp(logits - logits.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def make_stream(classes: int, sizes=(40, 40, 9, 1), noise: float = 0.5, seed: int = 0) -> Stream:
    """Similarities of images of all classes under a pull that negatives share, and of the negatives."""
    rng = np.random.default_rng(seed)
    pull = 0.1 * rng.normal(size=classes)
    made = []
    for size in sizes:
        of_class = 0.15 * np.eye(classes)[rng.integers(classes, size=size)]
        images = of_class + pull + 0.03 * rng.normal(size=(size, classes))
        made.append((images, (pull + noise * 0.1 * rng.normal(size=classes))[None]))
    return made


def choices(stream: Stream, auto: AutoBeta | None = None) -> list[float]:
    auto = auto or AutoBeta()
    batches = [tuple(map(torch.from_numpy, batch)) for batch in stream]
    return [float(auto.choose(Evidence(plain, plain, bias, SCALE, 9.0))) for plain, bias in batches]


def weights_of_age(stream: Stream, upto: int, half_life: float = 200.0) -> list[float]:
    sizes = [len(plain) for plain, _ in stream[: upto + 1]]
    return [0.5 ** (sum(sizes[place + 1 :]) / half_life) for place in range(upto + 1)]


def informative(stream: Stream, upto: int) -> float:
    """The best beta of the grid by mutual information, if that gains 1e-4 nats."""
    ages = np.concatenate([[age] * len(p) for age, (p, _) in zip(weights_of_age(stream, upto), stream, strict=False)])
    gains = []
    for beta in GRID:
        p = np.concatenate([softmax(SCALE * (plain - beta * bias)) for plain, bias in stream[: upto + 1]])
        mean = (ages[:, None] * p).sum(0) / ages.sum()
        conditional = (ages * -(p * np.log(p)).sum(1)).sum() / ages.sum()
        gains.append(-(mean * np.log(mean)).sum() - conditional)
    return GRID[np.argmax(gains)] if max(gains) - gains[0] >= 1e-4 else 0.0


def reference(stream: Stream) -> list[float]:
    """Everything from the beginning for each batch, in double precision."""
    chosen: list[float] = []
    for upto in range(len(stream)):
        ages, past = weights_of_age(stream, upto), stream[: upto + 1]
        total = weight = mean = offset = images = 0.0
        for age, (plain, bias), last in zip(ages, past, [0.0, *chosen], strict=True):
            absent = 1 - softmax(SCALE * (plain - last * bias))
            total = total + age * ((absent * plain).sum(0) + 0.02 * len(plain) * plain.mean())
            weight = weight + age * (absent.sum(0) + 0.02 * len(plain))
            offset, images = offset + age * len(plain) * bias[0], images + age * len(plain)
        level, offset = total / weight - (total / weight).mean(), offset / images - (offset / images).mean()
        up = down = seen = 0.0
        for plain, _ in past:
            fade = 0.5 ** (len(plain) / 200)
            mean, seen = fade * mean + plain.sum(0), fade * seen + len(plain)
            deviations = plain - mean / seen
            deviations -= deviations.mean(1, keepdims=True)
            up, down = fade * up + deviations.max(1).sum(), fade * down - deviations.min(1).sum()
        diversity = np.clip((up / down - 0.95) / 0.1, 0, 1)
        classes, r = len(level), np.corrcoef(level, offset)[0, 1]
        agreed = max(0, 1 - 1.5 / 9 * (1 - r**2) / r**2) if r > 0 else 0.0
        slope = min(1, np.sqrt(max(0, r)) * np.linalg.norm(level) / np.linalg.norm(offset))
        part = 0.5 / (1 + classes / 50) if classes <= 450 else 0.0
        best = informative(stream, upto) if part else 0.0
        chosen.append(diversity * agreed * ((1 - part) * slope + part * best))
    return chosen


@pytest.mark.parametrize("classes", [3, 10, 60, 500])
def test_auto_equals_its_formula(classes):
    stream = make_stream(classes, sizes=(40, 40, 9))
    ours = choices(stream)
    np.testing.assert_allclose(ours, reference(stream), atol=1e-4)
    assert classes == 3 or 0.2 < ours[-1] <= 1  # a bias that the negatives share is found


def test_two_classes_have_half_of_what_is_most_informative():
    stream = make_stream(2, noise=0.0)
    best = [informative(stream, upto) for upto in range(len(stream))]
    assert max(best) > 0
    np.testing.assert_allclose(choices(stream), np.array(best) / 2, atol=1e-6)


def test_what_all_classes_share_makes_no_difference():
    """Logits that differ by a constant give the same predictions."""
    stream = make_stream(8)
    moved = [(plain + 0.3, bias - 0.2) for plain, bias in stream]
    np.testing.assert_allclose(choices(stream), choices(moved), atol=1e-6)


def test_one_offset_gives_the_same_as_equal_ones_for_all_images():
    stream = make_stream(10)
    repeated = [(plain, bias.repeat(len(plain), axis=0)) for plain, bias in stream]
    np.testing.assert_allclose(choices(stream), choices(repeated), atol=1e-6)


@pytest.mark.parametrize("classes", [2, 3, 10, 1000])
def test_betas_lie_between_0_and_1(classes):
    for sizes in ((1, 1, 1), (5, 1, 5), (100,)):
        assert all(0 <= beta <= 1 for beta in choices(make_stream(classes, sizes)))
    flat = np.full((4, classes), 0.2)
    assert choices([(flat, flat[:1])]) == [0.0]


def test_an_offset_that_points_elsewhere_is_not_subtracted():
    assert choices([(plain, -bias) for plain, bias in make_stream(10, noise=0.0)])[-1] == 0.0


def test_a_new_corruption_is_followed():
    """First a pull that negatives share, then one that they do not; what was learned of the first is forgotten."""
    before, after = make_stream(10, sizes=(50,) * 8), make_stream(10, sizes=(50,) * 20, seed=1)
    chosen = choices(before + [(plain, -bias) for plain, bias in after])
    assert chosen[7] > 0.5
    assert chosen[-1] == 0.0


def test_little_is_subtracted_in_a_stream_of_one_class_that_negatives_look_like():
    rng = np.random.default_rng(0)
    offset = 0.1 * np.eye(10)[[3]] + 0.01 * rng.normal(size=(1, 10))
    alone = [(0.15 * np.eye(10)[[3] * 20] + 0.04 * rng.normal(size=(20, 10)), offset) for _ in range(6)]
    assert choices(alone)[-1] < 0.6


def test_diversity_tells_several_classes_from_one():
    rng = np.random.default_rng(1)
    noise = 0.05 * rng.normal(size=(400, 12))
    of_class = 0.3 * np.eye(12)[rng.integers(12, size=400)]

    def diversity(similarities: np.ndarray) -> float:
        return ClassDiversity(200.0).update(torch.from_numpy(similarities))

    assert diversity(noise + of_class) == 1.0
    assert diversity(noise + 0.3 * np.eye(12)[[5]]) < 0.75
    assert diversity(-of_class) == 0.0
    assert diversity(noise[:, :2]) == pytest.approx(0.5)
    assert diversity(noise[:1]) == 0.0  # one image does not differ from itself


def test_agreement_is_none_by_chance_and_full_for_equals():
    rng = np.random.default_rng(2)
    vectors = torch.from_numpy(rng.normal(size=(200, 2, 10)))
    vectors = vectors - vectors.mean(dim=-1, keepdim=True)
    assert np.mean([agreement(first, second, 9.0) > 0 for first, second in vectors]) < 0.2
    first = vectors[0, 0]
    assert agreement(first, 3 * first, 9.0) == pytest.approx(1.0)
    assert agreement(first, -first, 9.0) == agreement(first, 0 * first, 9.0) == 0.0
    assert agreement(torch.tensor([1.0, -1.0]), torch.tensor([1.0, -1.0]), 1.0) == 0.0


def test_auto_goes_on_from_its_state_and_forgets_it_on_reset():
    stream = make_stream(10, sizes=(30, 30, 30))
    expected = choices(stream)
    first, second = AutoBeta(), AutoBeta()
    choices(stream[:2], first)
    second.load_state_dict(first.state_dict())
    assert choices(stream[2:], second) == expected[2:]
    second.reset()
    assert second.beta is None
    assert choices(stream, second) == expected
