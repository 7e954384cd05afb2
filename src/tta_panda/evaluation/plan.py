"""From what was asked for to runs: every method on every domain with every seed, all options and digests resolved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tta_panda.data import CLEAN, DATASETS
from tta_panda.data.corruptions import expand_corruptions
from tta_panda.data.read.lists import list_digest, read_image_list
from tta_panda.errors import InvalidInputError, UnknownNameError
from tta_panda.evaluation.config import MethodConfig, RunConfig, StreamConfig
from tta_panda.methods import parse_method
from tta_panda.methods.options import default_options, resolve_options
from tta_panda.methods.presets import Preset, get_preset
from tta_panda.models import model_source, recorded_name, weights_digest
from tta_panda.models.devices import check_precision


@dataclass(frozen=True)
class Sources:
    """Where the model and the data of runs are found on this machine, which is not part of the runs themselves."""

    model: str
    data_root: Path | None = None
    image_list: Path | None = None


def plan_streams(
    stream: StreamConfig,
    sources: Sources,
    corruptions: Sequence[str],
    severities: Sequence[int],
    seeds: Sequence[int],
) -> list[StreamConfig]:
    """One stream for each seed and domain, with what identifies model and data filled in."""
    check_precision(stream.precision)
    data = DATASETS.get(stream.data)
    stream = replace(
        stream,
        model=recorded_name(sources.model),
        weights=weights_digest(sources.model),
        # Image files of any size are resized one by one as they are read.
        preprocess="exact" if data.image_files else stream.preprocess,
        image_list=list_digest(read_image_list(sources.image_list)) if sources.image_list else None,
    )
    domains = [
        replace(
            stream,
            corruption=corruption,
            severity=severity,
            fingerprint=data.fingerprint(sources.data_root, corruption, severity),
        )
        for corruption, severity in _domains(corruptions, severities)
    ]
    return [replace(domain, seed=seed) for seed in dict.fromkeys(seeds) for domain in domains]


def _domains(corruptions: Sequence[str], severities: Sequence[int]) -> list[tuple[str, int]]:
    """(corruption, severity), each once; clean images have severity 0."""
    names = [name for each in corruptions for name in ([CLEAN] if each == CLEAN else expand_corruptions([each]))]
    expand_corruptions((), severities)  # checks the severities
    pairs = [(name, 0 if name == CLEAN else severity) for severity in severities for name in names]
    return list(dict.fromkeys(pairs))


def model_preset(model: str) -> Preset | None:
    """The preset that belongs to a model, if there is one."""
    name = model_source(model).preset
    return None if name is None else get_preset(name)


def plan_methods(
    names: Sequence[str],
    settings: Mapping[str, Any] | None = None,
    preset: Preset | None = None,
    protocol: str = "paper",
) -> list[MethodConfig]:
    """Methods with all their options. A setting goes to every method that has it; one that none has is an error."""
    parsed = dict.fromkeys(parse_method(name) for name in names)
    if not parsed:
        raise InvalidInputError("Name at least one method, as in --method tent+panda.")
    settings = settings or {}
    known = {name: default_options(name) for name in parsed}
    for key in settings:
        if not any(key in options for options in known.values()):
            every = {option for options in known.values() for option in options}
            raise UnknownNameError(f"option of {', '.join(map(str, parsed))}", key, every)
    return [
        MethodConfig(
            name=str(name),
            options=resolve_options(
                name,
                {key: value for key, value in settings.items() if key in known[name]},
                preset=preset,
                protocol=protocol,
            ),
        )
        for name in parsed
    ]


def plan_runs(methods: Sequence[MethodConfig], streams: Sequence[StreamConfig]) -> list[RunConfig]:
    """Stream by stream, so that runs that share data and encoder passes stand together."""
    return [RunConfig(stream=stream, method=method) for stream in streams for method in methods]
