"""Where corrections come from: small batches under Panda, centring and levels, against straight-line numpy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from tta_panda import CLIP, Tent
from tta_panda.data import load_data
from tta_panda.errors import InvalidInputError
from tta_panda.evaluation.loop import evaluate, run_stream
from tta_panda.methods import create_method, list_methods
from tta_panda.methods.features import Encoded
from tta_panda.panda import Centering, Evidence, Level, Panda, PandaDebiaser
from tta_panda.panda.signature import signatures

SCALE = 20.0


def unit(rng: np.random.Generator, *shape: int) -> np.ndarray:
    values = rng.normal(size=shape)
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


def softmax(logits: np.ndarray) -> np.ndarray:
    p = np.exp(logits - logits.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def numbered(count: int, start: int = 0) -> Tensor:
    """Images of one value each, which negatives keep."""
    return torch.arange(start, start + count).float().view(-1, 1, 1, 1).expand(-1, 3, 8, 8)


# --- small batches --------------------------------------------------------------------------------------------------


def values_in(negatives: Tensor) -> set[int]:
    return {int(value) for value in negatives.unique()}


def drawn_sizes(source: PandaDebiaser, sizes: list[int]) -> list[int]:
    """How many negatives are drawn for batches of these sizes."""
    drawn = []
    for size in sizes:
        negatives = source.draw(torch.rand(size, 3, 8, 8))
        source.offset(torch.rand(len(negatives.images), 5), negatives)
        drawn.append(len(negatives.images))
    return drawn


def test_large_batches_have_their_own_negatives_as_in_the_paper():
    own, joined = (PandaDebiaser(Panda(pool=pool), 4, seed=0) for pool in (0, 32))
    for start in (0, 40, 80):
        first, second = own.draw(numbered(40, start)), joined.draw(numbered(40, start))
        assert torch.equal(first.images, second.images)
        assert values_in(first.images) <= set(range(start, start + 40))
        embedded = torch.rand(4, 5)
        assert torch.equal(joined.offset(embedded, second), embedded.mean(dim=0, keepdim=True))
        own.offset(embedded, first)


def test_one_negative_for_ten_single_images_cut_from_the_latest():
    source = PandaDebiaser(Panda(pool=20), 4, seed=0)
    seen = []
    for image in range(60):
        negatives = source.draw(numbered(1, image))
        source.offset(torch.rand(len(negatives.images), 5), negatives)
        if len(negatives.images):
            seen.append(image)
            assert values_in(negatives.images) <= set(range(max(0, image - 19), image + 1))
    assert seen == [0, 10, 20, 30, 40, 50]


@pytest.mark.parametrize(
    ("panda", "sizes", "expected"),
    [
        (Panda(), [4] * 6, [1, 0, 0, 1, 0, 0]),
        (Panda(), [15, 15], [2, 2]),
        (Panda(pool=0), [1, 1, 1], [1, 1, 1]),
        (Panda(refresh_every=3), [40] * 5, [4, 0, 0, 4, 0]),
        (Panda(refresh_every=3), [1] * 5, [1, 0, 0, 1, 0]),
        (Panda(average=False, refresh_every=3), [40, 40], [4, 4]),
        (Panda(sampler="same_cell"), [4, 4], [1, 1]),
        (Panda(ratio=0.01), [40, 40], [1, 1]),
    ],
    ids=str,
)
def test_when_negatives_are_drawn(panda, sizes, expected):
    assert drawn_sizes(PandaDebiaser(panda, 4, seed=0), sizes) == expected


def test_the_offset_of_small_batches_is_a_running_mean():
    source, rng = PandaDebiaser(Panda(pool=100, negatives_half_life=30.0), 4, seed=0), np.random.default_rng(0)
    total, weight = np.zeros(5), 0.0
    for _ in range(4):
        negatives = source.draw(torch.rand(20, 3, 8, 8))
        embedded = rng.normal(size=(2, 5))
        keep = 0.5 ** (20 / 30)
        total, weight = keep * total + embedded.sum(0), keep * weight + 2
        for _ in range(2):  # a second pass over the same batch changes nothing
            offset = source.offset(torch.from_numpy(embedded), negatives)
            np.testing.assert_allclose(offset[0], total / weight)


def test_between_refreshes_the_last_offset_is_used(tiny_classifier, images):
    method = CLIP(tiny_classifier, debias=Panda(beta=0.5, refresh_every=2))
    first = method.features.encode(method.features.prepare(images[:40]))
    second = method.features.encode(method.features.prepare(images[:40].flip(0)))
    assert torch.equal(first.offset, second.offset)
    assert (len(first.negatives), len(second.negatives)) == (4, 0)


def test_single_images_cost_a_tenth_more(tiny_classifier, images):
    method = CLIP(tiny_classifier, debias=Panda())
    for image in images[:40].split(1):
        method.adapt(image)
    assert method.passes.images == 44


def test_the_gradient_flows_through_negatives_of_this_batch_alone(tiny_classifier, images):
    method = Tent(tiny_classifier, debias=Panda(beta=0.5))
    for image in images[:3].split(1):
        method.adapt(image)
    assert method.passes.images_with_gradient == 4


# --- centring -------------------------------------------------------------------------------------------------------


def evidence(features: np.ndarray, text: np.ndarray, offset: np.ndarray | None = None) -> Evidence:
    bias = None if offset is None else torch.from_numpy(offset @ text.T)
    return Evidence(torch.from_numpy(features), torch.from_numpy(features @ text.T), bias, SCALE, 7.0)


def test_centring_is_cbc_on_the_batch_and_decays_over_the_stream():
    rng = np.random.default_rng(0)
    text, batches = unit(rng, 6, 8), [unit(rng, size, 8) for size in (20, 5, 1)]
    of_batch, of_stream = Centering(beta=0.8).start(8, 0), Centering(half_life=10.0).start(8, 0)
    total, images = np.zeros(8), 0.0
    for features in batches:
        keep = 0.5 ** (len(features) / 10)
        total, images = keep * total + features.sum(0), keep * images + len(features)
        np.testing.assert_allclose(of_batch.decide(evidence(features, text)).shift[0], 0.8 * features.mean(0))
        np.testing.assert_allclose(of_stream.decide(evidence(features, text)).shift[0], total / images)


def test_half_the_mean_predicts_as_distribution_normalization(tiny_classifier, images):
    """Zhou et al. 2023 also subtract half the mean of the texts: a constant in all logits of an image."""
    v = CLIP(tiny_classifier).features.encode(CLIP(tiny_classifier).features.prepare(images[:20])).features
    t = tiny_classifier.class_embeddings
    similarities = (v - v.mean(dim=0) / 2) @ (t - t.mean(dim=0) / 2).T
    got = CLIP(tiny_classifier, debias=Centering(beta=0.5)).adapt(images[:20])
    expected = (tiny_classifier.logit_scale * similarities).log_softmax(dim=1)
    torch.testing.assert_close(got.log_softmax(dim=1), expected, rtol=1e-4, atol=1e-4)


def test_centring_makes_the_mean_logits_of_a_batch_equal(tiny_classifier, images):
    method = create_method("cbc", tiny_classifier)
    assert method.debias == Centering(beta=1.0)
    np.testing.assert_allclose(method.adapt(images[:16]).mean(dim=0), 0, atol=1e-4)


# --- level ----------------------------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """Similarities of images (B, K) and of the offset (1, K), and the images."""

    plain: np.ndarray
    offset: np.ndarray
    images: np.ndarray  # (B, 3, H, W), floats


def reference_signature(image: np.ndarray) -> np.ndarray:
    """The signature of an image (3, H, W)."""

    def size(*differences: np.ndarray) -> float:
        return float(np.log(np.mean([np.abs(each).mean() for each in differences]) + 1e-4))

    grey = image.mean(axis=0)
    both = np.diff(np.diff(grey, axis=1), axis=0)
    fourth = size(np.diff(np.diff(both, axis=1), axis=0))
    first = size(np.diff(grey, axis=1), np.diff(grey, axis=0))
    second = size(np.diff(grey, n=2, axis=1), np.diff(grey, n=2, axis=0))
    colour = size(np.diff(np.diff(image - grey, axis=2), axis=1))
    return np.array([fourth, fourth - size(both), second - first, colour - size(both)])


def reference_level(now, seen, settings: Level) -> np.ndarray:
    """The level (K,) of one image, from signatures, similarities and absences of the images seen."""
    s, similar, absent = (np.stack(each) for each in zip(*seen, strict=True))
    distances = np.sqrt((((s - now) / (s.std(axis=0) + 1e-6)) ** 2).sum(axis=1))
    farthest = np.sort(distances)[: settings.similar_images][-1]
    weights = np.clip(1 - distances / (1.001 * farthest + 1e-9), 0, None)
    total = weights @ (absent * similar) + 0.02 * (weights @ similar.mean(axis=1))
    level = total / (weights @ absent + 0.02 * weights.sum())
    return level - level.mean()


class RunningMeans:
    """The mean over the rows of all batches so far, where earlier rows count less."""

    def __init__(self, half_life: float):
        self.half_life, self.total, self.count = half_life, 0.0, 0.0

    def update(self, rows: np.ndarray) -> np.ndarray:
        kept = 0.5 ** (len(rows) / self.half_life)
        self.total, self.count = kept * self.total + rows.sum(0), kept * self.count + len(rows)
        return self.total / self.count


def reference_bias(stream, settings: Level, gates: list[tuple[float, float]]) -> list[np.ndarray]:
    """What is added to logits, batch by batch, given beta and agreement of the gate."""
    seen: list[list[np.ndarray]] = []
    predicted, means, extremes = (RunningMeans(settings.recent_images / 2) for _ in range(3))
    found = []
    for (plain, bias, pictures), (beta, agreed) in zip(stream, gates, strict=True):
        size = len(plain)
        logits = SCALE * (plain - beta * bias)
        frequencies = predicted.update(softmax(logits))
        deviations = plain - means.update(plain)
        deviations = deviations - deviations.mean(1, keepdims=True)
        up, down = extremes.update(np.stack([deviations.max(1), -deviations.min(1)], axis=1))
        gamma = np.clip((up / down - 0.95) / 0.1, 0, 1) if settings.gamma == "auto" else settings.gamma
        trust = 2 * (1 - np.clip((up / down - 1) / 0.3, 0, 1)) * min(1, 4 * (1 - agreed))
        prior = trust * np.log(np.maximum(frequencies, 1e-4))
        signatures = [reference_signature(picture) for picture in pictures]
        absent = (1 - softmax(logits + prior)) ** settings.exponent
        seen = [*seen, *map(list, zip(signatures, plain, absent, strict=True))][-settings.recent_images :]
        levels = np.stack([reference_level(signature, seen, settings) for signature in signatures])
        refined = (logits + SCALE * (plain - gamma * levels)) / 2 + prior
        latest = seen[-size:]
        for image, absent in zip(latest, ((1 - softmax(refined)) ** settings.exponent)[-len(latest) :], strict=True):
            image[2] = absent
        found.append(-SCALE * gamma * np.stack([reference_level(each, seen, settings) for each in signatures]))
    return found


def make_stream(classes: int = 8, sizes=(30, 30, 7, 1), similarity: float = 0.15) -> list[Batch]:
    rng = np.random.default_rng(3)
    pull = 0.1 * rng.normal(size=classes)
    made = []
    for size in sizes:
        of_class = similarity * np.eye(classes)[rng.integers(classes, size=size)]
        plain = of_class + pull + 0.05 * rng.normal(size=(size, classes))
        pictures = rng.uniform(size=(size, 3, 7, 6)) ** rng.uniform(0.2, 4, size=(size, 1, 1, 1))
        made.append(Batch(plain, (pull + 0.05 * rng.normal(size=classes))[None], pictures))
    return made


def biases(level: Level, stream: list[Batch]) -> tuple[list[np.ndarray], list[tuple[float, float]]]:
    """What a level adds to logits, and beta and agreement of its gate."""
    debiaser, found, gates = level.start(8, 0), [], []
    for plain, bias, pictures in stream:
        similarities, offset = torch.from_numpy(plain), None if level.gate is None else torch.from_numpy(bias)
        batch = Evidence(similarities, similarities, offset, SCALE, 7.0, torch.from_numpy(pictures))
        found.append(debiaser.decide(batch).bias.numpy())
        gate = debiaser.gate
        gates.append((float(gate.beta or 0.0), float(gate.auto.agreement)) if gate else (0.0, 0.0))
    return found, gates


@pytest.mark.parametrize(
    "level",
    [
        Level(),
        Level(gamma=0.7, exponent=2.0, similar_images=20),
        Level(similar_images=10, recent_images=25),
        Level(similar_images=1, recent_images=20),
        Level(gate=Panda()),
        Level(gate=Panda(beta=0.6), similar_images=15),
        Level(gamma=1.0, gate=Panda()),
    ],
    ids=str,
)
@pytest.mark.parametrize("similarity", [0.15, 0.02])
def test_levels_equal_their_formulas(level, similarity):
    stream = make_stream(similarity=similarity)
    found, gates = biases(level, stream)
    for ours, expected in zip(found, reference_bias(stream, level, gates), strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-4)


def test_images_are_compared_with_those_that_are_corrupted_alike():
    """Two corruptions with opposite biases are mixed in one batch, and each image gets the level of its own."""
    rng = np.random.default_rng(0)
    noisy = np.arange(200) % 2
    pull = 0.2 * rng.normal(size=6) * (2 * noisy[:, None] - 1)
    plain = 0.6 * np.eye(6)[rng.integers(6, size=200)] + pull + 0.03 * rng.normal(size=(200, 6))
    pictures = 0.5 + rng.normal(size=(200, 3, 16, 16)) * (0.01 + 0.1 * noisy)[:, None, None, None]
    [found], _ = biases(Level(gamma=1.0, similar_images=40), [Batch(plain, plain[:1], pictures.clip(0, 1))])
    shared = [np.corrcoef(ours, own)[0, 1] for ours, own in zip(found / -SCALE, pull, strict=True)]
    assert min(shared) > 0.9


@pytest.mark.parametrize("corruption", ["gaussian_noise", "defocus_blur", "contrast", "jpeg_compression"])
def test_signatures_tell_corruptions_apart_and_not_classes(corruption):
    clean, corrupted = (load_data("glyphs-val-c", name, limit=60) for name in ("clean", corruption))
    images = np.concatenate([dataset.images_at(np.arange(60)) for dataset in (clean, corrupted)])
    found = signatures(torch.from_numpy(images).permute(0, 3, 1, 2))
    distances = torch.cdist(*2 * [found / found.std(dim=0)]).fill_diagonal_(torch.inf)
    nearest = distances.topk(20, largest=False).indices.numpy()
    is_corrupted, labels = np.arange(120) >= 60, np.concatenate([clean.labels, corrupted.labels])
    assert (is_corrupted[nearest] == is_corrupted[:, None]).mean() > 0.75
    assert (labels[nearest] == labels[:, None]).mean() < 0.2  # 0.1 by chance


@pytest.mark.parametrize("shape", [(3, 1, 1), (3, 2, 9), (3, 224, 300)])
def test_images_of_any_size_have_a_finite_signature(shape):
    images = torch.randint(256, (5, *shape), dtype=torch.uint8)
    found = signatures(images)
    assert found.shape == (5, 4) and found.isfinite().all()
    torch.testing.assert_close(signatures(images / 255), found)


def test_a_level_does_not_depend_on_how_often_a_class_occurs():
    rng = np.random.default_rng(0)
    pull = 0.1 * rng.normal(size=6)

    def level_of(frequencies: list[float]) -> np.ndarray:
        labels = rng.choice(6, size=2000, p=frequencies)
        plain = 0.6 * np.eye(6)[labels] + pull + 0.03 * rng.normal(size=(2000, 6))
        stream = [Batch(plain, plain[:1], rng.uniform(size=(2000, 3, 4, 4)))]
        return biases(Level(gamma=1.0, similar_images=2000), stream)[0][0].mean(axis=0) / -SCALE

    balanced, shifted = level_of([1 / 6] * 6), level_of([0.7, 0.1, 0.05, 0.05, 0.05, 0.05])
    np.testing.assert_allclose(balanced, pull - pull.mean(), atol=0.01)
    np.testing.assert_allclose(shifted, balanced, atol=0.01)


def test_misclassified_images_of_a_single_class_hardly_count_against_it(monkeypatch):
    """Without class frequencies, the level of the only class is that of its misclassified images."""
    rng = np.random.default_rng(0)
    plain = 0.1 * np.eye(6)[np.zeros(300, int)] + 0.08 * rng.normal(size=(300, 6))
    stream = [Batch(plain, plain[:1], rng.uniform(size=(300, 3, 4, 4)))]

    def accuracy() -> float:
        [bias], _ = biases(Level(gamma=1.0), stream)
        return ((SCALE * plain + bias).argmax(axis=1) == 0).mean()

    found = accuracy()
    monkeypatch.setattr("tta_panda.panda.level.FREQUENCY", 0.0)
    assert found > accuracy() + 0.15
    assert found > (plain.argmax(axis=1) == 0).mean() - 0.05


@pytest.mark.parametrize("level", [Level(), Level(gate=Panda())], ids=str)
def test_a_level_does_not_look_at_what_all_classes_share(level):
    stream = make_stream()
    moved = [batch._replace(plain=batch.plain + 0.3, offset=batch.offset - 0.2) for batch in stream]
    for ours, others in zip(biases(level, stream)[0], biases(level, moved)[0], strict=True):
        np.testing.assert_allclose(ours, others, atol=1e-9)


@pytest.mark.parametrize("classes", [2, 3])
def test_one_image_shows_no_diversity(classes):
    for level in (Level(), Level(gate=Panda())):
        found, _ = biases(level, make_stream(classes, sizes=(1,)))
        assert not found[0].any()


# --- in methods -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("debias", [Centering(), Level(gamma=1.0), Level(gate=Panda())], ids=str)
def test_frozen_and_trained_methods_are_corrected_alike(debias, tiny_classifier, images):
    """Before its first step, Tent predicts what CLIP does."""
    torch.testing.assert_close(
        Tent(tiny_classifier, debias=debias).adapt(images[:16]), CLIP(tiny_classifier, debias=debias).adapt(images[:16])
    )


def test_a_level_is_added_to_logits_and_moves_no_feature(tiny_classifier):
    method = CLIP(tiny_classifier, debias=Level(gamma=0.5))
    encoded = Encoded(torch.nn.functional.normalize(torch.randn(9, 16), dim=1), images=torch.rand(9, 3, 8, 8))
    corrected = encoded.corrected(method.features.decide(encoded))
    assert torch.equal(corrected.debiased, encoded.features)
    expected = tiny_classifier.logits(encoded.features) + corrected.bias
    torch.testing.assert_close(method.classify(corrected), expected)
    assert method.gamma == 0.5 and method.beta is None


def test_the_beta_of_a_gate_can_be_set(tiny_classifier, images):
    method = CLIP(tiny_classifier, debias=Level(gate=Panda()))
    method.beta = 0.4
    method.reset()
    assert method.debias == Level(gate=Panda(beta=0.4, sampler="pool"))
    expected = CLIP(tiny_classifier, debias=Level(gate=Panda(beta=0.4))).adapt(images[:16])
    assert torch.equal(method.adapt(images[:16]), expected)
    with pytest.raises(InvalidInputError, match="without a gate has no beta"):
        CLIP(tiny_classifier, debias=Level()).beta = 0.4
    with pytest.raises(InvalidInputError, match="beta must be a number >= 0, got 'auto'"):
        CLIP(tiny_classifier, debias=Centering()).beta = "auto"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Centering(beta=-1.0), "beta must be a number >= 0, got -1.0"),
        (lambda: Centering(half_life=0.0), "half_life must be a number >= 1"),
        (lambda: Level(gamma="full"), "gamma must be a number >= 0 or 'auto'"),
        (lambda: Level(gamma=-0.5), "gamma must be a number >= 0"),
        (lambda: Level(exponent=-1.0), "exponent must be"),
        (lambda: Level(similar_images=0), "similar_images must be a whole number >= 1"),
        (lambda: Level(gate=Centering()), "gate must be Panda or None"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(make, message):
    with pytest.raises(InvalidInputError, match=message):
        make()


def test_what_is_no_way_to_debias_is_refused(tiny_classifier):
    with pytest.raises(InvalidInputError, match=r"debias must be a Panda, Centering, Level or None.*debias=Panda"):
        CLIP(tiny_classifier, debias=0.4)


def test_every_way_shares_encoder_passes(mini_classifier):
    """Records are the same whether a method ran alone or with others, and hold the strengths."""
    from tta_panda.data.stream import Stream

    stream = Stream(load_data("glyphs-val-c", "gaussian_noise", limit=60), 20, seed=0)
    names = ["clip", *list_methods("clip+*")]
    methods = [create_method(name, mini_classifier) for name in names]
    together = [evaluation.result() for evaluation in run_stream(methods, stream)]
    for method, result in zip(methods, together, strict=True):
        alone = run_stream([method], stream)[0].result()
        assert (alone.nll, alone.accuracy, alone.passes) == (result.nll, result.accuracy, result.passes)
        assert (alone.mean_beta, alone.mean_gamma) == (result.mean_beta, result.mean_gamma)
    strengths = {name: (r.mean_beta, r.mean_gamma) for name, r in zip(names, together, strict=True)}
    assert {name for name, (beta, _) in strengths.items() if beta is None} == {"clip", "clip+level"}
    assert {name for name, (_, gamma) in strengths.items() if gamma is not None} == {"clip+level", "clip+panda+level"}


def test_a_level_helps_where_a_corruption_pulls(mini_classifier):
    from tta_panda.data.stream import Stream

    stream = Stream(load_data("glyphs-val-c", "gaussian_noise", limit=200), 50, seed=0)
    plain, level = (evaluate(create_method(name, mini_classifier), stream) for name in ("clip", "clip+panda+level"))
    assert level.accuracy > plain.accuracy + 0.05
