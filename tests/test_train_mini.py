"""The script that trains the embedded model: its pictures, its loss, and that an interruption changes nothing."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
import torch

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("train_mini")


@pytest.mark.slow
def test_an_interrupted_training_ends_with_the_same_weights(script, tmp_path, monkeypatch):
    def train(name: str) -> dict[str, torch.Tensor]:
        options = f"--steps 4 --batch-size 8 --save-every 2 --workers 0 --work-dir {tmp_path / name}"
        script.train(script.make_parser().parse_args(options.split()))
        return torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["model"]

    monkeypatch.setattr(script, "validation_accuracy", lambda _model: 0.0)  # takes most of the time
    undisturbed = train("undisturbed")
    loss, calls = script.contrastive_loss, []

    def interrupted_in_the_third_step(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return loss(*arguments)

    monkeypatch.setattr(script, "contrastive_loss", interrupted_in_the_third_step)
    with pytest.raises(KeyboardInterrupt):
        train("resumed")
    resumed = train("resumed")
    assert len(calls) == 5  # two steps that were saved, one that was lost, and the last two
    assert all(torch.equal(value, resumed[name]) for name, value in undisturbed.items())


def test_captions_of_one_concept_are_not_contrasted(script):
    image = torch.nn.functional.normalize(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), dim=1)
    together = script.contrastive_loss(image, image, torch.tensor(50.0), torch.tensor([0, 0, 1]))
    assert together == pytest.approx(2 / 3 * torch.log(torch.tensor(2.0)).item(), abs=1e-4)


def test_training_pictures_cover_more_than_symbols(script):
    rng = np.random.default_rng(0)
    examples = [script.draw_captioned(rng) for _ in range(300)]
    concepts = {example.concept[0] for example in examples}
    assert {"collage", "close-up"} <= concepts
    assert any(concept.endswith("pattern") for concept in concepts)
    assert any(len(example.concept) == 2 for example in examples)
    for example in examples:
        assert example.picture.shape == (32, 32, 3)
        assert example.picture.dtype == np.float32
        assert 0 <= example.picture.min() <= example.picture.max() <= 1
        assert all(word in example.caption for word in example.concept)
