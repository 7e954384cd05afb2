"""The page of the explorer, and the server that shows it on this machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import gradio as gr
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tta_panda.app.batch import add_batch_tab
from tta_panda.app.common import embedded_data, shared_model
from tta_panda.app.records import add_records_tab
from tta_panda.app.stream import add_stream_tab
from tta_panda.app.video import add_video_tab
from tta_panda.data import load_data
from tta_panda.errors import InvalidInputError

AT_ONCE = 4
"""Requests of one kind that are worked on at the same time."""
LOCAL = ("127.0.0.1", "localhost", "::1")
"""Addresses that only this machine can reach."""
POLICY = b"default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:"
"""What the browser may load: nothing from other machines, whatever the page asks for."""


def build_page(models: Sequence[str]) -> gr.Blocks:
    """The page with all its tabs."""
    with gr.Blocks(title="tta-panda explorer", analytics_enabled=False) as page:
        gr.Markdown("# tta-panda explorer\nWhat negatives reveal of a model's bias, and what subtracting it changes.")
        with gr.Tab("A batch"):
            add_batch_tab(page, models)
        with gr.Tab("A stream"):
            add_stream_tab(models)
        with gr.Tab("Results"):
            add_records_tab()
        with gr.Tab("Camera or video"):
            add_video_tab(models, load_data(embedded_data()[0]).class_names)
    return page


def serve(models: Sequence[str], host: str, port: int | None, *, open_browser: bool) -> tuple[gr.Blocks, str]:
    """Show the page on this machine, never anywhere else; returns it and its address.

    Args:
        models: names of the models to choose from. The first is loaded before the page is shown.
    """
    shared_model(models[0])
    page = build_page(models).queue(default_concurrency_limit=AT_ONCE)
    try:
        _, address, _ = page.launch(
            share=False,
            server_name=host,
            server_port=port,
            inbrowser=open_browser,
            prevent_thread_lock=True,
            theme=_theme(),
            css_paths=Path(__file__).with_name("explorer.css"),
            footer_links=[],
            quiet=True,
            ssr_mode=False,
            app_kwargs={"middleware": [Middleware(OnlyFromHere, hosts=LOCAL if host in LOCAL else ())]},
        )
    except OSError as error:
        raise InvalidInputError(
            f"Cannot listen at {host}, port {port or 'any'}: it is taken, or no address of this machine. "
            "Choose another --port or --host."
        ) from error
    return page, address


def _theme() -> gr.themes.Base:
    """Fonts of the machine, for others would be fetched, and grey text that can be read."""
    theme = gr.themes.Default(
        primary_hue="blue", font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]
    )
    return theme.set(
        block_info_text_color="*body_text_color_subdued",
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_300",
    )


class OnlyFromHere:
    """Answers this page alone, not others that are open in the same browser, and sends `POLICY` with every answer.

    Args:
        hosts: names under which the page can be asked for; any where there is none. Without them, a page from elsewhere
            could give its own name the address of this machine, and read what the explorer shows.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str] = ()):
        self.app = app
        self.hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"content-security-policy", POLICY)]
            await send(message)

        refused = scope["type"] in ("http", "websocket") and not self._is_own(Headers(scope=scope))
        await (_REFUSED if refused else self.app)(scope, receive, send_with_policy)

    def _is_own(self, headers: Headers) -> bool:
        asked: str = headers.get("host", "")
        if self.hosts and (re.fullmatch(r"\[?(.*?)]?(:\d+)?", asked) or [""])[1] not in self.hosts:
            return False
        origin: str = headers.get("origin", f"//{asked}")
        return origin.partition("//")[2] == asked


_REFUSED = PlainTextResponse("The explorer does not answer pages of other addresses.", status_code=403)
