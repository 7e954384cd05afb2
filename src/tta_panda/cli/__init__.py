"""The command line. One file per command; heavy imports happen only when a command runs."""

from __future__ import annotations

import io
import sys
import warnings

import typer

from tta_panda import __version__
from tta_panda.cli import bench, corrupt, data, doctor, explore, ls, predict, report, reproduce
from tta_panda.cli.common import InterruptibleGroup, catch_sigterm, print_stderr
from tta_panda.cli.options import expand_options
from tta_panda.errors import TtaPandaError, TtaPandaWarning

app = typer.Typer(
    name="tta-panda",
    cls=InterruptibleGroup,
    help="Test-time adaptation of CLIP with negative data augmentation.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("predict")(expand_options(predict.predict))
app.command("bench")(expand_options(bench.bench))
app.command("reproduce")(expand_options(reproduce.reproduce))
app.command("report")(report.report)
app.command("explore")(explore.explore)
app.command("ls")(ls.ls)
app.command("corrupt")(corrupt.corrupt)
app.command("doctor")(doctor.doctor)
app.add_typer(data.app, name="data")


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"tta-panda {__version__}")
        raise typer.Exit


@app.callback()
def _callback(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def _show_note(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    """Print warnings of this package as notes, and drop those of other libraries."""
    if issubclass(category, TtaPandaWarning):
        print_stderr(f"note: {message}")


def main() -> None:
    """Run the command line: errors of this package become a message and exit code 1."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # some terminals and pipes cannot encode Δ
    catch_sigterm()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_note
            app()
    except TtaPandaError as error:
        print_stderr(f"error: {error}")
        sys.exit(1)
