"""The guard against collapse."""

from __future__ import annotations

import pytest
import torch
from records import plan, run

from tta_panda import SAR, Level, Mint, Panda, Tent
from tta_panda.evaluation.metrics import Scores, StreamMetrics
from tta_panda.methods import trained


def test_drift_is_the_distance_of_mean_predictions_and_fades(mini_classifier, images):
    method = Tent(mini_classifier, guard=True)
    batch = method.features.prepare(images)
    unadapted = method._unadapted_logits(batch).repeat_interleave(4, dim=0)  # of one in four images
    assert not method._has_drifted(batch, unadapted)
    method.drift = torch.zeros(11)
    assert method._has_drifted(batch, unadapted[:, [1, 0, *range(2, 10)]] * 0)  # uniform, unlike the predictions
    far = method.drift.clone()
    for _ in range(20):
        method._has_drifted(batch, unadapted)
    torch.testing.assert_close(method.drift[:-1], far[:-1] * 0.5 ** (20 * 40 / 50), rtol=1e-3, atol=1e-5)
    assert not method._has_drifted(batch, unadapted)
    assert method._has_drifted(batch, unadapted * float("nan"))
    assert 0 < trained.MAX_DRIFT < 2


def test_an_error_while_the_unadapted_model_predicts_leaves_the_adapted_weights(mini_classifier, images, monkeypatch):
    method = Tent(mini_classifier, guard=True)
    method.adapt(images[:20])
    batch = method.features.prepare(images)
    before = method.weights.copy()

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(method), "embed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        method._unadapted_logits(batch)
    assert all(torch.equal(value, before[name]) for name, value in method.weights.copy().items())


@pytest.fixture(scope="module")
def collapsing(tmp_path_factory):
    """Tent with ten times the learning rate on images sorted by class, without and with the guard; and plain CLIP."""
    folder = tmp_path_factory.mktemp("guard")
    stream = {"corruptions": ["glass_blur"], "order": "correlated:0", "batch_size": 20, "limit": 160}
    [clip] = run(plan(["clip"], **stream), folder)
    [plain] = run(plan(["tent"], settings={"lr": 1e-2}, **stream), folder)
    [guarded] = run(plan(["tent"], settings={"lr": 1e-2, "guard": True}, **stream), folder)
    return clip, plain, guarded


def test_the_guard_keeps_tent_from_collapse(collapsing):
    clip, plain, guarded = collapsing
    assert plain.accuracy < clip.accuracy - 0.1 and plain.restarts == 0
    assert guarded.accuracy >= clip.accuracy - 0.01 and guarded.restarts > 0
    assert guarded.passes["images"] == pytest.approx(5)  # every fourth of twenty images


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
    assert other.restarts == 0 and torch.equal(other.drift, torch.zeros(11))


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


def test_a_restart_resets_the_debiaser(mini_classifier, images):
    method = Tent(mini_classifier, debias=Level(gate=Panda()))
    for batch in images.split(10):
        method.adapt(batch)
    method.restart()
    assert method.gamma is None and method.beta is None and method.restarts == 1
    state, draws = method.features.debiaser.state_dict(), method.features.source.generator.get_state()
    method.reset()
    fresh = method.features.debiaser.state_dict()
    assert not torch.equal(draws, fresh["gate"].pop("generator"))  # negatives are drawn on
    state["gate"].pop("generator")
    assert str(state) == str(fresh)


def test_sar_counts_its_own_recoveries(mini_classifier, images):
    method = SAR(mini_classifier, margin=1.0, reset_constant=10.0, skip_last_blocks=0)
    method.adapt(images[:10])
    assert method.restarts == 1


def test_batches_that_end_with_a_restart_do_not_count_in_the_mean_beta():
    scores, metrics = Scores.of(torch.eye(2), torch.arange(2)), StreamMetrics(2)
    for beta in (0.4, None, 0.6):
        metrics.update(scores, {"beta": beta})
    assert metrics.mean_strength("beta") == pytest.approx(0.5)
