"""The options that say what to run, declared once for every command that runs something."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from tta_panda.cli.common import make_progress, numbers, words

if TYPE_CHECKING:
    from tta_panda.evaluation.presets import Preset
    from tta_panda.evaluation.record import RunConfig, RunRecord
    from tta_panda.evaluation.run import Runner
    from tta_panda.evaluation.store import RunStore


class Outcome(NamedTuple):
    """What came of a request."""

    records: list[RunRecord]
    finished: int  # records that had been made before
    unavailable: dict[str, str]  # methods that the model cannot serve, and why
    unreadable: dict[str, str]  # domains that cannot be read, and why

    def by_key(self) -> dict[str, RunRecord]:
        return {record.config.key: record for record in self.records}

    def report_left_out(self) -> None:
        """Say on stderr what was left out, the reason once for all that share it."""
        left_out = self.unavailable | self.unreadable
        for reason in dict.fromkeys(left_out.values()):
            names = [name for name, why in left_out.items() if why == reason]
            typer.echo(f"not run: {', '.join(names)}: {reason}", err=True)


@dataclass(frozen=True)
class BenchmarkRequest:
    """What to run on and where. A field is an option of the command line."""

    preset: Annotated[
        str | None, typer.Option("--preset", help="The paper's settings of a benchmark; see: tta-panda ls presets.")
    ] = None
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="mini, ARCHITECTURE:TAG or ARCHITECTURE:FILE (open_clip), hf-hub:NAME, transformers:NAME, timm:NAME, "
            "or a directory.",
            show_default="the preset's, or mini",
        ),
    ] = None
    pretrained: Annotated[
        str | None, typer.Option("--pretrained", help="Weights tag or file, if not part of --model.")
    ] = None
    data: Annotated[
        str | None,
        typer.Option("--data", help="Data set; see: tta-panda ls data.", show_default="the preset's, or glyphs-c"),
    ] = None
    data_root: Annotated[Path | None, typer.Option("--data-root", help="Folder of data sets that are on disk.")] = None
    limit: Annotated[int | None, typer.Option("--limit", help="Use only so many images.")] = None
    preprocess: Annotated[
        str, typer.Option("--preprocess", help="batched: one tensor operation; exact: image by image with Pillow.")
    ] = "batched"
    image_list: Annotated[
        Path | None, typer.Option("--image-list", help="Text file that names the images to use, one per line.")
    ] = None
    protocol: Annotated[
        str, typer.Option("--protocol", help="paper: as the paper says; reference: as its authors' code does.")
    ] = "paper"
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or mps; auto: the best of them that is here.")] = (
        "auto"
    )
    precision: Annotated[
        str, typer.Option("--precision", help="Of the encoders: fp32, bf16 or fp16; all else is in fp32.")
    ] = "fp32"
    workers: Annotated[
        int | None, typer.Option("--workers", help="Processes to spread the runs over.", show_default="by size")
    ] = None

    def model_name(self, preset: Preset | None) -> str:
        """The model with its weights."""
        from tta_panda.models import parse_model_name

        model, pretrained = self.model, self.pretrained
        if model is None and preset is not None:
            model, pretrained = preset.model, pretrained or preset.pretrained
        model = model or "mini"
        return str(parse_model_name(model, pretrained)) if pretrained else model

    def data_name(self, preset: Preset | None) -> str:
        return self.data or (preset.data if preset else "glyphs-c")

    @property
    def uses_embedded_data(self) -> bool:
        return self.preset is None if self.data is None else self.data.startswith("glyphs")

    def runner(self, store: RunStore, configs: Sequence[RunConfig]) -> Runner:
        """What makes the records of these runs."""
        from tta_panda.evaluation.run import Runner, default_workers
        from tta_panda.models.devices import resolve_device

        device = resolve_device(self.device)
        workers = self.workers or default_workers(configs, device)
        return Runner(store, self.data_root, device, self.image_list, workers)


@dataclass(frozen=True)
class RunRequest(BenchmarkRequest):
    """Which runs, too."""

    corruption: Annotated[
        str, typer.Option("--corruption", help="Names with commas; clean and all are names, too.")
    ] = "clean,all"
    severity: Annotated[str, typer.Option("--severity", help="1 to 5; several with commas.")] = "5"
    batch_size: Annotated[int, typer.Option("--batch-size", help="Images per batch.")] = 100
    seed: Annotated[str, typer.Option("--seed", help="Of data order and negatives; several as 0,1,2 or 0-2.")] = "0"
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Option of a method or of Panda, as name=value; repeatable.")
    ] = None
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the records.")] = Path("runs")

    def configs(self, methods: Sequence[str]) -> list[RunConfig]:
        """The runs that these options mean for some methods."""
        from tta_panda.evaluation.plan import plan_runs
        from tta_panda.evaluation.presets import get_preset
        from tta_panda.methods.options import parse_setting

        preset = None if self.preset is None else get_preset(self.preset)
        return plan_runs(
            methods,
            model=self.model_name(preset),
            data=self.data_name(preset),
            preset=preset,
            protocol=self.protocol,
            precision=self.precision,
            corruptions=words(self.corruption),
            severities=numbers(self.severity),
            seeds=numbers(self.seed),
            batch_size=self.batch_size,
            limit=self.limit,
            preprocess=self.preprocess,
            image_list=self.image_list,
            data_root=self.data_root,
            settings=dict(parse_setting(text) for text in self.settings or []),
        )

    def run(self, methods: Sequence[str]) -> Outcome:
        """Make all these runs, with progress on stderr."""
        from tta_panda.evaluation.store import RunStore

        configs = self.configs(methods)
        return run_with_progress(self.runner(RunStore(self.output), configs), configs)


def run_with_progress(runner: Runner, configs: Sequence[RunConfig]) -> Outcome:
    """Make these runs, with progress on stderr."""
    store = runner.store
    store.prepare()
    finished = len(store.existing(configs))
    try:
        with make_progress("starting", total=len(configs)) as progress:
            task = progress.task_ids[0]
            progress.update(task, completed=finished)

            def advance(running: Sequence[RunConfig], share: float) -> None:
                names = ", ".join(dict.fromkeys(str(config.method_name) for config in running))
                description = f"{running[0].corruption}: {names}"
                progress.update(task, description=description, advance=share * len(running))

            return Outcome(runner.run(configs, advance), finished, runner.unavailable, runner.unreadable)
    except KeyboardInterrupt:
        message = f"Interrupted. Finished runs are in {store.root}; the same command goes on from there."
        typer.echo(message, err=True)
        raise typer.Exit(130) from None


def with_and_without_panda(names: str) -> list[str]:
    """`"all"`, or names with commas, as the plain methods and their Panda variants, side by side."""
    from tta_panda.methods import METHODS, PANDA_SUFFIX

    chosen = METHODS.names() if names == "all" else [name.partition("+")[0] for name in words(names)]
    return [variant for name in dict.fromkeys(chosen) for variant in (name, f"{name}+{PANDA_SUFFIX}")]


def takes_request(command: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's parameter `request` by the options that its class declares."""
    own_hints = typing.get_type_hints(command, include_extras=True)
    request_class: type[BenchmarkRequest] = own_hints["request"]
    options = fields(request_class)
    hints = typing.get_type_hints(request_class, include_extras=True)

    def with_options(**arguments: Any) -> None:
        request = request_class(**{option.name: arguments.pop(option.name) for option in options})
        command(request=request, **arguments)

    keyword = inspect.Parameter.KEYWORD_ONLY
    own = [p for p in inspect.signature(command).parameters.values() if p.name != "request"]
    parameters = [p.replace(kind=keyword, annotation=own_hints[p.name]) for p in own] + [
        inspect.Parameter(option.name, keyword, default=option.default, annotation=hints[option.name])
        for option in options
    ]
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    with_options.__doc__ = command.__doc__
    return with_options
