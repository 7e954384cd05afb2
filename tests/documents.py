"""The pages of the documentation and those that commands write, as tests read them."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)]

_BLOCK = re.compile(r"(?:^<!-- not run: (?P<reason>.+?) -->\n)?^```(?P<language>\w+)\n(?P<code>.*?)^```", re.S | re.M)


class Block(NamedTuple):
    """A piece of code in a page."""

    language: str
    code: str
    reason: str | None
    """Why it is not run: the comment before it."""


def blocks(page: Path, *languages: str) -> list[Block]:
    """The code blocks of a page, in order."""
    found = _BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [Block(m["language"], m["code"], m["reason"]) for m in found if m["language"] in languages]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def links_outside(page: str) -> list[str]:
    """What an HTML page would load from elsewhere, or leads to."""
    found: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, _tag, attributes):
            found.extend(value for name, value in attributes if name in ("src", "href") and not value.startswith("#"))

    Reader().feed(page)
    return found
