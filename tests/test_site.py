"""The documentation site: built without a warning, whole, and shown without asking any other machine."""

from __future__ import annotations

import contextlib
import io
import os
import re
import warnings
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from documents import DOCS
from filelock import FileLock

import tta_panda

pytestmark = pytest.mark.slow

build = pytest.importorskip("sphinx.cmd.build", reason="the site needs tta-panda[docs]").main


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site; processes that run tests side by side share it."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "site" / "html"
    with FileLock(shared / "site.lock"):
        if not (folder / "objects.inv").exists():
            # What Sphinx warns of fails; that its extensions use what it deprecates does not.
            with contextlib.redirect_stderr(io.StringIO()) as said, warnings.catch_warnings(action="ignore"):
                failed = build(["-q", "-n", "-W", "--keep-going", str(DOCS), str(folder)])
            assert not failed, said.getvalue()
    return folder


class Page(HTMLParser):
    """What a page links to, what it makes the browser load, and where links can lead to."""

    def __init__(self, path: Path):
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link":
            self.loaded.append(given["href"])
        self.loaded += [given[name] for name in ("src", "srcset", "poster", "data") if name in given]


@pytest.fixture(scope="session")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html")}


def test_links_lead_somewhere(pages):
    for path, page in pages.items():
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.is_file(), f"{path.name}: {link}"
            if parts.fragment and target.suffix == ".html":
                assert unquote(parts.fragment) in pages[target].ids, f"{path.name}: {link}"


def test_nothing_is_loaded_from_elsewhere(site, pages):
    for path, page in pages.items():
        assert [link for link in page.loaded if urlsplit(link).scheme not in ("", "data")] == [], path.name
        assert [link for link in page.loaded if link.startswith("//")] == [], path.name
    for path in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?\s*(https?:)?//", path.read_text(encoding="utf-8")), path.name


def test_the_reference_has_everything_that_is_public(pages, site):
    documented = set().union(*(page.ids for page in pages.values()))
    assert {f"tta_panda.{name}" for name in tta_panda.__all__} <= documented


def test_options_and_passes_are_those_of_the_code(site):
    text = re.sub(r"<[^>]+>", "", (site / "methods" / "zero.html").read_text(encoding="utf-8"))
    assert "keep = 0.3" in text
    assert "0.1 in cifar10-c, cifar100-c, imagenet-c" in text
    rows = re.findall(r"zero(?:\+panda)?\s+(\d+)", text)
    assert rows[:2] == ["100", "101"]


@pytest.fixture(scope="module")
def visited(site, browser):
    """A page of the browser that can load files only, and notes whatever else is asked for."""
    context = browser.new_context(viewport={"width": 1300, "height": 900})
    page, elsewhere = context.new_page(), []

    def answer(route) -> None:
        if route.request.url.startswith(("file:", "data:")):
            route.continue_()
        else:
            elsewhere.append(route.request.url)
            route.abort()

    page.route("**/*", answer)
    yield page
    assert elsewhere == []


def test_the_site_can_be_searched_from_a_folder(site, visited):
    visited.goto((site / "index.html").as_uri())
    visited.get_by_placeholder("Search").first.fill("sharpness-aware")
    visited.keyboard.press("Enter")
    visited.locator("#search-results li a", has_text="SAR").first.click()
    visited.wait_for_selector("math")
    assert visited.url.split("?")[0].endswith("methods/sar.html")


@pytest.mark.parametrize("width", [400, 800, 1300, 1450])
def test_pages_fit(site, visited, width):
    visited.set_viewport_size({"width": width, "height": 900})
    for name in ("index", "get-started", "which-method", "methods/sar", "api", "results", "quickstart", "faq"):
        visited.goto((site / f"{name}.html").as_uri())
        assert visited.evaluate("document.documentElement.scrollWidth") <= width, name
