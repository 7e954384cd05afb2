"""The explorer in a real browser, served by the command line as users start it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import cv2
import numpy as np
import pytest
from records import make_record

from tta_panda.evaluation.store import RunStore

pytestmark = pytest.mark.slow

pytest.importorskip("gradio", reason="the explorer needs tta-panda[app]")
playwright = pytest.importorskip("playwright.sync_api", reason="the tests of the explorer need playwright")

SECONDS = 60
"""For anything that takes a fraction of one on a machine that is not busy."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    command = [sys.executable, "-m", "tta_panda", "explore", "--no-browser"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as server:
        assert server.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/", server.stdout.readline())
        try:
            assert found, "the command says where the page is"
            yield found[0]
        finally:
            server.terminate()


class Visit:
    """A person who looks at the page."""

    def __init__(self, browser, address: str):
        self.page = browser.new_context(viewport={"width": 1300, "height": 900}).new_page()
        self.page.set_default_timeout(1000 * SECONDS)
        self.elsewhere: list[str] = []
        self.page.on("request", self._note)
        self.address = address
        self.page.goto(address)
        self.page.wait_for_selector("#outcome table")

    def _note(self, request) -> None:
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.elsewhere.append(request.url)

    @property
    def shown_beta(self) -> str:
        return self.page.locator("#outcome tbody th").nth(1).inner_text()

    def move_beta(self, beta: str) -> None:
        self.page.locator("#beta input[type=number]").fill(beta)
        self.page.locator("#beta input[type=number]").press("Tab")
        playwright.expect(self.page.locator("#outcome tbody th").nth(1)).to_have_text(f"β = {float(beta):.2f}")

    def click(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).locator("visible=true").click()

    def open_tab(self, name: str) -> None:
        self.page.get_by_role("tab", name=name).click()


@pytest.fixture(scope="module")
def visit(browser, address) -> Visit:
    return Visit(browser, address)


def test_beta_moves_predictions_by_mouse_and_by_keyboard(visit):
    page = visit.page
    visit.move_beta("0")
    plain, moved = page.locator("#outcome tbody tr").nth(0), page.locator("#outcome tbody tr").nth(1)
    assert moved.inner_text().split("\t")[1:] == plain.inner_text().split("\t")[1:]
    visit.move_beta("1.5")
    assert moved.inner_text().split("\t")[1:] != plain.inner_text().split("\t")[1:]
    assert page.locator("#outcome .marked").count() > 0
    page.locator("#beta input[type=range]").focus()
    page.keyboard.press("ArrowLeft")
    playwright.expect(page.locator("#outcome tbody th").nth(1)).to_have_text("β = 1.49")
    visit.click("Set β to auto")
    auto = page.locator("#outcome tbody th").nth(2).inner_text()
    playwright.expect(page.locator("#outcome tbody th").nth(1)).to_have_text(re.search(r"β = [\d.]+", auto)[0])


def test_two_people_do_not_disturb_each_other(visit, browser, address):
    other = Visit(browser, address)
    visit.move_beta("0.8")
    other.move_beta("1.2")
    assert visit.shown_beta == "β = 0.80"
    visit.move_beta("0.9")
    assert other.shown_beta == "β = 1.20"
    other.page.close()


def test_a_broken_upload_is_a_sentence(visit, tmp_path):
    page = visit.page
    (tmp_path / "broken.png").write_bytes(b"no picture")
    page.get_by_label("uploaded files").check()
    page.get_by_label("Classes").locator("visible=true").fill("cat, dog")
    page.locator("input[type=file]").first.set_input_files(tmp_path / "broken.png")
    toast = page.get_by_text("None of the pictures can be read. broken.png: not a picture")
    toast.wait_for()
    page.get_by_label("embedded data").check()
    page.get_by_text("snowman").first.wait_for()


def test_negatives_are_large_beside_their_classes(visit):
    visit.open_tab("Negatives")
    assert visit.page.locator("#negatives img").count() == 5
    visit.open_tab("Predictions")


def test_a_stream_plays_pauses_and_is_reset(visit):
    page = visit.page
    visit.open_tab("A stream")
    visit.click("Step")
    page.get_by_text("All 50 pictures").wait_for()
    visit.click("Play")
    page.get_by_text("All 150 pictures").wait_for()
    visit.click("Pause")
    visit.click("Reset")
    page.get_by_text("Press Play").wait_for()
    assert page.locator("#charts svg").count() == 0


def test_a_stream_that_cannot_be_played_stops_with_a_sentence(visit):
    page = visit.page
    visit.open_tab("A stream")
    order = page.get_by_label("Order")
    order.fill("sideways")
    order.press("Enter")
    visit.click("Play")
    page.get_by_text("Unknown order of a stream 'sideways'").wait_for()
    page.wait_for_timeout(1500)  # in which a stream that went on would have said it several times
    assert page.get_by_text("Unknown order of a stream").count() == 1


def test_results_are_sorted_and_a_cell_has_its_record(visit, tmp_path):
    store = RunStore(tmp_path)
    for corruption, accuracy in (("fog", 0.5), ("snow", 0.25)):
        store.save(make_record("clip", corruption, accuracy=accuracy))
    visit.open_tab("Results")
    page = visit.page
    page.get_by_label("Folder of records").fill(str(tmp_path))
    page.keyboard.press("Enter")
    cells = page.get_by_role("gridcell").locator("visible=true")
    playwright.expect(cells).to_have_text(["snow", "25.0", "fog", "50.0", "mean of 2", "37.5"])
    header = page.get_by_role("columnheader", name="clip").locator("visible=true").first
    header.click()
    header.get_by_label("Open cell menu").click()
    page.get_by_role("menuitem", name="Sort descending").click()
    playwright.expect(cells).to_have_text(["fog", "50.0", "mean of 2", "37.5", "snow", "25.0"])
    cells.nth(5).click()
    page.get_by_text("clip on snow, seed 0").wait_for()
    page.get_by_label("Folder of records").fill(str(tmp_path / "nothing"))
    page.keyboard.press("Enter")
    page.get_by_text("There is no folder").wait_for()


def test_camera_and_video_are_predicted(visit, tmp_path):
    writer = cv2.VideoWriter(str(tmp_path / "clip.avi"), cv2.VideoWriter_fourcc(*"MJPG"), 10, (64, 48))
    for _ in range(25):
        writer.write(np.zeros((48, 64, 3), np.uint8))
    writer.release()
    visit.open_tab("Camera or video")
    page = visit.page
    page.get_by_text("Click to Access Webcam").click()
    page.get_by_label("capture photo").click()
    playwright.expect(page.locator("#camera-says")).to_contain_text("%")
    page.locator("input[type=file][accept*='video']").set_input_files(tmp_path / "clip.avi")
    page.get_by_text("clip.avi").wait_for()
    visit.click("Predict the video")
    playwright.expect(page.locator("#frames figure")).to_have_count(3)


@pytest.mark.parametrize("width", [400, 800, 1300])
def test_the_page_fits(visit, width):
    visit.page.set_viewport_size({"width": width, "height": 900})
    for tab in ("A batch", "A stream"):
        visit.open_tab(tab)
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width


def test_nothing_is_fetched_from_elsewhere(visit):
    assert visit.elsewhere == []  # in all that was done above
