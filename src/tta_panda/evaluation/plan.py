"""Plan runs: every method on every domain with every seed, with all options and digests resolved.

Modules that import torch are imported inside functions, so that experiments can be listed without it.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tta_panda.data import CLEAN, find_source, load_data
from tta_panda.data.corruptions import CORRUPTIONS, expand_corruptions
from tta_panda.data.listing import list_digest, read_image_list
from tta_panda.data.order import RESET
from tta_panda.data.source import DataSource
from tta_panda.errors import InvalidInputError, UnknownNameError
from tta_panda.evaluation.config import ALL, MethodConfig, RunConfig, StreamConfig
from tta_panda.methods import parse_method
from tta_panda.methods.presets import Preset, get_preset


@dataclass(frozen=True)
class Sources:
    """Locations of model and data on this machine, which are not part of the configuration of runs."""

    model: str
    data_root: Path | None = None
    image_list: Path | None = None
    skip_broken: bool = False
    """Whether to skip image files that cannot be decoded, which are an error otherwise."""
    templates: str | None = None
    """Name or file of the prompts, if the stream does not name them."""


def plan_streams(
    stream: StreamConfig,
    sources: Sources,
    corruptions: Sequence[str],
    severities: Sequence[int],
    seeds: Sequence[int],
) -> list[StreamConfig]:
    """Plan one stream per seed and domain, including the digests that identify model and data."""
    from tta_panda.models import recorded_name, weights_digest
    from tta_panda.models.devices import check_backend, check_precision
    from tta_panda.models.prompts import find_templates, recorded_templates

    check_precision(stream.precision)
    check_backend(stream.backend, precision=stream.precision)
    find_templates(sources.templates or stream.templates)  # raises if unknown
    data = find_source(stream.data)
    stream = replace(
        stream,
        model=recorded_name(sources.model),
        weights=weights_digest(sources.model),
        templates=recorded_templates(sources.templates or stream.templates),
        # Image files of any size are resized one by one as they are read.
        preprocess="exact" if data.image_files else stream.preprocess,
        ignore_orientation=stream.ignore_orientation and data.image_files,
        image_list=list_digest(read_image_list(sources.image_list)) if sources.image_list else None,
    )
    names = data.expand(corruptions, sources.data_root)
    domains = [
        replace(each, fingerprint=_fingerprint(data, sources, each))
        for each in _domains(stream, names, severities if data.has_severities else [0])
    ]
    return [replace(domain, seed=seed) for seed in dict.fromkeys(seeds) for domain in domains]


def _domains(stream: StreamConfig, names: Sequence[str], severities: Sequence[int]) -> list[StreamConfig]:
    """One stream per corruption, or one of all corruptions, at each severity. Clean images are always separate.

    Domains that are no corruptions have the severity 0.
    """
    order = stream.parsed_order
    if severities == [0]:
        if order.domains == "gradual":
            raise InvalidInputError("The order gradual needs corruptions with severities; use continual or mixed.")
    else:
        expand_corruptions((), severities)  # checks the severities
    alone = replace(stream, order=str(replace(order, domains=RESET, rounds=1)), corruption=CLEAN)
    corrupted = tuple(dict.fromkeys(name for name in names if name != CLEAN))
    if corrupted and (order.domains in ("gradual", "recurring") or (order.joins_domains and len(corrupted) > 1)):
        joined = ALL if corrupted == CORRUPTIONS else ",".join(corrupted)
        streams = [alone] * (CLEAN in names) + [
            replace(stream, corruption=joined, severity=each) for each in severities
        ]
    else:
        streams = [
            alone if name == CLEAN else replace(alone, corruption=name, severity=severity)
            for severity in severities
            for name in names
        ]
    return list(dict.fromkeys(streams))


def _fingerprint(data: DataSource, sources: Sources, stream: StreamConfig) -> str | None:
    """The fingerprint that all domains of a stream share, or a digest of theirs if they differ."""
    found = [
        data.fingerprint(sources.data_root, corruption, severity, skip_broken=sources.skip_broken)
        for corruption, severity in dict.fromkeys(stream.visits)
    ]
    return found[0] if len(set(found)) == 1 else hashlib.sha256(str(found).encode()).hexdigest()[:12]


def model_preset(model: str) -> Preset | None:
    """The preset that belongs to a model, if there is one."""
    from tta_panda.models import model_source

    name = model_source(model).preset
    return None if name is None else get_preset(name)


def plan_methods(
    names: Sequence[str],
    settings: Mapping[str, Any] | None = None,
    preset: Preset | None = None,
    protocol: str = "paper",
) -> list[MethodConfig]:
    """Resolve all options of methods. A setting applies to every method that has it; if none has it, it is an error.

    A list of values makes one method for each value.
    """
    from tta_panda.methods.factory import default_options, resolve_options

    parsed = dict.fromkeys(parse_method(name) for name in names)
    if not parsed:
        raise InvalidInputError("Name at least one method, as in --method tent+panda.")
    settings = settings or {}
    known = {name: default_options(name) for name in parsed}
    for key in settings:
        if not any(key in options for options in known.values()):
            every = {option for options in known.values() for option in options}
            raise UnknownNameError(f"option of {', '.join(map(str, parsed))}", key, every)
    several = {key: value if value and isinstance(value, list) else [value] for key, value in settings.items()}
    planned = []
    for name in parsed:
        own = {key: values for key, values in several.items() if key in known[name]}
        for chosen in itertools.product(*own.values()):
            options = resolve_options(name, dict(zip(own, chosen, strict=True)), preset=preset, protocol=protocol)
            planned.append(MethodConfig(name=str(name), options=options))
    return list(dict.fromkeys(planned))


def plan_runs(methods: Sequence[MethodConfig], streams: Sequence[StreamConfig]) -> list[RunConfig]:
    """Combine streams and methods, stream by stream, so that runs that share data and encoder passes are adjacent."""
    return [RunConfig(stream=stream, method=method) for stream in streams for method in methods]


def select_shard(configs: Sequence[RunConfig], part: int, parts: int) -> list[RunConfig]:
    """Select the runs of one of several parts, by key: a run is in the same part whatever the others are."""
    return [config for config in configs if int(config.key, 16) % parts == part - 1]


def data_size(stream: StreamConfig, sources: Sources) -> tuple[int, int]:
    """Numbers of images in a domain and of classes, from the registry or, if it has none, from the data."""
    source = find_source(stream.data)
    if source.size is None:
        corruption, severity = stream.visits[0]
        chosen: dict[str, Any] = {"limit": stream.limit, "unknown_classes": stream.unknown}
        data = load_data(stream.data, corruption, severity, root=sources.data_root, **chosen)
        return len(data), len(data.class_names)
    there, classes = source.size
    images, classes = stream.limit or there, classes - len(stream.unknown)
    return images if source.embedded else min(images, there), classes
