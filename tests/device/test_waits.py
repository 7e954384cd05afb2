"""How often the host waits for a GPU, and how many operators are launched: both take time on any GPU."""

from __future__ import annotations

import pytest
import torch
from conftest import TINY_OPTIONS
from fake_device import watch
from test_on_device import NAMES, make, on

from tta_panda.methods import DEBIASES
from tta_panda.views import apply_view_plan, sample_view_plan

BATCH = 6
GOALS = {
    "clip": 1,
    "lame": 5,  # convergence is checked at every tenth step
    "subtta": 4,  # two steps, and eigenvectors
    "cliptta": 2 + TINY_OPTIONS["cliptta"]["steps"],
    "clipartt": 1 + 2 * TINY_OPTIONS["clipartt"]["steps"],  # which captions are new
    "watt": 1 + 2 * 8 * TINY_OPTIONS["watt"]["rounds"] * TINY_OPTIONS["watt"]["steps"],  # for each of eight templates
    "dota": 1 + BATCH,  # whether the covariance is singular
    "memo": 1 + BATCH,  # a step for every image
    "ramen": 2 + BATCH,  # gradients of every image
    "dpe": 1 + BATCH,  # the label of an image decides what its step is taken on
}
CASES = [*((name, "") for name in NAMES), *((name, debias) for name in ("clip", "bat") for debias in DEBIASES)]


@pytest.mark.parametrize(
    ("name", "debias", "options"), [*((*case, {}) for case in CASES), ("tent", "", {"guard": True})]
)
def test_the_host_seldom_waits(name, debias, options, fake, tiny_classifier, images):
    """For a check of the logits, for one of the gradients, and for what decides how to go on; corrections add none."""
    method = make(on(fake, tiny_classifier), name, debias, **options)
    for batch in images[: 2 * BATCH].to(fake).split(BATCH):
        method.adapt(batch)
    with watch() as log:
        method.adapt(images[2 * BATCH : 3 * BATCH])
    assert log.waits.total() <= GOALS.get(name, 3), log.waits


@pytest.mark.parametrize("count", [1, 3])
def test_views_of_any_batch_take_three_hundred_launches_and_no_wait(count, fake):
    images = torch.randint(256, (count, 3, 48, 40), dtype=torch.uint8)
    plan = sample_view_plan("augmix", images.shape, 63, torch.Generator().manual_seed(0), (32, 32))
    with watch() as log:
        views = apply_view_plan(images.to(fake, non_blocking=True), plan)
    assert log.launches <= 300 and not log.waits
    apart = (views.cpu() - apply_view_plan(images, plan)).abs() * 255
    assert (apart > 0.01).float().mean() < 1e-4  # pixels that move are blended in double precision there
