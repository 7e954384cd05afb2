"""Made-up records for tests of tables and pages, and small runs for tests of what makes records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tta_panda.data import CLEAN
from tta_panda.evaluation.config import MethodConfig, RunConfig, StreamConfig
from tta_panda.evaluation.plan import Sources, model_preset, plan_methods, plan_runs, plan_streams
from tta_panda.evaluation.record import SCHEMA, Measurement, RunRecord
from tta_panda.evaluation.run import Evaluator, Outcome, make_runs
from tta_panda.evaluation.store import RunStore
from tta_panda.executors import Executor, local_executor
from tta_panda.methods.presets import get_preset


def make_record(
    method: str = "clip",
    corruption: str = "fog",
    *,
    config: RunConfig | None = None,
    accuracy: float = 0.5,
    bias: float = 0.4,
    options: dict[str, Any] | None = None,
    **stream: Any,
) -> RunRecord:
    """A record of `config`, or of a method on a stream."""
    severity = stream.pop("severity", 0 if corruption == CLEAN else 5)
    known = {"model": "mini", "data": "glyphs-c", "corruption": corruption, "severity": severity, **stream}
    chosen = ({"beta": "auto"} if "+" in method else {}) | (options or {})
    config = config or RunConfig(stream=StreamConfig(**known), method=MethodConfig(name=method, options=chosen))
    beta = 0.3 if config.method.parsed.debias else None
    detected: dict[str, Any] = {}
    if config.stream.unknown_classes:
        names = ["known_energies", "unknown_energies"] + (["known_p_values", "unknown_p_values"] if beta else [])
        detected = {"unknown": 50, "auroc": 0.8, "fpr95": 0.6} | {name: [i / 100 for i in range(101)] for name in names}
    measured = {
        "accuracy": accuracy,
        "accuracy_stderr": 0.05,
        "bias": bias,
        "ece": 0.1,
        "nll": 1.0,
        "nll_stderr": 0.1,
        "recall_sd": 0.2,
        "recall_min": 0.1,
        "recall_max": 0.9,
        "mean_beta": beta,
    }
    counts = {"predicted_counts": [70, 30], "label_counts": [50, 50], "mean_probabilities": [0.7, 0.3]}
    whole = Measurement(samples=100, **measured, **counts, **detected)
    domains = config.stream.corruptions if config.stream.parsed_order.joins_domains else ()
    return RunRecord(
        **dict(whole),
        schema_number=SCHEMA,
        config=config,
        weights_hash="0123456789abcdef",
        class_names=["heart", "star"],
        domains=dict.fromkeys(domains, whole),
        tenths=[Measurement(samples=10, **measured)] * 10 * max(1, len(domains)),
        passes={"images": 100, "images_with_gradient": 12.5, "texts": 0, "texts_with_gradient": 0},
        seconds=1.0,
        images_per_second=100.0,
        peak_memory=1 << 28,
        environment={"python": "3"},
    )


def plan(
    methods: Sequence[str], *, model: str = "mini", settings: dict[str, Any] | None = None, **more: Any
) -> list[RunConfig]:
    """The runs that a command would make on embedded validation data, or as `more` says."""
    preset, protocol = more.pop("preset", None), more.pop("protocol", "paper")
    axes = {"corruptions": ["fog"], "severities": [5], "seeds": [0]}
    axes |= {name: more.pop(name) for name in axes.keys() & more.keys()}
    sources = Sources(model, more.pop("data_root", None), more.pop("image_list", None))
    stream = StreamConfig(**{"model": model, "data": "glyphs-val-c", "batch_size": 20, "limit": 50, **more})
    chosen = plan_methods(methods, settings, get_preset(preset) if preset else model_preset(model), protocol)
    return plan_runs(chosen, plan_streams(stream, sources, **axes))


def make(
    configs: list[RunConfig],
    folder: Path,
    *,
    workers: int = 1,
    executor: Executor | None = None,
    report: Callable[[Sequence[RunConfig], float], None] = lambda _configs, _share: None,
    **more: Any,
) -> Outcome:
    """Runs made, by default in this process."""
    evaluator = Evaluator(Sources(configs[0].stream.model), **more)
    return make_runs(configs, RunStore(folder), evaluator, executor or local_executor(workers), report)


def run(configs: list[RunConfig], folder: Path, **more: Any) -> list[RunRecord]:
    """Their records, in order."""
    return list(make(configs, folder, **more).records.values())


def without_time(record: RunRecord) -> dict[str, Any]:
    """All that must be the same whenever and wherever a run is made."""
    return record.model_dump(exclude={"seconds", "images_per_second", "peak_memory", "environment"})
