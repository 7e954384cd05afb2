"""Presets and protocols: what they set, what goes before them, and that records hold what was used."""

from __future__ import annotations

import json

import pytest

from tta_panda import ZeroShotClassifier
from tta_panda.errors import UnknownNameError
from tta_panda.evaluation.plan import plan_runs
from tta_panda.evaluation.presets import PRESETS, get_preset
from tta_panda.methods import METHODS, MethodName
from tta_panda.methods.options import build_method, default_options

EVERY = [MethodName(name, panda) for name in METHODS for panda in (False, True)]


def options(name: str, preset: str | None = None, **more) -> dict:
    """What a run of a method would use."""
    chosen = get_preset(preset) if preset else None
    return plan_runs([name], model="mini", data="glyphs-c", corruptions=["fog"], preset=chosen, **more)[0].options


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", EVERY, ids=str)
def test_every_preset_names_existing_options_and_builds(preset, name, tiny_classifier):
    assert set(get_preset(preset).options(name)) <= set(default_options(name))
    used = options(str(name), preset) | ({"patch_size": 8} if name.panda else {})  # the tiny model has small images
    build_method(name, tiny_classifier, used, seed=0)


@pytest.mark.parametrize(
    ("preset", "name", "expected"),
    [
        ("cifar10-c", "clip+panda", {"beta": 0.7, "patch_size": 32, "ratio": 0.1, "sampler": "pool", "average": True}),
        ("cifar10-c", "tent", {"lr": 2e-4}),
        ("imagenet-c", "tent+panda", {"lr": 1e-4, "beta": 0.3}),
        ("cifar100-c", "eta+panda", {"lr": 5e-4, "margin": 0.5, "d_margin": 1.0, "beta": 0.4}),
        ("imagenet-c", "sar+panda", {"rho": 0.01, "lr": 1e-3, "margin": 0.4, "reset_constant": 0.2, "beta": 0.2}),
        ("cifar10-c", "sar", {"rho": 0.05}),
        ("cifar100-c", "deyo+panda", {"lr": 1e-3, "weight_margin": 0.4, "filter_margin": 2.0, "grid": 4, "beta": 0.5}),
        ("cifar10-c", "tpt+panda", {"lr": 1e-3, "views": 64, "keep": 0.1, "beta": 0.4}),
        ("imagenet-c", "dmn+panda", {"slots": 50, "alpha": 0.3, "sharpness": 5.5, "beta": 0.3}),
        ("cifar100-c", "zero+panda", {"views": 64, "keep": 0.1, "beta": 0.5}),
        ("cifar10-c", "tps+panda", {"lr": 1e-2, "views": 64, "beta": 0.6}),
        ("imagenet-c", "tps", {"lr": 1e-3}),
        ("cifar100-c", "bat+panda", {"lr": 2e-4, "beta": 0.3}),
    ],
)
def test_the_papers_values(preset, name, expected):
    used = options(name, preset)
    assert {key: used[key] for key in expected} == expected


def test_settings_go_before_presets_and_these_before_protocols():
    assert options("tent+panda", "cifar10-c", settings={"beta": "auto"})["beta"] == "auto"
    assert options("tent+panda", "cifar10-c", settings={"beta": "auto"})["lr"] == 2e-4
    assert options("tent+panda", protocol="reference")["sampler"] == "same_cell"
    assert options("tent+panda", protocol="reference", settings={"sampler": "pool"})["sampler"] == "pool"
    assert options("tent", protocol="reference") == {"lr": 1e-3, "predict": None, "protocol": "reference"}


def test_unknown_presets_and_protocols_get_a_suggestion():
    with pytest.raises(UnknownNameError, match="'cifar10-c'"):
        get_preset("cifar10c")
    with pytest.raises(UnknownNameError, match="'reference'"):
        options("tent", protocol="refrence")


def test_the_reference_protocol_uses_the_authors_negatives():
    used = options("clip+panda", "cifar10-c", protocol="reference")
    assert used["protocol"] == "reference"
    assert used["sampler"] == "same_cell"


def test_a_preset_brings_model_and_data(monkeypatch, tmp_path):
    from tta_panda.cli.runs import RunRequest

    def planned(**more):
        return RunRequest(preset="cifar10-c", corruption="fog", **more).configs(["tent"])[0]

    monkeypatch.setattr("tta_panda.evaluation.plan.data_fingerprint", lambda *_: None)
    assert (planned().model, planned().data) == ("ViT-B-32-quickgelu:openai", "cifar10-c")
    assert planned(pretrained="random").model == "ViT-B-32-quickgelu:random"
    assert planned(model="RN50", pretrained="openai").model == "RN50:openai"
    assert planned(model="mini", data="glyphs-c").data == "glyphs-c"
    assert planned(model="mini", data="glyphs-c").options["lr"] == 2e-4


def test_views_and_templates_of_a_classifier_with_many_prompts(tiny):
    """More prompts than one pass takes give the same features."""
    names = [f"name {i}" for i in range(300)]
    together = ZeroShotClassifier(tiny, names).text_features
    assert json.dumps(together.shape) == "[300, 16]"
    few = ZeroShotClassifier(tiny, names[:2] + names[-2:]).text_features
    assert (together[[0, 1, -2, -1]] - few).abs().max() < 1e-5
