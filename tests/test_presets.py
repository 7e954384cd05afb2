"""Presets and protocols: what they set, what goes before them, and that records hold what was used."""

from __future__ import annotations

import pytest

from tta_panda.errors import UnknownNameError
from tta_panda.methods import METHODS, MethodName, parse_method
from tta_panda.methods.options import build_method, default_options, resolve_options
from tta_panda.methods.presets import PRESETS, get_preset

EVERY = [MethodName(name, panda) for name in METHODS for panda in (False, True)]


def options(name: str, preset: str | None = None, protocol: str = "paper", **settings) -> dict:
    """What a run of a method would use."""
    chosen = get_preset(preset) if preset else None
    return resolve_options(parse_method(name), settings, preset=chosen, protocol=protocol)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", EVERY, ids=str)
def test_every_preset_pins_every_option_and_builds(preset, name, tiny_classifier):
    decided_elsewhere = {"protocol", "sampler", "predict", "prompts_per_pass"}
    assert set(get_preset(preset).options(name)) == set(default_options(name)) - decided_elsewhere
    patch_size = {"patch_size": 8} if name.panda else {}  # the tiny model has small images
    build_method(name, tiny_classifier, options(str(name), preset, **patch_size), seed=0)


MINI = {
    "clip": {},
    "tent": {"lr": 1e-3, "predict": None},
    "eta": {"lr": 1e-3, "margin": 0.5, "d_margin": 1.0},
    "sar": {"lr": 1e-3, "rho": 0.05, "margin": 0.4, "reset_constant": 0.2, "optimizer": "adam"},
    "deyo": {"lr": 1e-3, "filter_margin": 2.0, "weight_margin": 0.4, "plpd_threshold": 0.0, "grid": 4},
    "tpt": {"lr": 1e-3, "steps": 1, "views": 10, "keep": 0.3, "augmentation": "augmix", "context": "a photo of a"},
    "dmn": {"slots": 50, "alpha": 0.3, "sharpness": 5.5},
    "zero": {"views": 10, "keep": 0.3, "augmentation": "augmix", "temperature": 0.0},
    "tps": {"lr": 1e-3, "steps": 1, "views": 10, "keep": 0.3, "augmentation": "augmix"},
    "bat": {"lr": 1e-3, "weight_decay": 0.01},
}


@pytest.mark.parametrize("name", MINI)
def test_the_values_of_the_embedded_model(name):
    used = options(name, "mini")
    assert {key: used[key] for key in MINI[name]} == MINI[name]
    assert used.get("skip_last_blocks", 0) == 0
    panda = options(f"{name}+panda", "mini")
    assert (panda["beta"], panda["patch_size"], panda["ratio"], panda["sampler"]) == ("auto", None, 0.1, "pool")


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
    assert options("tent+panda", "cifar10-c", beta="auto")["beta"] == "auto"
    assert options("tent+panda", "cifar10-c", beta="auto")["lr"] == 2e-4
    assert options("tent+panda", protocol="reference")["sampler"] == "same_cell"
    assert options("tent+panda", protocol="reference", sampler="pool")["sampler"] == "pool"
    assert options("tent", protocol="reference") == {
        "lr": 1e-3,
        "predict": None,
        "skip_last_blocks": 0,
        "protocol": "reference",
    }


def test_unknown_presets_and_protocols_get_a_suggestion():
    with pytest.raises(UnknownNameError, match="'cifar10-c'"):
        get_preset("cifar10c")
    with pytest.raises(UnknownNameError, match="'reference'"):
        options("tent", protocol="refrence")


def test_a_preset_brings_model_and_data():
    from tta_panda.cli.runs import RunOptions

    def planned(**more):
        [config], _ = RunOptions(corruption="fog", **more).plan(["tent"])
        return config.stream.model, config.stream.data, config.method.options["lr"]

    assert planned(preset="cifar10-c") == ("ViT-B-32-quickgelu:openai", "cifar10-c", 2e-4)
    assert planned(preset="cifar10-c", model="mini", data="glyphs-c") == ("mini", "glyphs-c", 2e-4)
    assert planned() == ("mini", "glyphs-c", 1e-3)
    assert planned(model="ViT-B-32:random") == ("ViT-B-32:random", "glyphs-c", 1e-3)
    assert planned(model="ViT-B-32:openai")[0] == "ViT-B-32-quickgelu:openai"  # OpenAI's weights have QuickGELU
