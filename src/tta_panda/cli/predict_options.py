"""The options of `tta-panda predict`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tta_panda.cli.common import JsonOption, words
from tta_panda.cli.engines import RAY, EngineOptions
from tta_panda.errors import InvalidInputError
from tta_panda.evaluation.config import EMBEDDED

if TYPE_CHECKING:
    from tta_panda.prediction.recipe import Recipe

STDIN = "-"


@dataclass(frozen=True)
class PredictOptions(EngineOptions):
    """What to predict, with what, and where to."""

    classes: Annotated[
        str | None, typer.Option("--classes", help="Comma-separated class names.", show_default="the sub-folders")
    ] = None
    classes_file: Annotated[Path | None, typer.Option("--classes-file", help="Text file, one class per line.")] = None
    template: Annotated[
        list[str] | None, typer.Option("--template", help="Prompt with {} for the class name; several are averaged.")
    ] = None
    model: Annotated[str, typer.Option("--model", help="See: tta-panda ls models.")] = EMBEDDED.model
    method: Annotated[str, typer.Option("--method", help="See: tta-panda ls methods.")] = "clip+panda"
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Option of the method or of Panda, as name=value; repeatable.")
    ] = None
    preset: Annotated[str | None, typer.Option("--preset", help="Settings of a benchmark.")] = None
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Pictures per batch.")] = 100
    order: Annotated[
        str, typer.Option("--order", help="sequential, or shuffled: better for folders that are sorted by class.")
    ] = "sequential"
    seed: Annotated[int, typer.Option("--seed", min=0, help="Random seed of negatives, views and order.")] = 0
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="CSV, JSONL or Parquet, by suffix.", show_default="stdout")
    ] = None
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an --output that was interrupted.")] = False
    state: Annotated[
        Path | None,
        typer.Option("--state", help="File of the method's state: read first if it exists, written at the end."),
    ] = None
    html: Annotated[Path | None, typer.Option("--html", help="Page of thumbnails and predictions.")] = None
    watch: Annotated[
        Path | None, typer.Option("--watch", help="Predict pictures that appear in this folder, until Ctrl-C.")
    ] = None
    until_idle: Annotated[
        float | None, typer.Option("--until-idle", help="With --watch: end after so many seconds without a picture.")
    ] = None
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken/--no-skip-broken", help="Exit with 0 even if pictures cannot be read.")
    ] = True
    ignore_orientation: Annotated[
        bool, typer.Option("--ignore-orientation", help="Do not turn pictures as their EXIF orientation says.")
    ] = False
    max_pixels: Annotated[int, typer.Option("--max-pixels", min=1, help="Skip pictures of more pixels than this.")] = (
        89_478_485
    )
    shard_size: Annotated[
        int, typer.Option("--shard-size", min=1, help="Pictures of a shard, with several --workers or --engine ray.")
    ] = 1000
    precision: Annotated[str, typer.Option("--precision", help="Of the encoders: fp32, bf16 or fp16.")] = "fp32"
    backend: Annotated[str, typer.Option("--backend", help="What computes image embeddings: torch or openvino.")] = (
        "torch"
    )
    as_json: JsonOption = False

    @property
    def kept(self) -> str:
        if self.output is None:
            return "Nothing is kept; with --output FILE, --resume can go on."
        return f"What is predicted is kept; the same command with --resume completes {self.output}."

    def check(self, places: Sequence[str]) -> None:
        """Refuse options that contradict each other, before anything is loaded."""
        wrong = {
            "Name pictures, folders or globs, or - for paths on stdin: tta-panda predict photos": not places,
            "Give either - or paths, not both.": STDIN in places and len(places) > 1,
            "--html is made from the file of predictions; give --output, too.": self.html and not self.output,
            "--resume goes on with a file of predictions; give its --output.": self.resume and not self.output,
            f"--order is sequential or shuffled, got {self.order!r}.": self.order not in ("sequential", "shuffled"),
            "Only a list of files can be shuffled, not --watch or -.": self.order == "shuffled"
            and (self.watch or STDIN in places),
            "--until-idle belongs to --watch.": self.until_idle is not None and not self.watch,
            "Several workers write to a file; give --output.": self.is_sharded and not self.output,
            "Each shard of several workers is a stream of its own: omit --state.": self.is_sharded and self.state,
            "Only a list of files can be divided among workers, not --watch.": self.is_sharded and self.watch,
            "Give either --classes or --classes-file.": self.classes is not None and self.classes_file is not None,
        }
        for message, is_wrong in wrong.items():
            if is_wrong:
                raise InvalidInputError(message)
        if self.output is not None:
            from tta_panda.prediction.files import file_format

            file_format(self.output)  # raises for other suffixes

    @property
    def is_sharded(self) -> bool:
        """Whether pictures are divided among workers."""
        return self.checked_engine() == RAY or (self.workers or 1) > 1

    def recipe(self, places: Sequence[Path]) -> Recipe:
        """What predicts."""
        from tta_panda.data.listing import read_lines
        from tta_panda.images import Decoding
        from tta_panda.methods.options import parse_setting
        from tta_panda.prediction.recipe import Recipe

        classes = None if self.classes is None else words(self.classes)
        classes = classes if self.classes_file is None else read_lines(self.classes_file)
        return Recipe(
            model=self.model,
            method=self.method,
            places=tuple(places),
            classes=None if classes is None else tuple(classes),
            templates=tuple(self.template) if self.template else None,
            preset=self.preset,
            options=dict(parse_setting(text) for text in self.settings or []),
            seed=self.seed,
            device=self.usable_device(),
            precision=self.precision,
            backend=self.backend,
            decoding=Decoding(upright=not self.ignore_orientation, max_pixels=self.max_pixels),
        )
