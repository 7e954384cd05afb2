"""The script that trains the embedded model: what is interrupted goes on as if nothing had happened."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from tta_panda.models.mini import register_architecture

SCRIPT = Path(__file__).parents[1] / "scripts" / "train_mini.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("train_mini", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    register_architecture()
    return module


def test_an_interrupted_training_ends_with_the_same_weights(script, tmp_path, monkeypatch):
    def train(name: str) -> dict[str, torch.Tensor]:
        options = [
            "--steps",
            "4",
            "--batch-size",
            "8",
            "--save-every",
            "2",
            "--workers",
            "0",
            "--work-dir",
            str(tmp_path / name),
        ]
        script.train(script.make_parser().parse_args(options))
        return torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["model"]

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
