"""`tta-panda explore`: explore Panda in a browser."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from tta_panda.cli.common import print_stderr
from tta_panda.errors import missing_extra
from tta_panda.models import DEFAULT_FOR_PICTURES


def explore(
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option("--port", min=1, max=65535, help="Port to listen on.", show_default="a free one from 7860 up"),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", help="Model to offer for your pictures; repeatable.", show_default=DEFAULT_FOR_PICTURES
        ),
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
) -> None:
    """Explore batches, streams, results and videos in the browser, until Ctrl-C.

    \b
    Examples:
      tta-panda explore
      tta-panda explore --model lite0 --port 8000
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when gradio is imported
    try:
        import gradio  # noqa: F401
    except ImportError as error:
        raise missing_extra("The explorer needs", "app") from error
    from tta_panda.app.common import shared_model
    from tta_panda.app.server import LOCAL, serve

    if host not in LOCAL:
        print_stderr(
            f"note: anyone who can reach {host} and knows the address with its token can see the pictures and results "
            "that this account can read. Connections are not encrypted."
        )
    if model:
        shared_model(model[0])  # so that an unknown name fails before the page is shown
    page, address = serve(model or [DEFAULT_FOR_PICTURES], host, port, open_browser=browser)
    typer.echo(f"The explorer is at {address} until Ctrl-C.")
    page.block_thread()
