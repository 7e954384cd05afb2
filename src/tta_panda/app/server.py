"""The page of the explorer, and a server for it on this machine."""

from __future__ import annotations

import ipaddress
import re
import secrets
import socket
import webbrowser
from collections.abc import Sequence
from pathlib import Path

import gradio as gr
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tta_panda.app.batch import add_batch_tab
from tta_panda.app.common import MINI
from tta_panda.app.records import add_records_tab
from tta_panda.app.stream import add_stream_tab
from tta_panda.app.video import add_video_tab
from tta_panda.errors import InvalidInputError

MAX_CONCURRENT = 4
"""Requests of one kind to process at the same time."""
LOCAL = ("127.0.0.1", "localhost", "::1")
"""Addresses that only this machine can reach."""
TOKEN = "token"
POLICY = b"default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:"
"""Content security policy: the browser loads nothing from other machines."""


def build_page(models: Sequence[str]) -> gr.Blocks:
    """Build the page with all its tabs; the first of `models` is the default for users' own pictures."""
    models = list(dict.fromkeys((*models, MINI)))  # for the embedded data
    with gr.Blocks(title="tta-panda explorer", analytics_enabled=False) as page:
        gr.Markdown(
            "# tta-panda explorer\nWhat negatives reveal about a model's bias, and what subtracting it changes."
        )
        with gr.Tab("A batch"):
            add_batch_tab(page, models)
        with gr.Tab("A stream"):
            add_stream_tab(models)
        with gr.Tab("Results"):
            add_records_tab()
        with gr.Tab("Camera or video"):
            add_video_tab(models)
    return page


def serve(models: Sequence[str], host: str, port: int | None, *, open_browser: bool) -> tuple[gr.Blocks, str]:
    """Start to serve the page from this machine, and return the page and its address.

    An address that other machines can reach includes a token, without which requests are refused.

    Args:
        models: names of the models to choose from.
    """
    token = None if host in LOCAL else secrets.token_urlsafe(24)
    page = build_page(models).queue(default_concurrency_limit=MAX_CONCURRENT)
    try:
        _, address, _ = page.launch(
            share=False,
            server_name=host,
            server_port=port,
            inbrowser=open_browser and token is None,
            prevent_thread_lock=True,
            theme=_theme(),
            css_paths=Path(__file__).with_name("explorer.css"),
            footer_links=[],
            quiet=True,
            ssr_mode=False,
            app_kwargs={"middleware": [Middleware(RequestFilter, hosts=host_names(host), token=token)]},
        )
    except OSError as error:
        raise InvalidInputError(
            f"Cannot listen at {host}, port {port or 'any'}: it is in use, or not an address of this machine. "
            "Choose another --port or --host."
        ) from error
    if token:
        address += f"?{TOKEN}={token}"
        if open_browser:
            webbrowser.open(address)
    return page, address


def host_names(host: str) -> tuple[str, ...]:
    """Host names that requests to this machine may have if the explorer listens at `host`."""
    return LOCAL if host in LOCAL else (*LOCAL, host, socket.gethostname(), socket.getfqdn())


def _theme() -> gr.themes.Base:
    """The theme, with system fonts, since others would be downloaded, and grey text of sufficient contrast."""
    theme = gr.themes.Default(
        primary_hue="blue", font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]
    )
    return theme.set(
        block_info_text_color="*body_text_color_subdued",
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_300",
    )


class RequestFilter:
    """Middleware that refuses requests from other web pages, and sends `POLICY` with every response.

    Args:
        hosts: host names that requests may have. With a token, any IP address is allowed, too. Without this check,
            another web page could point its own host name at this machine, and read what the explorer shows.
        token: required in the address of the first request; later requests have it in a cookie.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str], token: str | None = None):
        self.app = app
        self.hosts = hosts
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        request = HTTPConnection(scope)
        in_address = self._is_token(request.query_params.get(TOKEN))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = [(b"content-security-policy", POLICY)]
                if in_address:
                    more.append((b"set-cookie", f"{TOKEN}={self.token}; Path=/; HttpOnly; SameSite=Strict".encode()))
                message["headers"] = [*message["headers"], *more]
            await send(message)

        is_known = not self.token or in_address or self._is_token(request.cookies.get(TOKEN)) or _is_startup(scope)
        answer = _NOT_SAME_ORIGIN if not self._is_same_origin(request.headers) else self.app if is_known else _NO_TOKEN
        await answer(scope, receive, send_with_headers)

    def _is_token(self, given: str | None) -> bool:
        return bool(self.token and given) and secrets.compare_digest(str(given).encode(), str(self.token).encode())

    def _is_same_origin(self, headers: Headers) -> bool:
        requested: str = headers.get("host", "")
        name = (re.fullmatch(r"\[?(.*?)]?(:\d+)?", requested) or ["", ""])[1]
        if name not in self.hosts and not (self.token and _is_ip(name)):
            return False
        origin: str = headers.get("origin", f"//{requested}")
        return origin.partition("//")[2] == requested


def _is_ip(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_startup(scope: Scope) -> bool:
    """Whether this is the request that gradio sends to itself when it starts; its response contains no data."""
    return scope["path"].endswith("/startup-events") and scope["client"][0] in LOCAL


_NOT_SAME_ORIGIN = PlainTextResponse("The explorer refuses requests from other pages.", status_code=403)
_NO_TOKEN = PlainTextResponse("Open the whole address that the explorer printed.", status_code=401)
