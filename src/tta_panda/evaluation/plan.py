"""Which runs a request means: every method on every domain with every seed, options resolved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from tta_panda.data import DATASETS, IMAGE_FILE_DATASETS
from tta_panda.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from tta_panda.data.dataset import CLEAN
from tta_panda.data.fingerprint import data_fingerprint
from tta_panda.data.lists import list_digest, read_image_list
from tta_panda.errors import InvalidInputError, UnknownNameError
from tta_panda.evaluation.presets import Preset
from tta_panda.evaluation.record import RunConfig
from tta_panda.methods import MethodName, parse_method
from tta_panda.methods.options import default_options, protocol_options, resolve_options
from tta_panda.models import weights_digest
from tta_panda.models.devices import check_precision

ALL = "all"
PREPROCESSING: tuple[str, ...] = get_args(RunConfig.model_fields["preprocess"].annotation)


def plan_runs(
    methods: Sequence[str],
    *,
    model: str,
    data: str,
    corruptions: Sequence[str] = (CLEAN, ALL),
    severities: Sequence[int] = (5,),
    seeds: Sequence[int] = (0,),
    batch_size: int = 100,
    limit: int | None = None,
    preprocess: str = "batched",
    image_list: Path | None = None,
    data_root: Path | None = None,
    preset: Preset | None = None,
    protocol: str = "paper",
    precision: str = "fp32",
    settings: Mapping[str, Any] | None = None,
) -> list[RunConfig]:
    """Configurations domain by domain, so that runs that share data and encoder passes stand together.

    A setting goes to every method that has an option of that name; one that no method has is an error. Settings go
    before what the preset says, and that before what the protocol and the methods' defaults say.
    """
    _check(data, batch_size, preprocess, seeds)
    check_precision(precision)
    options = _options_per_method(methods, settings or {}, preset, protocol)
    shared = {
        "model": model,
        "weights": weights_digest(model),
        "data": data,
        "batch_size": batch_size,
        "limit": limit,
        "preprocess": "exact" if data in IMAGE_FILE_DATASETS else preprocess,  # files of any size are fitted one by one
        "image_list": list_digest(read_image_list(image_list)) if image_list else None,
        "precision": precision,
    }
    domains = _domains(corruptions, severities)
    fingerprints = {domain: data_fingerprint(data, data_root, *domain) for domain in domains}
    return [
        RunConfig(
            method=name.base,
            panda=name.panda,
            options=options[str(name)],
            corruption=corruption,
            severity=severity,
            seed=seed,
            data_fingerprint=fingerprints[corruption, severity],
            **shared,
        )
        for seed in dict.fromkeys(seeds)
        for corruption, severity in domains
        for name in dict.fromkeys(parse_method(method) for method in methods)
    ]


def _check(data: str, batch_size: int, preprocess: str, seeds: Sequence[int]) -> None:
    if data not in DATASETS:
        raise UnknownNameError("data set", data, DATASETS)
    if batch_size < 1:
        raise InvalidInputError(f"The batch size must be at least 1, got {batch_size}.")
    if preprocess not in PREPROCESSING:
        raise UnknownNameError("preprocessing", preprocess, PREPROCESSING)
    if any(seed < 0 for seed in seeds):
        raise InvalidInputError(f"Seeds must not be negative, got {', '.join(map(str, seeds))}.")


def _domains(corruptions: Sequence[str], severities: Sequence[int]) -> list[tuple[str, int]]:
    domains: dict[tuple[str, int], None] = {}
    for severity in severities:
        if not 1 <= severity <= 5:
            raise InvalidInputError(f"Severities go from 1 to 5, got {severity}.")
        for requested in corruptions:
            for corruption in CORRUPTIONS if requested == ALL else (requested,):
                if corruption == CLEAN:
                    domains[CLEAN, 0] = None
                elif corruption in CORRUPTIONS or corruption in EXTRA_CORRUPTIONS:
                    domains[corruption, severity] = None
                else:
                    known = (CLEAN, ALL, *CORRUPTIONS, *EXTRA_CORRUPTIONS)
                    raise UnknownNameError("corruption", corruption, known)
    return list(domains)


def _options_per_method(
    methods: Sequence[str], settings: Mapping[str, Any], preset: Preset | None, protocol: str
) -> dict[str, dict[str, Any]]:
    names = [parse_method(method) for method in methods]
    if not names:
        raise InvalidInputError("Name at least one method, as in --method tent+panda.")
    known = {str(name): default_options(name) for name in names}
    for key in settings:
        if not any(key in options for options in known.values()):
            every_key = {option for options in known.values() for option in options}
            raise UnknownNameError(f"option of {', '.join(known)}", key, every_key)

    return {str(name): run_options(name, settings, preset, protocol) for name in names}


def run_options(
    name: MethodName, settings: Mapping[str, Any], preset: Preset | None = None, protocol: str = "paper"
) -> dict[str, Any]:
    """Every option of a method: as set, else as the preset, the protocol or the default says. Others' are left out."""
    wanted = protocol_options(protocol) | (preset.options(name) if preset else {}) | dict(settings)
    known = default_options(name)
    return resolve_options(name, {key: value for key, value in wanted.items() if key in known})
