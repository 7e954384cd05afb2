"""The memory of certain images that DMN, TDA and OGA share."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tta_panda.methods.image_cache import CacheUpdate, Entries, empty_cache, update_cache

CLASSES = 3


def images(count: int, seed: int = 0) -> Entries:
    generator = torch.Generator().manual_seed(seed)
    return {
        "features": torch.arange(count, dtype=torch.float)[:, None],  # each image is known by its number
        "labels": torch.randint(CLASSES, (count,), generator=generator),
        "entropies": torch.rand(count, generator=generator),
    }


def part(batch: Entries, piece: slice) -> Entries:
    return {name: rows[piece] for name, rows in batch.items()}


def numbers(entries: Entries) -> list[int]:
    return entries["features"][:, 0].int().tolist()


def one_by_one(batch: Entries, slots: int, eligible: Tensor) -> list[set[int]]:
    """Who is in the memory at the turn of each image."""
    held: list[list[int]] = [[] for _ in range(CLASSES)]
    seen = []
    for image, label in enumerate(batch["labels"].tolist()):
        own = held[label]
        if eligible[image] and len(own) < slots:
            own.append(image)
        elif eligible[image]:
            worst = max(own, key=lambda other: batch["entropies"][other])
            if batch["entropies"][image] < batch["entropies"][worst]:
                own.remove(worst)
                own.append(image)
        seen.append({image for own in held for image in own})
    return seen


def found_by_each(update: CacheUpdate, size: int) -> list[set[int]]:
    """The entries that each image of a batch gives weight to."""
    _, weights = update.attention(torch.ones(size, 1), 0.0)  # where sharpness is zero, all that it finds weighs 1
    assert set(weights.unique().tolist()) <= {0.0, 1.0}
    return [{image for image, weight in zip(numbers(update.entries), of, strict=True) if weight} for of in weights.T]


@pytest.mark.parametrize("sizes", [(40,), (1,) * 40, (7, 20, 1, 12)])
@pytest.mark.parametrize("slots", [1, 2, 50])
def test_every_image_finds_what_it_would_find_one_by_one(sizes, slots):
    batch = images(40)
    eligible = torch.rand(40, generator=torch.Generator().manual_seed(1)) < 0.8
    expected = one_by_one(batch, slots, eligible)
    memory, start = empty_cache(batch["features"]), 0
    for size in sizes:
        piece = slice(start, start + size)
        update = update_cache(memory, part(batch, piece), slots, eligible[piece])
        assert found_by_each(update, size) == expected[piece]
        memory, start = update.apply(), start + size
        assert set(numbers(memory)) == expected[start - 1]


def test_attention_is_that_of_its_definition():
    generator = torch.Generator().manual_seed(2)
    batch = {**images(12), "features": torch.nn.functional.normalize(torch.randn(12, 5, generator=generator), dim=1)}
    update = update_cache(empty_cache(batch["features"]), batch, 50)
    cosines, weights = update.attention(batch["features"], 5.5)
    expected = batch["features"].double() @ batch["features"].double().T
    held = torch.arange(12)[:, None] <= torch.arange(12)  # an image finds itself and those before it
    assert torch.allclose(cosines.double(), expected, atol=1e-6)
    assert torch.allclose(weights.double(), torch.exp(-5.5 * (1 - expected)) * held, atol=1e-6)


def test_settling_leaves_what_images_found_as_it_was():
    update = update_cache(empty_cache(images(30)["features"]), images(30), 2)
    before = {name: rows.clone() for name, rows in update.entries.items()}
    update.apply()
    assert len(update.evicted) and all(torch.equal(rows, before[name]) for name, rows in update.entries.items())


def test_nothing_eligible_changes_nothing():
    batch = images(10)
    memory = update_cache(empty_cache(batch["features"]), batch, 2).apply()
    before = {name: rows.clone() for name, rows in memory.items()}
    update = update_cache(memory, images(10, seed=3), 2, torch.zeros(10, dtype=torch.bool))
    assert found_by_each(update, 10) == [set(numbers(memory))] * 10
    assert all(torch.equal(rows, before[name]) for name, rows in update.apply().items())


def test_further_columns_stay_with_their_images():
    batch = images(30)
    nothing = {**empty_cache(batch["features"]), "twice": torch.empty(0)}
    kept = update_cache(nothing, {**batch, "twice": 2 * batch["features"][:, 0]}, 2).apply()
    assert kept["twice"].tolist() == [2 * number for number in numbers(kept)]
