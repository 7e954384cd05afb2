"""The guard against collapse."""

from __future__ import annotations

import pytest
import torch
from records import plan, run

from tta_panda import SAR, Mint, Panda, Tent
from tta_panda.methods import trained
from tta_panda.methods.guard import MOST_DRIFT, add_batch, is_too_far, no_drift


def test_drift_is_the_distance_of_mean_predictions_and_fades():
    sure, other = torch.tensor([[99.0, 0.0]]).repeat(10, 1), torch.tensor([[0.0, 99.0]]).repeat(10, 1)
    drift = add_batch(no_drift(2), sure, sure, images=40)
    assert not is_too_far(drift)
    drift = add_batch(drift, sure, other, images=40)
    assert is_too_far(drift)
    torch.testing.assert_close(drift, torch.tensor([10.0, -10.0, 10 + 10 * 0.5**0.8]))
    for _ in range(20):
        drift = add_batch(drift, sure, sure, images=40)
    assert not is_too_far(drift)
    assert is_too_far(add_batch(no_drift(2), sure * float("nan"), sure, images=40))
    swapped = add_batch(no_drift(2), torch.cat([sure, other]), torch.cat([other, sure]), images=40)
    assert not is_too_far(swapped)  # other predictions, but none more frequent
    assert 0 < MOST_DRIFT < 2


@pytest.fixture(scope="module")
def collapsing(tmp_path_factory):
    """Tent with ten times the learning rate on images sorted by class, without and with the guard; and plain CLIP."""
    folder = tmp_path_factory.mktemp("guard")
    stream = {"corruptions": ["glass_blur"], "order": "correlated:0", "batch_size": 20, "limit": 300}
    [clip] = run(plan(["clip"], **stream), folder)
    [plain] = run(plan(["tent"], settings={"lr": 1e-2}, **stream), folder)
    [guarded] = run(plan(["tent"], settings={"lr": 1e-2, "guard": True}, **stream), folder)
    return clip, plain, guarded


def test_the_guard_keeps_tent_from_collapse(collapsing):
    clip, plain, guarded = collapsing
    assert plain.accuracy < clip.accuracy - 0.1 and plain.restarts == 0
    assert guarded.accuracy >= clip.accuracy - 0.01 and guarded.restarts > 0
    assert guarded.passes.images == pytest.approx(5)  # every fourth of twenty images


def test_the_guard_belongs_to_the_state(mini_classifier, images):
    method = Tent(mini_classifier, lr=0.3, guard=True, debias=Panda(beta=0.3))
    for _ in range(4):
        method.adapt(images[:20])
    assert method.restarts > 0
    saved = method.state_dict()
    expected = method.adapt(images[20:])
    other = Tent(mini_classifier, lr=0.3, guard=True, debias=Panda(beta=0.3))
    other.load_state_dict(saved)
    assert torch.equal(other.adapt(images[20:]), expected) and other.restarts == method.restarts
    other.reset()
    assert other.restarts == 0 and torch.equal(other.drift, no_drift(10))


@pytest.mark.parametrize(("debias", "size"), [(None, 20), (Panda(beta=0.5), 20), (Panda(beta=0.5), 4)])
def test_a_guard_that_does_not_strike_changes_nothing(debias, size, mini_classifier, images):
    plain, guarded = Tent(mini_classifier, debias=debias), Tent(mini_classifier, debias=debias, guard=True)
    for batch in images.split(size):
        assert torch.equal(plain.adapt(batch), guarded.adapt(batch))
    assert guarded.restarts == 0


def test_a_restart_forgets_what_the_method_remembers(mini_classifier, images):
    method = Mint(mini_classifier, lr=1.0, guard=True)
    for batch in images.split(10):
        method.adapt(batch)
    assert method.restarts and method.counts.sum() == 10  # of the last batch alone


def test_sar_counts_its_own_recoveries(mini_classifier, images):
    method = SAR(mini_classifier, margin=1.0, reset_constant=10.0, skip_last_blocks=0)
    method.adapt(images[:10])
    assert method.restarts == 1


def test_the_guard_holds_for_every_trained_method_by_name():
    from tta_panda.methods import METHODS, MethodName
    from tta_panda.methods.options import default_options

    for name in METHODS:
        is_trained = issubclass(METHODS.get(name), trained.TrainedMethod)
        assert ("guard" in default_options(MethodName(name))) == is_trained
