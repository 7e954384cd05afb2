"""The options that say what to run, for every command that runs something."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.filesize import decimal

from tta_panda.cli.common import numbers, say, words
from tta_panda.cli.engines import EngineOptions, default_workers
from tta_panda.cli.interruptions import keeping
from tta_panda.escapes import printable
from tta_panda.evaluation.config import EMBEDDED, StreamConfig
from tta_panda.progress import make_progress

if TYPE_CHECKING:
    from tta_panda.evaluation.config import RunConfig
    from tta_panda.evaluation.outcome import Outcome
    from tta_panda.evaluation.plan import Sources
    from tta_panda.evaluation.run import Runner
    from tta_panda.evaluation.store import RunStore
    from tta_panda.methods.presets import Preset


def stream_options(*omitted: str) -> type:
    """A class with one field for every option of a stream: its flag, its help and its default."""
    options = []
    hints = typing.get_type_hints(StreamConfig)
    for name, option in StreamConfig.options().items():
        if name in omitted:
            continue
        default = next(each.default for each in fields(StreamConfig) if each.name == name)
        shown: Any = True
        kind: Any = hints[name] if hints[name] in (str, int, int | None, bool) else str
        if option.by_preset:
            kind, default, shown = str | None, None, f"the preset's, or {getattr(EMBEDDED, name)}"
        if option.several:
            kind, default = str, option.several
        flag = typer.Option(f"--{name.replace('_', '-')}", help=option.help, show_default=shown)
        options.append((name, Annotated[kind, flag], field(default=default)))
    return make_dataclass("StreamOptions", options, frozen=True)


OutputOption = Annotated[Path, typer.Option("--output", "-o", help="Folder for records, tables, figures, report.")]


@dataclass(frozen=True)
class CommonOptions(EngineOptions):
    """What to run on besides the stream, and where."""

    preset: Annotated[
        str | None, typer.Option("--preset", help="Settings of a benchmark; see: tta-panda ls presets.")
    ] = None
    protocol: Annotated[
        str, typer.Option("--protocol", help="paper: as the paper says; reference: as its authors' code does.")
    ] = "paper"
    data_root: Annotated[Path | None, typer.Option("--data-root", help="Folder of data sets that are on disk.")] = None
    image_list: Annotated[
        Path | None, typer.Option("--image-list", help="Text file that names the images to use, one per line.")
    ] = None
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken", help="Leave out image files that cannot be decoded; they are named.")
    ] = False
    cache: Annotated[
        Path | None,
        typer.Option("--cache", help="Folder for encoded features: methods that do not train encode nothing twice."),
    ] = None
    output: OutputOption = Path("runs")

    @property
    def kept(self) -> str:
        return f"Finished runs are in {self.output}; the same command goes on from there."

    def sources(self, preset: Preset | None) -> Sources:
        """Where model and data are found; `preset` knows the model where none is named."""
        from tta_panda.evaluation.plan import Sources

        model = getattr(self, "model", None)
        if model is None:  # an empty name is refused where names are read
            model = preset.model if preset else EMBEDDED.model
        return Sources(model, self.data_root, self.image_list, self.skip_broken)

    def stream(self, preset: Preset | None) -> StreamConfig:
        """What all runs have in common. Options with several values are left at their defaults."""
        given = {name: getattr(self, name, None) for name, each in StreamConfig.options().items() if not each.several}
        known = {name: value for name, value in given.items() if value is not None}
        by_preset = [name for name, each in StreamConfig.options().items() if each.by_preset]
        defaults = {name: getattr(preset or EMBEDDED, name) for name in by_preset}
        return StreamConfig(**(defaults | known))

    def runner(self, store: RunStore, sources: Sources, configs: Sequence[RunConfig], timed: bool = False) -> Runner:
        """What makes the records of these runs."""
        from tta_panda.evaluation.evaluator import Evaluator
        from tta_panda.evaluation.run import Runner

        device = self.usable_device()
        evaluator = Evaluator(sources, device, timed=timed, cache=self.cache)
        options = replace(self, workers=1) if timed else self
        return Runner(store, evaluator, options.make_executor(default_workers(configs, sources, device)))


@dataclass(frozen=True)
class RunOptions(CommonOptions, stream_options()):  # type: ignore[misc]
    """Which runs."""

    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Option of a method or its debiasing, as name=value; repeatable. With several values, as in "
            "beta=0.1,0.2,0.5, each is run.",
        ),
    ] = None

    def named_preset(self) -> Preset | None:
        from tta_panda.methods.presets import get_preset

        return None if self.preset is None else get_preset(self.preset)

    def plan(self, methods: Sequence[str]) -> tuple[list[RunConfig], Sources]:
        """The runs that these options mean for some methods, and where their model and data are found."""
        from tta_panda.evaluation.plan import model_preset, plan_methods, plan_runs, plan_streams
        from tta_panda.methods.factory import parse_setting

        named = self.named_preset()
        sources = self.sources(named)
        preset = named or model_preset(sources.model)
        settings = dict(parse_setting(text) for text in self.settings or [])
        streams = plan_streams(
            self.stream(named), sources, words(self.corruption), numbers(self.severity), numbers(self.seed)
        )
        return plan_runs(plan_methods(methods, settings, preset, self.protocol), streams), sources

    def run(self, methods: Sequence[str]) -> Outcome:
        """Make all these runs, with progress on stderr."""
        from tta_panda.evaluation.store import RunStore

        configs, sources = self.plan(methods)
        return run_with_progress(self.runner(RunStore(self.output), sources, configs), configs)


def run_with_progress(runner: Runner, configs: Sequence[RunConfig]) -> Outcome:
    """Make these runs, with progress on stderr, and say there what gave no record."""
    with make_progress("starting", total=len(configs)) as progress:
        task = progress.task_ids[0]

        def advance(running: Sequence[RunConfig], share: float) -> None:
            names = ", ".join(dict.fromkeys(config.method.name for config in running))
            description = f"{running[0].stream.corruption}: {names}"
            progress.update(task, description=printable(description), advance=share * len(running))

        outcome = runner.run(configs, advance)
    not_run = outcome.unavailable | outcome.unreadable
    for reason in dict.fromkeys(not_run.values()):  # once for all that share it
        names = [name for name, why in not_run.items() if why == reason]
        say(f"not run: {', '.join(names)}: {reason}")
    for each in outcome.diverged.values():
        again = f"To try again, delete {runner.store.divergence_path(each.config)}"
        say(f"diverged: {each.config}: {each.message} {again}")
    for reason in dict.fromkeys(each.message for each in outcome.failed.values()):
        failed = [str(each.config) for each in outcome.failed.values() if each.message == reason]
        say(f"failed: {'; '.join(failed)}: {reason} The same command tries again.")
    if (cache := runner.evaluator.cache) is not None:
        from tta_panda.methods.feature_cache import folder_size

        say(f"note: {cache} holds {decimal(folder_size(cache))} of features")
    return outcome


def exit_code(outcome: Outcome) -> int:
    """1 where data could not be read or runs failed. That a model cannot serve a method, or diverges, is a finding."""
    return int(bool(outcome.unreadable or outcome.failed))


def plain_and_debiased(names: str) -> list[str]:
    """Comma-separated names, `all` among them, as pairs: methods plain, and debiased as they say, else by Panda."""
    from tta_panda.methods import METHODS, MethodName, parse_method

    every = [name for word in words(names) for name in (METHODS.names() if word == "all" else [word])]
    chosen = [parse_method(name) for name in every]
    pairs = [(name.base, str(MethodName(name.base, name.debias or "panda"))) for name in chosen]
    return list(dict.fromkeys(name for pair in pairs for name in pair))


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's parameter `options` by the options that its class declares.

    The class also says, as `kept`, what an interruption leaves.
    """
    own_hints = typing.get_type_hints(command, include_extras=True)
    options_class: Any = own_hints["options"]
    declared = fields(options_class)
    hints = typing.get_type_hints(options_class, include_extras=True)

    def with_options(**arguments: Any) -> None:
        options = options_class(**{option.name: arguments.pop(option.name) for option in declared})
        with keeping(options.kept):
            command(options=options, **arguments)

    keyword = inspect.Parameter.KEYWORD_ONLY
    own = [p for p in inspect.signature(command).parameters.values() if p.name != "options"]
    parameters = [p.replace(kind=keyword, annotation=own_hints[p.name]) for p in own] + [
        inspect.Parameter(option.name, keyword, default=option.default, annotation=hints[option.name])
        for option in declared
    ]
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    with_options.__doc__ = command.__doc__
    return with_options
