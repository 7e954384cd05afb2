"""The options that say what to run, declared once for every command that runs something."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tta_panda.cli.common import make_progress, numbers, words
from tta_panda.errors import InvalidInputError

if TYPE_CHECKING:
    from tta_panda.evaluation.record import RunConfig, RunRecord


@dataclass(frozen=True)
class RunRequest:
    """A field is an option of the command line."""

    model: Annotated[
        str, typer.Option("--model", help="mini, ARCHITECTURE:TAG or ARCHITECTURE:FILE (open_clip), or a directory.")
    ] = "mini"
    pretrained: Annotated[
        str | None, typer.Option("--pretrained", help="Weights tag or file, if not part of --model.")
    ] = None
    data: Annotated[str, typer.Option("--data", help="Data set; see: tta-panda ls data.")] = "glyphs-c"
    data_root: Annotated[Path | None, typer.Option("--data-root", help="Folder of data sets that are on disk.")] = None
    corruption: Annotated[
        str, typer.Option("--corruption", help="Names with commas; clean and all are names, too.")
    ] = "clean,all"
    severity: Annotated[str, typer.Option("--severity", help="1 to 5; several with commas.")] = "5"
    batch_size: Annotated[int, typer.Option("--batch-size", help="Images per batch.")] = 100
    seed: Annotated[str, typer.Option("--seed", help="Of data order and negatives; several with commas.")] = "0"
    limit: Annotated[int | None, typer.Option("--limit", help="Use only so many images.")] = None
    preprocess: Annotated[
        str, typer.Option("--preprocess", help="batched: one tensor operation; exact: image by image with Pillow.")
    ] = "batched"
    image_list: Annotated[
        Path | None, typer.Option("--image-list", help="Text file that names the images to use, one per line.")
    ] = None
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Option of a method or of Panda, as name=value; repeatable.")
    ] = None
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the records.")] = Path("runs")
    device: Annotated[str, typer.Option("--device", help="Where the model runs, as torch names it.")] = "cpu"

    def configs(self, methods: Sequence[str]) -> list[RunConfig]:
        """The runs that these options mean for some methods."""
        from tta_panda.evaluation.plan import plan_runs
        from tta_panda.methods.options import parse_setting

        if self.pretrained and ":" in self.model:
            raise InvalidInputError(
                f"The weights are named twice: --model {self.model} --pretrained {self.pretrained}."
            )
        return plan_runs(
            methods,
            model=f"{self.model}:{self.pretrained}" if self.pretrained else self.model,
            data=self.data,
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

    def run(self, methods: Sequence[str]) -> tuple[list[RunRecord], int]:
        """Records of all these runs, with progress on stderr, and how many of them had been made before."""
        from tta_panda.evaluation.run import Runner
        from tta_panda.evaluation.store import RunStore

        configs = self.configs(methods)
        store = RunStore(self.output)
        store.prepare()
        finished = len(store.existing(configs))
        try:
            with make_progress("starting", total=len(configs)) as progress:
                task = progress.task_ids[0]
                progress.update(task, completed=finished)

                def advance(running: Sequence[RunConfig], share: float) -> None:
                    names = ", ".join(str(config.method_name) for config in running)
                    description = f"{running[0].corruption}: {names}"
                    progress.update(task, description=description, advance=share * len(running))

                return Runner(store, self.data_root, self.device, self.image_list).run(configs, advance), finished
        except KeyboardInterrupt:
            message = f"Interrupted. Finished runs are in {self.output}; the same command goes on from there."
            typer.echo(message, err=True)
            raise typer.Exit(130) from None


def takes_run_request(command: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's first parameter, `request`, by the options of `RunRequest`."""
    names = [field.name for field in fields(RunRequest)]
    hints = typing.get_type_hints(RunRequest, include_extras=True)

    def with_options(**arguments: Any) -> None:
        request = RunRequest(**{name: arguments.pop(name) for name in names})
        command(request, **arguments)

    own = list(inspect.signature(command).parameters.values())[1:]
    own_hints = typing.get_type_hints(command, include_extras=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    options = [
        inspect.Parameter(field.name, keyword, default=field.default, annotation=hints[field.name])
        for field in fields(RunRequest)
    ]
    parameters = [p.replace(kind=keyword, annotation=own_hints[p.name]) for p in own] + options
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    with_options.__doc__ = command.__doc__
    return with_options
