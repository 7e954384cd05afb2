"""What the explorer shows, without a browser: a batch at any beta, streams, folders of records, frames of a video."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import re
import socket
import sys

import cv2
import numpy as np
import pytest
import requests
import torch
from data_files import write_image
from documents import ROOT
from PIL import Image
from records import make_record

from tta_panda import Stream, create_method, evaluate, load_data

pytest.importorskip("gradio", reason="the explorer needs tta-panda[app]")

import gradio as gr

from tta_panda.app import batch as batches
from tta_panda.app import records, server, stream
from tta_panda.app import video as videos
from tta_panda.app.batch import UNLABELLED, EncodedBatch, frozen_methods, render_negatives, render_outcome
from tta_panda.app.drawing import Series, class_table, sheet, tiles
from tta_panda.app.records import as_grid, difference, read_folder, records_of, render_record, tables_of
from tta_panda.app.stream import PANDA, PLAIN, Player, Setting, render_charts, render_classes
from tta_panda.app.video import frames, predict_frame
from tta_panda.cli.explore import explore
from tta_panda.data.corruptions import corrupt
from tta_panda.errors import DataError, InvalidInputError, MissingExtraError, StoreError
from tta_panda.evaluation.store import RunStore

DATA = "glyphs-val-c"
PHOTOS = ROOT.parent / "shared" / "data" / "photos"
SETTING = Setting(DATA, "fog", batch_size=20)


@pytest.fixture(scope="module")
def batch(mini_classifier) -> EncodedBatch:
    return EncodedBatch(batches.read_data(DATA, "fog", 5, 40), mini_classifier)


@pytest.mark.parametrize("beta", [0.0, 1.3])
def test_a_batch_at_any_beta_is_what_the_method_says(batch, mini_classifier, beta):
    method = create_method("clip+panda", mini_classifier, beta=beta)
    expected = method.adapt(batch.pictures.tensor).softmax(dim=1)
    torch.testing.assert_close(batch.predict(beta).probabilities, expected, atol=1e-5, rtol=0)


def test_auto_is_marked_and_chosen_as_on_a_first_batch(batch, mini_classifier):
    method = create_method("clip+panda", mini_classifier)
    method.adapt(batch.pictures.tensor)
    batch.predict(1.7)  # forgets nothing, learns nothing
    assert batch.auto.beta == pytest.approx(method.beta, abs=1e-6) == pytest.approx(batch.predict("auto").beta)


def test_moving_beta_encodes_nothing(batch, mini_classifier, monkeypatch):
    def refuse(_images):
        raise AssertionError("encoded again")

    monkeypatch.setattr(mini_classifier.model, "encode_image", refuse)
    assert batch.predict(0.2).predicted.shape == (40,)


def test_accuracy_bias_and_counts_of_a_batch(batch):
    outcome, labels = batch.predict(0.5), batch.pictures.labels.numpy()
    probabilities = outcome.probabilities.numpy()
    predicted = probabilities.argmax(axis=1)
    assert outcome.metrics.accuracy == pytest.approx((predicted == labels).mean())
    assert outcome.counts == np.bincount(predicted, minlength=10).tolist()
    assert batch.label_counts == np.bincount(labels, minlength=10).tolist()
    bias = np.abs(probabilities.mean(axis=0) - np.bincount(labels, minlength=10) / 40).sum()
    assert outcome.metrics.bias == pytest.approx(bias, abs=1e-5)


def test_what_negatives_resemble(batch, mini_classifier):
    embedded = mini_classifier.embed(mini_classifier.model.encode_image(batch.negatives)).mean(dim=0)
    expected = (mini_classifier.logit_scale * embedded @ mini_classifier.class_embeddings.T).softmax(dim=0)
    assert batch.resemblance == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.parametrize("method", frozen_methods())
def test_every_method_that_is_offered_moves_with_beta(mini_classifier, batch, method):
    other = EncodedBatch(batch.pictures, mini_classifier, method)
    assert not torch.equal(other.predict(0.0).probabilities, other.predict(1.0).probabilities)


def test_the_numbers_shown_follow_beta(batch):
    accuracies = {beta: f"{batch.predict(beta).metrics.accuracy:.1%}" for beta in (0.0, 0.5)}
    for beta, accuracy in accuracies.items():
        shown = render_outcome(batch, batch.predict(beta))
        row = re.search(rf'<th scope="row">β = {beta:.2f}</th><td>([^<]*)</td>', shown)
        assert row[1] == accuracy
        assert shown.count('role="img"') == 40


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("star", "gear"):
        (tmp_path / name).mkdir()
        for index in range(3):
            Image.fromarray(rng.integers(0, 255, (40, 50, 3), np.uint8)).save(tmp_path / name / f"{index}.png")
    (tmp_path / "star" / "broken.png").write_bytes(b"no picture")
    return tmp_path


def test_pictures_of_a_folder_are_labelled_corrupted_and_broken_ones_named(folder, mini):
    clean = batches.read_pictures([folder], [], mini, 100)
    foggy = clean.corrupted("fog", 3)
    assert clean.class_names == ("gear", "star")
    assert sorted(clean.labels.tolist()) == [0, 0, 0, 1, 1, 1]
    assert clean.images.shape == (6, 32, 32, 3)
    assert len(clean.skipped) == 1 and clean.skipped[0].startswith("broken.png: not a picture")
    np.testing.assert_array_equal(foggy.images, corrupt(clean.images, "fog", 3, seed=0))


def test_uploads_have_no_labels(folder, mini, mini_classifier):
    found = batches.read_pictures(sorted((folder / "gear").iterdir()), ["star", "gear"], mini, 100)
    assert found.labels.tolist() == [UNLABELLED] * 3
    shown = EncodedBatch(found, batches.shared_classifier("mini", found.class_names))
    assert shown.auto.metrics is None and shown.label_counts is None
    assert "✓" not in render_outcome(shown, shown.auto)


def test_labels_of_folders_with_underscores_are_kept(tmp_path, mini):
    for name in ("fire_truck", "chess_knight"):
        write_image(tmp_path / name / "a.png")
    found = batches.read_pictures([tmp_path], [], mini, 10)
    assert found.class_names == ("chess knight", "fire truck")
    assert sorted(found.labels.tolist()) == [0, 1]
    named = batches.read_pictures([tmp_path], ["fire_truck", "chess knight"], mini, 10)
    assert sorted(named.labels.tolist()) == [0, 1]


@pytest.mark.skipif(not PHOTOS.is_dir(), reason=f"needs photographs in {PHOTOS}")
def test_every_photograph_has_the_label_of_its_folder(mini):
    found = batches.read_pictures([PHOTOS], [], mini, 100)
    assert len(found.class_names) == 12
    assert found.labels.bincount().tolist() == [5] * 12


def test_what_is_wrong_with_pictures_is_a_sentence(folder, mini):
    with pytest.raises(DataError, match=r"None of the pictures can be read\. broken\.png: not a picture"):
        batches.read_pictures([folder / "star" / "broken.png"], ["a", "b"], mini, 10)
    for places, names in (([folder / "star" / "0.png"], []), ([folder / "star"], []), ([folder], ["one"])):
        with pytest.raises(InvalidInputError, match="Cannot infer the class names"):
            batches.read_pictures(places, names, mini, 10)
    with pytest.raises(DataError, match="nowhere"):
        batches.read_pictures([folder / "nowhere"], [], mini, 10)


def test_negatives_are_shown_beside_the_classes_that_they_look_like(batch):
    shown = render_negatives(batch)
    assert shown.count("<img") == len(batch.negatives) == 4
    best = batch.class_names[int(batch.negatives_resemble[0].argmax())]
    assert shown.split("negative 1 of 4</b>")[1].startswith('<div class="bar"')
    assert f">{best} <b>{batch.negatives_resemble[0].max():.0%}</b>" in shown
    assert "The negatives look like" in shown and "subtracted" in shown


def test_a_stream_step_by_step_is_the_stream_at_once(mini_classifier):
    player = Player(mini_classifier, "tda+panda")
    for _ in range(2):
        player.step(SETTING)
    dataset = load_data(DATA, "fog")
    batches = list(itertools.islice(Stream({"fog": dataset}, 20, order="continual"), 2))
    for name in player.names:
        expected = evaluate(create_method(name, mini_classifier), batches)
        assert player.totals[name].accuracy == pytest.approx(expected.accuracy)
        assert player.totals[name].bias == pytest.approx(expected.bias, abs=1e-4)
    assert [step.pictures for step in player.steps] == [20, 40]
    assert player.steps[-1].curves["β"].keys() == {PANDA, "tda+panda"}


def test_the_corruption_changes_on_the_way(mini_classifier):
    player = Player(mini_classifier, PANDA)
    batches = []
    for corruption, order in (("fog", "continual"), ("frost", "continual"), ("snow", "reset"), ("clean", "reset")):
        step = player.step(SETTING._replace(corruption=corruption, order=order))
        assert step.domain == corruption
        batches.append(player.methods[PANDA].passes.batches)
    assert batches == [1, 2, 1, 1]  # goes on, goes on, and starts afresh with each domain
    assert player.names == (PLAIN, PANDA)
    charts = render_charts(player)
    assert charts.count("<svg") == 3 and "frost" in charts
    for curves in player.steps[-1].curves.values():  # each chart says its latest values
        assert all(f"{name} {value:.4g}" in charts for name, value in curves.items())


def test_two_streams_do_not_disturb_each_other(mini_classifier):
    alone, first, second = (Player(mini_classifier, PANDA) for _ in range(3))
    for _ in range(2):
        alone.step(SETTING)
        first.step(SETTING)
        second.step(SETTING._replace(corruption="contrast"))
    assert first.steps == alone.steps != second.steps


@pytest.mark.parametrize("order", ["mixed", "gradual"])
def test_orders_play(mini_classifier, order):
    player = Player(mini_classifier, PANDA)
    player.step(Setting(DATA, "all" if order == "mixed" else "fog", order=order, batch_size=5))
    assert "All 5 pictures" in render_classes(player)


def test_names_are_escaped_and_pictures_described():
    shown = class_table("<Classes>", ["<b>", "x"], {"<plain>": Series([1, 2]), "share": Series([0.5, 0.1], form=".0%")})
    assert "<b>" not in shown and "&lt;b&gt;" in shown and "&lt;plain&gt;" in shown
    assert "--share: 50%" in shown and "--share: 100%" in shown and "50%</td>" in shown
    assert 'aria-label="picture 2: &lt;b&gt;"' in tiles("pictures", [("a", False), ("<b>", True)])


def test_of_many_classes_those_with_the_longest_bars_are_shown():
    shown = class_table("", [f"class{k}" for k in range(100)], {"plain": Series([float(k) for k in range(100)])})
    assert shown.count("<tr>") == 1 + 15 and "class99" in shown and "class84" not in shown


def test_a_sheet_is_a_picture():
    assert "data:image/webp;base64," in sheet("pictures", np.zeros((3, 8, 8, 3), np.uint8))


@pytest.fixture
def store(tmp_path):
    def make(name: str, gain: float) -> RunStore:
        store = RunStore(tmp_path / name)
        for seed in (0, 1):
            for corruption, accuracy in (("fog", 0.5), ("snow", 0.7)):
                store.save(make_record("clip", corruption, accuracy=accuracy, seed=seed))
                store.save(make_record("clip+panda", corruption, accuracy=accuracy + gain + seed / 100, seed=seed))
        return store

    return make


def test_a_folder_of_records_as_a_grid(store):
    [comparison] = read_folder(str(store("runs", 0.1).root)).values()
    grid = as_grid(tables_of(comparison)["Accuracy (%)"])
    assert grid["headers"] == ["corruption", "clip", "clip+panda", "Δ"]
    assert [row[0] for row in grid["data"]] == ["snow", "fog", "mean of 2"]
    assert grid["data"][1][1:3] == pytest.approx([50.0, 60.5])
    assert grid["metadata"]["display_value"][1][:3] == ["fog", "50.0 ± 0.0", "60.5 ± 0.7"]
    styles = grid["metadata"]["styling"]
    assert "0.00)" in styles[1][1] and "0.60)" in styles[0][2]  # the least and the most of all
    for table in tables_of(comparison).values():
        assert len(as_grid(table)["data"]) == len(table.rows)


def test_a_cell_leads_to_its_records(store):
    [comparison] = read_folder(str(store("runs", 0.1).root)).values()
    records = records_of(comparison, "fog", "clip+panda")
    assert [record.config.stream.seed for record in records] == [0, 1]
    shown = render_record(records[1], "fog")
    assert "clip+panda on fog, seed 1" in shown and ">70</td>" in shown
    assert records_of(comparison, "mean of 2", "clip+panda") == []


def test_two_folders_compared(store):
    tables = []
    for name, gain in (("new", 0.2), ("old", 0.1)):
        [comparison] = read_folder(str(store(name, gain).root)).values()
        tables.append(next(iter(tables_of(comparison).values())))
    change = difference(*tables)
    assert [column.title for column in change.columns] == ["clip", "clip+panda"]
    for row in change.rows:
        assert [cell.value for cell in row.cells] == pytest.approx([0, 10])
    assert as_grid(change)["metadata"]["display_value"][0][2].startswith("+10.0")


def test_a_folder_without_records_is_a_sentence(tmp_path):
    with pytest.raises(StoreError, match="tta-panda bench"):
        read_folder(str(tmp_path / "nothing"))


@pytest.fixture
def video(tmp_path):
    """Seven frames, each redder than the one before."""
    path = tmp_path / "clip.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10, (64, 48))
    for level in range(7):
        writer.write(np.full((48, 64, 3), (0, 0, 30 * level), np.uint8))  # blue, green, red
    writer.release()
    return path


def test_frames_of_a_video(video, mini_classifier):
    found = list(frames(video, 3))
    assert [round(share * 7) for share, _ in found] == [0, 3, 6]
    assert [frame[..., 0].mean() for _, frame in found] == pytest.approx([0, 90, 180], abs=4)  # red comes first
    method = create_method("clip+panda", mini_classifier)
    assert predict_frame(method, found[1][1]).predicted in mini_classifier.class_names
    assert method.passes.batches == 1


def test_a_broken_video_is_a_sentence(tmp_path):
    (tmp_path / "clip.mp4").write_bytes(b"no video")
    with pytest.raises(DataError, match=r"Cannot read the video clip\.mp4"):
        list(frames(tmp_path / "clip.mp4", 1))


def test_the_command_names_the_extra_that_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(MissingExtraError, match=r'pip install "tta-panda\[app\]"'):
        explore()


def answer(hosts: tuple[str, ...], token: str | None = None, query: str = "", **headers: str) -> tuple[int, bytes]:
    """The status that a page gets which asks with these headers, and the cookie that is set."""
    sent: list[dict] = []

    async def page(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def note(message):
        sent.append(message)

    asked = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "headers": asked, "query_string": query.encode(), "path": "/", "client": ("127.0.0.1", 1)}
    asyncio.run(server.RequestFilter(page, hosts, token)(scope, None, note))
    given = dict(sent[0]["headers"])
    assert given[b"content-security-policy"] == server.POLICY
    return sent[0]["status"], given.get(b"set-cookie", b"")


def test_pages_of_other_addresses_get_no_answer():
    here = ("127.0.0.1", "localhost", "::1")
    assert server.host_names(inspect.signature(explore).parameters["host"].default) == here
    for host in ("127.0.0.1:7860", "localhost:7860", "[::1]:7860", "localhost"):
        assert answer(here, host=host) == answer(here, host=host, origin=f"http://{host}") == (200, b"")
        for elsewhere in ("https://example.com", "null", "", "http://localhost:80", f"http://{host}.example.com"):
            assert answer(here, host=host, origin=elsewhere)[0] == 403
    for host in ("example.com:7860", "localhost.example.com", "", "[", "127.0.0.1:7860@example.com", "10.0.0.1"):
        assert answer(here, host=host)[0] == answer(here, host=host, origin=f"http://{host}")[0] == 403


def test_other_machines_need_the_token_and_a_name_of_this_one():
    names = server.host_names("0.0.0.0")
    host = f"{socket.gethostname()}:7860"
    for asked in (host, "10.1.2.3:7860", "[fe80::1]:7860"):
        assert answer(names, "secret", host=asked)[0] == 401
        assert answer(names, "secret", "token=other", host=asked)[0] == 401
        status, cookie = answer(names, "secret", "token=secret", host=asked, origin=f"http://{asked}")
        assert status == 200 and b"HttpOnly; SameSite=Strict" in cookie
        assert answer(names, "secret", host=asked, cookie="token=secret") == (200, b"")
        assert answer(names, "secret", "token=secret", host=asked, origin="https://example.com")[0] == 403
    assert answer(names, "secret", "token=secret", host="example.com:7860")[0] == 403
    assert answer(names, "secret", host="example.com:7860", cookie="token=secret")[0] == 403


def test_the_page_loads_the_models_of_the_command_line_and_no_others(tmp_path, monkeypatch):
    """The name of a model can ask for code of a module."""
    (tmp_path / "guest.py").write_text("open('executed', 'w')\ndef model(): ...")
    monkeypatch.chdir(tmp_path)
    page = server.build_page(["lite0"])
    choices = [block for block in page.blocks.values() if getattr(block, "label", None) == "Model"]
    assert len(choices) == 3
    for block in choices:
        assert [name for name, _ in block.choices] == ["lite0", "mini"]
        assert block.preprocess("mini") == "mini"
        with pytest.raises(gr.Error):
            block.preprocess("guest:model")
    assert not (tmp_path / "executed").exists()


def test_notices_show_names_of_files_as_text(tmp_path, monkeypatch):
    """They are shown as HTML: a name could draw a field for a password."""
    said, name = [], "<input type=password>"
    monkeypatch.setattr(gr, "Warning", said.append)
    write_image(tmp_path / "good.png")
    (tmp_path / f"{name}.png").write_text("broken")

    def encode(folder):
        return batches._encode(batches.FOLDER, "", str(folder), None, f"star,{name}", "fog", 5, "mini", "clip", 4)

    encode(tmp_path)
    assert any("Skipped" in text for text in said) and "&lt;input" in "".join(said)
    assert not any("<" in text for text in said)
    with pytest.raises(gr.Error) as raised:
        encode(tmp_path / name)
    assert "&lt;input" in raised.value.message and "<" not in raised.value.message


def test_what_the_fields_of_a_batch_do(folder):
    def encode(source, *fields):
        return batches._encode(source, DATA, *fields, "fog", 5, "mini", "clip", 20)

    batch, slider, outcome, sheets, negatives = encode(batches.EMBEDDED, "", None, "")
    assert slider["value"] == round(batch.auto.beta, 2) and "Predictions for 20 pictures" in outcome
    assert f"--auto: {batch.auto.beta / 2:.3f}" in sheets and "negative 2 of 2" in negatives
    assert "β = 0.70" in batches._show_beta(batch, 0.7)[1] and batches._show_beta(batch)[1] == outcome
    assert "Predictions for 6 pictures" in encode(batches.FOLDER, str(folder), None, "")[2]
    assert "Predictions for 1 picture<" in encode(batches.UPLOAD, "", [folder / "gear" / "0.png"], "cat, dog")[2]
    for source in (batches.UPLOAD, batches.FOLDER):  # nothing was asked for yet, so nothing is wrong
        assert encode(source, " ", None, "cat, dog")[2] == f"<p>{batches.NO_PICTURES[source]}</p>"


def test_own_pictures_are_not_corrupted_and_have_a_model_of_their_own():
    *shown, corruption, model = batches._update_fields(batches.FOLDER, "lite0")
    assert [each["visible"] for each in shown] == [False, True, False, True]
    assert (corruption["value"], model["value"]) == ("clean", "lite0")
    assert [each["value"] for each in batches._update_fields(batches.EMBEDDED, "lite0")[-2:]] == ["fog", "mini"]


def test_what_the_buttons_of_a_stream_do():
    playing, charts, counts = stream._step(None, "mini", "clip", "panda", DATA, "fog", 5, "continual", 10)
    again, _, counts = stream._step(playing, "mini", "clip", "panda", DATA, "snow", 5, "continual", 10)
    assert again is playing and "<svg" in charts and "All 20 pictures" in counts
    for _ in range(2):  # the timer may tick once more before it is stopped
        with pytest.raises(gr.Error, match="sideways"):
            stream._step(playing, "mini", "clip", "panda", DATA, "fog", 5, "sideways", 10)


def test_what_the_fields_of_results_do(store):
    folders, title, table, grid = records._open(str(store("new", 0.2).root), str(store("old", 0.1).root))
    assert title["value"] in folders[0] and grid["visible"]
    assert grid["value"]["headers"] == ["corruption", "clip", "clip+panda"]
    chosen = gr.SelectData(None, {"index": [0, 2], "value": 0.1, "row_value": ["fog"]})
    shown, record = records._choose_cell(folders, title["value"], table["value"], chosen)
    assert shown.count("clip+panda on fog") == 4 and record["visible"]
    with pytest.raises(gr.Error, match="Enter a folder of records"):
        records._open("", "")


def test_frames_of_a_video_and_a_camera_are_predicted(video):
    [*_, shown] = videos._predict_video(str(video), "cat, dog", "mini", "clip", "panda", 3)
    assert shown.count("<figure") == 3
    method, said = videos._predict_camera(None, np.zeros((48, 64, 3), np.uint8), "cat, dog", "mini", "clip", "none")
    assert (
        "%" in said
        and videos._predict_camera(method, np.zeros((48, 64, 3), np.uint8), "x", "mini", "clip", "none")[0] is method
    )
    with pytest.raises(gr.Error, match="Upload a video first"):
        list(videos._predict_video(None, "cat, dog", "mini", "clip", "none", 1))
    with pytest.raises(gr.Error, match="two or more names"):
        list(videos._predict_video(str(video), "cat", "mini", "clip", "none", 1))


def test_all_interfaces_are_served_to_those_with_the_token():
    page, address = server.serve(["mini"], "0.0.0.0", None, open_browser=False)
    try:
        bare, _, query = address.replace("0.0.0.0", "127.0.0.1").partition("?")
        with requests.Session() as visitor:
            assert visitor.get(bare).status_code == 401
            assert visitor.get(f"{bare}?{query}", headers={"Host": "example.com"}).status_code == 403
            assert visitor.get(f"{bare}?{query}", headers={"Origin": "https://example.com"}).status_code == 403
            assert visitor.get(f"{bare}?{query}").status_code == 200
            assert visitor.get(bare).status_code == 200  # with the cookie
    finally:
        page.close()
