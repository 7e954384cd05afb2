"""Options shared by commands, declared once: as fields of a dataclass or as annotated types."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from tta_panda.errors import InvalidInputError, UnknownNameError
from tta_panda.files import read_regular
from tta_panda.models import parse_model_name

if TYPE_CHECKING:
    from tta_panda.evaluation.config import StreamConfig
    from tta_panda.evaluation.plan import Sources
    from tta_panda.executors import Executor
    from tta_panda.methods.presets import Preset

LOCAL, RAY = "local", "ray"

PANELS = ("Input", "Model", "Method", "Output", "Distribution")
"""Groups of options, in the order in which --help shows them."""
INPUT, MODEL, METHOD, OUTPUT, DISTRIBUTION = (partial(typer.Option, rich_help_panel=name) for name in PANELS)
"""`typer.Option` in each of these groups."""

JsonOption = Annotated[bool, OUTPUT("--json", help="Print one JSON document instead of tables.")]
PresetOption = Annotated[
    str | None,
    METHOD("--preset", metavar="NAME", help="Settings of a benchmark; see tta-panda ls presets."),
]
SettingsOption = Annotated[
    list[str] | None,
    METHOD("--set", metavar="NAME=VALUE", help="Set an option of methods or of Panda; repeatable."),
]
PrecisionOption = Annotated[
    str, MODEL("--precision", metavar="NAME", help="Precision of the encoders: fp32, bf16 or fp16.")
]
BackendOption = Annotated[str, MODEL("--backend", metavar="NAME", help="torch, or openvino (frozen methods on a CPU).")]
DeviceOption = Annotated[str, DISTRIBUTION(metavar="NAME", help="Device: auto, cpu, cuda or mps.")]
IgnoreOrientationOption = Annotated[
    bool, INPUT("--ignore-orientation", help="Ignore the EXIF orientation of image files.")
]


_NOT_FROM_A_FILE = ("output", "cache", "address")
"""Options that a configuration file must not have: where to write, and which cluster to trust."""


def _read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Use the values in a YAML file as defaults of the command's options."""
    if path is None or context.resilient_parsing:
        return path
    import yaml

    try:
        content = yaml.safe_load(read_regular(path))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise InvalidInputError(f"Cannot read the configuration {path}: {error}") from error
    if not isinstance(content, dict):
        found = type(content).__name__
        raise InvalidInputError(f"{path} must map options to values, as in `method: tent`; found a {found}.")
    known = {option.lstrip("-"): each.name for each in context.command.params for option in each.opts}
    defaults = {}
    for key, value in content.items():
        option = str(key).replace("_", "-")
        if option not in known or option == "config":
            raise UnknownNameError(f"option in {path}", str(key), [each for each in known if len(each) > 1])
        if known[option] in _NOT_FROM_A_FILE:
            raise InvalidInputError(f"{path} must not set {key}: give --{option} on the command line.")
        for each in value.values() if isinstance(value, dict) else [value]:
            # Nested lists have no meaning, and those that share their parts may have no end.
            if isinstance(each, dict) or (isinstance(each, list) and any(isinstance(e, list | dict) for e in each)):
                raise InvalidInputError(f"{path} must not nest values: {key}.")
        if option == "model" and parse_model_name(str(value)).library == "python":
            raise InvalidInputError(f"{path} must not name code to run: give --model {value} on the command line.")
        if isinstance(value, dict):  # of --set
            value = [f"{name}={each if isinstance(each, str) else json.dumps(each)}" for name, each in value.items()]
        elif isinstance(value, list) and option != "set":
            value = ",".join(map(str, value))
        if value is not None:
            defaults[known[option]] = value
    context.default_map = defaults
    return path


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of `bench` and `reproduce`."""

    config: Annotated[
        Path | None,
        INPUT(metavar="FILE", help="YAML file with values of options.", is_eager=True, callback=_read_config),
    ] = None
    data: Annotated[
        str | None,
        INPUT(metavar="NAME", help="Data set; see tta-panda ls data.", show_default="the preset's, or glyphs-c"),
    ] = None
    data_root: Annotated[Path | None, INPUT(metavar="DIR", help="Folder of data sets on disk.")] = None
    limit: Annotated[int | None, INPUT(metavar="N", min=1, help="Maximum number of images per corruption.")] = None
    image_list: Annotated[
        Path | None, INPUT(metavar="FILE", help="Use only the images listed in this file, one name per line.")
    ] = None
    skip_broken: Annotated[bool, INPUT("--skip-broken", help="Skip image files that cannot be read.")] = False
    preprocess: Annotated[
        str, INPUT(metavar="NAME", help="Resizing: batched (tensors) or exact (Pillow, like open_clip).")
    ] = "batched"
    ignore_orientation: IgnoreOrientationOption = False
    model: Annotated[
        str | None, MODEL(metavar="NAME", help="Model; see tta-panda ls models.", show_default="the preset's, or mini")
    ] = None
    templates: Annotated[
        str | None,
        MODEL(
            metavar="NAME",
            help="Prompt templates: photo, clipartt, mint (7) or openai (80), or a file of prompts.",
            show_default="the preset's, or photo",
        ),
    ] = None
    precision: PrecisionOption = "fp32"
    backend: BackendOption = "torch"
    settings: SettingsOption = None
    protocol: Annotated[
        str, METHOD(metavar="NAME", help="Follow the paper, or, with reference, the authors' code.")
    ] = "paper"
    cache: Annotated[Path | None, OUTPUT(metavar="DIR", help="Folder to cache image and text embeddings in.")] = None
    dry_run: Annotated[bool, OUTPUT("--dry-run", help="Count the runs and their images, but run nothing.")] = False
    verbose: Annotated[bool, OUTPUT("--verbose", "-v", help="With --dry-run: list the runs by data and methods.")] = (
        False
    )
    throughput: Annotated[
        float | None, OUTPUT(metavar="N", help="With --dry-run: images per second, to estimate the time.")
    ] = None
    shard: Annotated[str | None, DISTRIBUTION(metavar="K/N", help="Make only the K-th of N parts of the runs.")] = None

    def __post_init__(self) -> None:
        for name in ("throughput", "verbose"):
            if getattr(self, name) and not self.dry_run:
                raise InvalidInputError(f"--{name} needs a dry run: add --dry-run, or omit --{name}.")
        if self.throughput is not None and self.throughput <= 0:
            raise InvalidInputError(f"--throughput must be more than 0 images per second, got {self.throughput:g}.")

    def parsed_settings(self) -> dict[str, Any]:
        from tta_panda.methods.factory import parse_setting

        return dict(parse_setting(text) for text in self.settings or [])

    def resolve(self, preset: Preset | None = None, **stream: Any) -> tuple[StreamConfig, Sources, Preset | None]:
        """Resolve the settings that all runs share, the sources of model and data, and the preset for methods.

        Args:
            preset: provides model, data and templates unless options set them.
            stream: further fields of the `StreamConfig`.
        """
        from tta_panda.data import split_place
        from tta_panda.evaluation.config import EMBEDDED, StreamConfig
        from tta_panda.evaluation.plan import Sources, model_preset

        base = preset or EMBEDDED
        model = base.model if self.model is None else self.model
        data, place = split_place(base.data if self.data is None else self.data)
        root = place if self.data_root is None or place is None else self.data_root / place
        config = StreamConfig(
            model=model,
            data=data,
            templates=base.templates if self.templates is None else self.templates,
            limit=self.limit,
            precision=self.precision,
            backend=self.backend,
            preprocess=self.preprocess,  # type: ignore[arg-type]  # checked there
            ignore_orientation=self.ignore_orientation,
            **stream,
        )
        return (
            config,
            Sources(model, root or self.data_root, self.image_list, self.skip_broken, self.templates),
            preset or model_preset(model),
        )


@dataclass(frozen=True, kw_only=True)
class ExecutionOptions:
    """Options of where to run, and with how many workers."""

    device: DeviceOption = "auto"
    workers: Annotated[
        int | None,
        DISTRIBUTION(metavar="N", min=1, help="Number of worker processes.", show_default="by the size of the work"),
    ] = None
    engine: Annotated[
        str, DISTRIBUTION(metavar="NAME", help="Where workers run: local, or ray (needs tta-panda\\[ray]).")
    ] = LOCAL
    address: Annotated[
        str | None,
        DISTRIBUTION(
            metavar="ADDRESS",
            help="Address of a running Ray cluster; auto finds a local one.",
            show_default="start one",
        ),
    ] = None
    gpus_per_worker: Annotated[
        float | None,
        DISTRIBUTION(
            metavar="N", min=0, help="GPUs per Ray worker; may be a fraction.", show_default="1, or 0 without GPUs"
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.engine not in (LOCAL, RAY):
            raise UnknownNameError("engine", self.engine, (LOCAL, RAY))
        for name, value in (("--address", self.address), ("--gpus-per-worker", self.gpus_per_worker)):
            if value is not None and self.engine != RAY:
                raise InvalidInputError(f"{name} needs a cluster: add --engine ray, or omit {name}.")

    def usable_device(self) -> str:
        """The device to run on. For Ray, whose workers resolve it on their own machines, it may still be `auto`."""
        from tta_panda.models.devices import resolve_device

        return self.device if self.engine == RAY else resolve_device(self.device)

    def make_executor(self, workers: int) -> Executor:
        """Create the executor; `workers` is the default of --workers on this machine."""
        if self.engine == RAY:
            from tta_panda.ray_executor import RayExecutor

            return RayExecutor(self.address, self.workers, 0.0 if self.device == "cpu" else self.gpus_per_worker)
        from tta_panda.executors import local_executor

        return local_executor(self.workers or workers)


def expand_options(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command for typer: an option for every field of its dataclass parameters, sorted by panel."""
    given = signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {name: each.annotation for name, each in given.items() if is_dataclass(each.annotation)}
    parameters = [each for name, each in given.items() if name not in groups]
    for group in groups.values():
        hints = get_type_hints(group, include_extras=True)
        parameters += [
            Parameter(each.name, Parameter.KEYWORD_ONLY, default=each.default, annotation=hints[each.name])
            for each in fields(group)
        ]

    @functools.wraps(command)
    def expanded(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{each.name: values.pop(each.name) for each in fields(group)})
        command(**values)

    def panel(parameter: Parameter) -> int:
        [option] = parameter.annotation.__metadata__
        return PANELS.index(option.rich_help_panel) if option.rich_help_panel else -1

    expanded.__signature__ = Signature(sorted(parameters, key=panel))  # type: ignore[attr-defined]
    return expanded
