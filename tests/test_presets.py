"""Presets and protocols: what they set, what goes before them, and that records hold what was used."""

from __future__ import annotations

import pytest
import torch
from records import plan, run

from tta_panda import ZeroShotClassifier, list_presets
from tta_panda.cli.options import RunOptions
from tta_panda.errors import UnknownNameError
from tta_panda.evaluation.plan import plan_methods, plan_runs, plan_streams
from tta_panda.methods import DEBIASES, METHODS, MethodName, parse_method
from tta_panda.methods.factory import build_method, default_options, resolve_options
from tta_panda.methods.presets import PRESETS, get_preset


def options(name: str, preset: str | None = None, protocol: str = "paper", **settings) -> dict:
    """What a run of a method would use."""
    chosen = get_preset(preset) if preset else None
    return resolve_options(parse_method(name), settings, preset=chosen, protocol=protocol)


@pytest.mark.parametrize("preset", ["cifar10-c", "cifar100-c", "imagenet-c", "mini"])
def test_every_preset_sets_options_that_exist_and_builds(preset, tiny_classifier):
    """All other presets share the methods of one of these."""
    chosen = get_preset(preset)
    assert set(chosen.methods) <= set(METHODS)
    for name in (MethodName(name, debias) for name in METHODS for debias in ("", *DEBIASES)):
        used = options(str(name), preset, **({"patch_size": 8} if "panda" in name.debias else {}))
        assert set(used) == set(default_options(name))
        if name.debias in ("", "panda+level"):
            build_method(name, tiny_classifier, used, seed=0)


def test_presets_are_listed_by_wildcard():
    assert list_presets() == list(PRESETS)
    assert list_presets("cifar10-c*") == ["cifar10-c", "cifar10-c-cpu", "cifar10-c-mint"]


MINI = {
    "clip": {},
    "tent": {"lr": 1e-3, "predict_with": None},
    "eta": {"lr": 1e-3, "margin": 0.5, "d_margin": 1.0},
    "sar": {"lr": 1e-3, "rho": 0.05, "margin": 0.4, "reset_constant": 0.2, "optimizer": "adam"},
    "deyo": {"lr": 1e-3, "filter_margin": 2.0, "weight_margin": 0.4, "plpd_threshold": 0.0, "grid": 4},
    "tpt": {"lr": 1e-3, "steps": 1, "views": 10, "keep": 0.3, "augmentation": "augmix", "context": "a photo of a"},
    "dmn": {"slots": 50, "alpha": 0.3, "sharpness": 5.5},
    "zero": {"views": 10, "keep": 0.3, "augmentation": "augmix", "temperature": 0.0},
    "tps": {"lr": 1e-3, "steps": 1, "views": 10, "keep": 0.3, "augmentation": "augmix"},
    "bat": {"lr": 1e-3, "weight_decay": 0.01},
    "tda": {"slots": 3, "alpha": 2.0, "sharpness": 5.0, "negative_alpha": 1.0},
    "oga": {"slots": 8, "temperature": 0.2},
    "stata": {"steps": 10, "alpha": 1.0},
    "mint": {"lr": 1.5e-2, "prior": 10_000.0},
    "im": {"lr": 1e-3, "diversity": 1.0},
    "vte": {"views": 10, "keep": 0.3, "augmentation": "augmix"},
    "mta": {"views": 10, "augmentation": "augmix", "neighbours": 0.3, "sharpness": 5.0, "affinity_weight": 4.0},
    "subtta": {"lr": 1e-3, "momentum": 0.1, "rank": 256},
    "latte": {"slots": 12, "alpha": 1.0, "sharpness": 60.0, "entropy_weight": 1.5},
    "ecalp": {"text_neighbours": 3, "image_neighbours": 8, "sharpness": 10.0, "steps": 3, "capacity": 10_000},
    "onzeta": {"length": None, "proxy_weight": 0.8, "proxy_lr": 0.5, "sharpness": 0.25, "balance_lr": 20.0},
    "dota": {"views": 10, "keep": 0.3, "growth": 0.02, "max_weight": 0.3, "shrinkage": 1e-4},
    "boostadapter": {"views": 10, "keep": 0.3, "augmentation": "augmix", "slots": 3, "boost_slots": 3, "alpha": 1.0},
    "dpe": {"views": 10, "keep": 0.3, "slots": 3, "alpha": 6.0, "sharpness": 5.0, "alignment": 0.5, "lr": 6e-4},
    "rotta": {"lr": 1e-3, "capacity": 64, "decay": 0.999},
    "roid": {"lr": 1e-3, "optimizer": "adam", "restore": 0.01, "filter_noise": None},
    "cliptta": {"lr": 1e-4, "steps": 2, "slots": 4, "sample_size": 40, "diversity": 1.0},
    "eata": {"lr": 1e-3, "margin": 0.5, "d_margin": 1.0, "fisher_weight": 1.0, "fisher_images": 100},
    "memo": {"lr": 2.5e-4, "views": 4},
    "ramen": {"lr": 0.01, "slots": 75, "neighbours": 50, "sharpness": 5.0},
    "clipartt": {"lr": 1e-3, "steps": 3, "candidates": 3},
    "watt": {"lr": 1e-3, "rounds": 1, "steps": 1, "parallel": False},
    "lame": {"affinity": "rbf", "neighbours": 5, "steps": 100},
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
        ("cifar10-c", "tda+panda", {"alpha": 2.0, "sharpness": 5.0, "negative_alpha": 0.117, "beta": "auto"}),
        ("imagenet-c", "oga", {"slots": 8, "temperature": 0.05}),
        ("cifar100-c", "mint+panda", {"lr": 7e-3, "prior": 10_000.0, "beta": "auto"}),
        ("imagenet-c", "mint", {"lr": 1.5e-2}),
        ("cifar100-c", "latte", {"slots": 8, "alpha": 0.7, "sharpness": 60.0, "entropy_weight": 1.5}),
        ("cifar10-c", "onzeta", {"length": 10_000, "proxy_weight": 0.8, "proxy_lr": 0.5, "balance_lr": 20.0}),
        ("imagenet-c", "onzeta", {"length": 5000}),
        ("imagenet-c", "dota", {"growth": 0.005, "max_weight": 0.2, "shrinkage": 1e-4, "views": 64}),
        ("imagenet-c", "dpe", {"alpha": 6.0, "sharpness": 5.0, "alignment": 0.5, "lr": 6e-4, "max_entropy": 0.1}),
        ("cifar10-c", "boostadapter", {"views": 64, "keep": 0.1, "boost_slots": 3, "augmentation": "augmix"}),
        ("imagenet-c", "roid", {"lr": 2.5e-4, "optimizer": "sgd", "restore": 0.01}),
        ("cifar100-c", "cliptta", {"lr": 1e-4, "steps": 10, "slots": 16, "sample_size": 128}),
        ("cifar10-c", "eata", {"lr": 1e-3, "margin": 0.4, "d_margin": 0.4, "fisher_weight": 1.0}),
        ("cifar100-c", "memo", {"lr": 5e-3, "views": 32}),
        ("imagenet-c", "ramen", {"lr": 0.01, "slots": 75, "neighbours": 1, "sharpness": 0.0}),
        ("cifar10-c", "clipartt", {"lr": 1e-3, "steps": 10, "candidates": 3}),
        ("cifar10-c", "watt", {"lr": 1e-3, "rounds": 5, "steps": 2, "parallel": False}),
        ("cifar10-c-cpu", "watt", {"lr": 1e-3, "rounds": 1, "steps": 1}),
        ("cifar100-c-cpu", "cliptta", {"lr": 1e-4, "steps": 2, "slots": 16, "sample_size": 128}),
        ("imagenet-c-cpu", "tpt+panda", {"views": 10, "keep": 0.3, "beta": 0.4}),
        ("imagenet-c", "subtta", {"lr": 5e-4, "momentum": 0.5, "weight_decay": 0.01, "rank": 256}),
    ],
)
def test_the_published_values(preset, name, expected):
    used = options(name, preset)
    assert {key: used[key] for key in expected} == expected


def test_settings_go_before_presets_and_these_before_protocols():
    assert options("tent+panda", "cifar10-c", beta="auto")["beta"] == "auto"
    assert options("tent+panda", "cifar10-c", beta="auto")["lr"] == 2e-4
    assert options("tent+panda", protocol="reference")["sampler"] == "same_cell"
    assert options("tent+panda", protocol="reference", sampler="pool")["sampler"] == "pool"
    assert options("tent", protocol="reference") == {
        "lr": 1e-3,
        "predict_with": None,
        "skip_last_blocks": 0,
        "norm_statistics": None,
        "guard": False,
        "micro_batch": None,
        "protocol": "reference",
    }


def test_unknown_presets_and_protocols_get_a_suggestion():
    with pytest.raises(UnknownNameError, match="'cifar10-c'"):
        get_preset("cifar10c")
    with pytest.raises(UnknownNameError, match="'reference'"):
        options("tent", protocol="refrence")


def plan_one(method, preset=None, **more):
    """The run of a method on fog that the command line means by some options."""
    stream, sources, values = RunOptions(**more).resolve(None if preset is None else get_preset(preset))
    [config] = plan_runs(plan_methods([method], {}, values), plan_streams(stream, sources, ["fog"], [5], [0]))
    return config


def test_a_preset_brings_model_and_data():
    def planned(**more):
        config = plan_one("tent", **more)
        return config.stream.model, config.stream.data, config.method.options["lr"]

    assert planned(preset="cifar10-c") == ("ViT-B-32-quickgelu:openai", "cifar10-c", 2e-4)
    assert planned(preset="cifar10-c", model="mini", data="glyphs-c") == ("mini", "glyphs-c", 2e-4)
    assert planned() == ("mini", "glyphs-c", 1e-3)
    assert planned(model="ViT-B-32:random") == ("ViT-B-32:random", "glyphs-c", 1e-3)
    assert planned(model="ViT-B-32:openai")[0] == "ViT-B-32-quickgelu:openai"  # OpenAI's weights have QuickGELU


def test_a_preset_brings_its_prompts_and_the_command_line_goes_before_it():
    def planned(**more):
        config = plan_one("mint", **more)
        return config.stream.templates, config.stream.model, config.method.options["lr"]

    assert planned() == ("photo", "mini", 1.5e-2)
    assert planned(preset="imagenet-c")[0] == "photo"
    assert planned(preset="imagenet-c-openai")[0] == "openai"
    assert planned(preset="imagenet-c-mint") == ("mint", "ViT-L-14-quickgelu:openai", 1.5e-2)
    assert planned(preset="cifar10-c-mint", templates="photo")[0] == "photo"
    with pytest.raises(UnknownNameError, match="'openai'"):
        planned(templates="opnai")


def test_prompts_are_part_of_a_run(tmp_path, mini):
    from tta_panda.models import TEMPLATES, make_classifier

    assert [len(TEMPLATES.get(name)) for name in TEMPLATES] == [1, 1, 7, 80]
    assert {preset.templates for preset in PRESETS.values()} == set(TEMPLATES)
    records = [run(plan(["clip"], templates=name), tmp_path)[0] for name in TEMPLATES]
    assert len({record.nll for record in records}) == len({record.config.key for record in records}) == 4
    assert "templates mint" in records[2].config.stream.title()
    names = ["heart", "star"]
    expected = ZeroShotClassifier(mini, names, TEMPLATES.get("mint")).class_embeddings
    assert torch.equal(make_classifier(mini, names, "mint").class_embeddings, expected)
