"""Runs in shards, and what they cost: balanced, merged by copying, counted without the model and the data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from records import plan, without_time
from typer.testing import CliRunner

from tta_panda.cli import app
from tta_panda.errors import InvalidInputError, StoreError
from tta_panda.evaluation.cost import Passes, balance, passes_per_image, task_cost
from tta_panda.evaluation.plan import Sources, plan_methods
from tta_panda.evaluation.shards import ShardName, read_shard
from tta_panda.evaluation.store import RunStore
from tta_panda.methods.presets import get_preset
from tta_panda.models.arithmetic import text_cost

BENCH = ["--method", "clip,tent", "--corruption", "fog,snow", "--limit", "20", "--batch-size", "10"]


def invoke(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output + str(result.exception)
    return result.stdout


def test_shards_make_what_the_command_would_make(tmp_path: Path) -> None:
    planned = json.loads(invoke("plan", "bench", *BENCH, "--shards", 3, "-o", tmp_path / "runs", "--json"))
    assert [row["runs"] for row in planned["rows"]] == [2, 3, 3] or sum(row["runs"] for row in planned["rows"]) == 8
    costs = [row["images"] for row in planned["rows"]]
    assert max(costs) < 1.5 * min(costs)
    for number in (2, 1, 3):
        made = json.loads(invoke("run", "--shard", f"{number}/3", "-o", tmp_path / "runs", "--json"))
        assert len(made["rows"]) == planned["rows"][number - 1]["runs"]
    whole = json.loads(invoke("bench", *BENCH, "-o", tmp_path / "runs", "--json"))
    assert whole["skipped"] == len(whole["rows"]) == 8
    invoke("bench", *BENCH, "-o", tmp_path / "other", "--json")
    sharded, direct = (RunStore(tmp_path / name).records() for name in ("runs", "other"))
    assert [without_time(record) for record in sharded] == [without_time(record) for record in direct]


def test_shards_of_experiments_go_where_the_experiments_look(tmp_path: Path) -> None:
    experiment = ["fig-evolution", "--limit", "20", "--seed", "0", "-o", tmp_path]
    invoke("plan", "reproduce", *experiment, "--shards", 2)
    for number in (1, 2):
        invoke("run", "--shard", f"{number}/2", "-o", tmp_path)
    made = json.loads(invoke("reproduce", *experiment, "--json"))
    assert made["runs"] == made["skipped"] == 2


def test_mistakes_get_a_sentence(tmp_path: Path) -> None:
    for text in ("3", "0/8", "9/8", "a/b", "3/8/2"):
        with pytest.raises(InvalidInputError, match="K from 1 to N, as in 3/8"):
            ShardName.parse(text)
    with pytest.raises(StoreError, match=r"There is no .*2-of-8\.json; shards there: none.*tta-panda plan"):
        read_shard(ShardName(2, 8), tmp_path)
    ShardName(2, 8).path(tmp_path).parent.mkdir()
    ShardName(2, 8).path(tmp_path).write_text("{}")
    with pytest.raises(StoreError, match="Plan the shards again"):
        read_shard(ShardName(2, 8), tmp_path)
    for options, message in {
        ("run", "--shard", "1/2", "--method", "tent"): "omit --method",
        ("run", "--shard", "1/2", "--batch-size", "7"): "omit --batch-size",
        ("run", "--shard", "1/2", "--set", "beta=1"): "omit --set",
        ("plan", "run", "--method", "clip", "--corruption", "fog", "--shards", "2"): "at most 1 shards, got 2",
        ("reproduce", "fig-ratio", "--throughput", "100"): "--dry-run",
        ("reproduce", "fig-ratio", "--dry-run", "--throughput", "1,2"): "one for each of 1 benchmarks",
    }.items():
        result = CliRunner().invoke(app, [*options, "-o", str(tmp_path / "none")])
        assert result.exit_code == 1 and message in str(result.exception)


@pytest.mark.parametrize("parts", [1, 3, 8])
def test_shards_are_balanced(parts: int) -> None:
    costs = [float(cost) for cost in (9, 1, 5, 5, 3, 7, 2, 2, 8, 4, 6, 1)]
    divided = balance(costs, parts)
    assert sorted(index for part in divided for index in part) == list(range(len(costs)))
    heaviest = max(sum(costs[index] for index in part) for part in divided)
    assert heaviest <= max(max(costs), 4 / 3 * sum(costs) / parts)  # what this rule is known to keep


def test_passes_are_counted_and_shared() -> None:
    def count(*names: str) -> Passes:
        return passes_per_image(tuple(plan_methods(names, preset=get_preset("cifar10-c"))), 100)

    assert count("clip") == Passes(images=1)
    assert count("clip", "dmn", "clip+panda", "dmn+panda").images == pytest.approx(1.1)
    assert count("tent+panda") == Passes(images_with_gradient=pytest.approx(1.1))
    assert count("clip", "tent").in_images(classes=10, text=1.0) == pytest.approx(1 + 3)
    bat = count("bat")
    assert (bat.images_with_gradient, bat.prompts_with_gradient) == (1, pytest.approx(0.01))
    few = {"views": 4, "keep": 0.5}
    views = tuple(plan_methods(["zero", "tps", "tpt"], few, get_preset("cifar10-c")))
    assert passes_per_image(views, 100) == Passes(images=4, prompts=1, prompts_with_gradient=1)


def test_texts_cost_what_their_transformer_does() -> None:
    assert text_cost("ViT-B-32-quickgelu:openai") == pytest.approx(2.98 / 4.29, rel=0.01)
    assert text_cost("ViT-B/16") == pytest.approx(2.98 / 17.45, rel=0.01)
    assert text_cost("RN50:openai") == text_cost("timm:resnet50") == 1.0


def test_costs_follow_the_images_of_the_data_set() -> None:
    def cost(**stream: object) -> float:
        return task_cost(plan(["clip"], preset="cifar10-c", **stream), Sources("mini")).in_images

    assert cost(limit=None) == 1000 and cost(limit=5000) == 5000  # embedded data are drawn
    assert cost(data="cifar10-c", limit=None) == 10_000 and cost(data="cifar10-c", limit=10**6) == 10_000
    assert cost(data="imagenet-c", limit=300) == 300
    joined = cost(limit=50, corruptions=["fog", "snow"], order="continual")
    assert joined == 100


def test_the_grid_is_estimated_without_model_and_data(tmp_path: Path) -> None:
    arguments = ["fig-evolution", "--preset", "all", "--dry-run", "-o", tmp_path, "--throughput"]
    found = json.loads(invoke("reproduce", *arguments, "1000,1000,500", "--json"))
    assert (found["runs"], found["exist"]) == (30, 0)
    seconds = 5 * 3 * 2.1 * (2 * 10_000 / 1000 + 50_000 / 500)  # seeds, with a gradient, tent and tent+panda
    assert found["gpu_hours"] == pytest.approx(seconds / 3600)
    assert found["hours_on_gpus"]["1"] == pytest.approx(found["gpu_hours"])
    assert found["hours_on_gpus"]["64"] == pytest.approx(3 * 1.1 * 50_000 / 500 / 3600)  # the longest run
    printed = invoke("reproduce", *arguments, "1000")
    assert "30 runs, 0 exist" in printed and "imagenet-c" in printed
    assert not list(tmp_path.iterdir())
