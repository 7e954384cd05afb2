"""Decoding single pictures: every mode and format, turned, scaled, in reduced size, and what is broken."""

from __future__ import annotations

import pickle
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps
from test_corruptions import scenes

from tta_panda.errors import BrokenImageError, DataError
from tta_panda.images import AS_PUBLISHED, Decoding, Framing, fit_picture, read_image

Bytes = NDArray[np.uint8]
STORED = Decoding(upright=False)
RAMP = np.linspace(0, 1, 64 * 48).reshape(48, 64)


def saved(path: Path, picture: Image.Image, **options: object) -> Path:
    picture.save(path, **options)  # type: ignore[arg-type]
    return path


def scene(height: int = 48, width: int = 64) -> Image.Image:
    return Image.fromarray(scenes(1, height, width)[0])


# Modes and formats


@pytest.mark.parametrize("suffix", ["png", "tiff", "pgm"])
def test_sixteen_bits_of_grey_are_scaled(tmp_path: Path, suffix: str) -> None:
    levels = (RAMP * 65535).round().astype(np.uint16)
    image = read_image(saved(tmp_path / f"deep.{suffix}", Image.fromarray(levels)))
    assert image.shape == (48, 64, 3) and image.dtype == np.uint8
    assert np.array_equal(image, np.rint(levels / 257).astype(np.uint8)[..., None].repeat(3, axis=2))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (RAMP.astype(np.float32), 255 * RAMP),
        ((900 * RAMP - 300).astype(np.float32), 255 * RAMP),
        ((2**30 * RAMP).astype(np.int32), 255 * RAMP),
        ((65535 * RAMP).astype(np.int32), 255 * RAMP),
        (np.full((48, 64), 7.5, np.float32), np.zeros((48, 64))),
        (np.where(RAMP > 0.5, np.inf, np.nan).astype(np.float32), np.zeros((48, 64))),
        (np.where(RAMP > 0.5, 3e38, -3e38).astype(np.float32), 255 * (RAMP > 0.5)),
    ],
    ids=["unit", "any", "int32", "16 bits in 32", "constant", "not finite", "extreme"],
)
def test_floats_and_long_integers_are_scaled(tmp_path: Path, values: NDArray[np.generic], expected: Bytes) -> None:
    with np.errstate(all="raise", under="ignore"):
        image = read_image(saved(tmp_path / "values.tiff", Image.fromarray(values)))
    assert np.abs(image - expected[..., None]).max() <= 0.51


def test_what_is_transparent_lies_on_white(tmp_path: Path) -> None:
    colours = np.asarray(scene())
    alpha = (RAMP * 255).astype(np.uint8)
    shares = alpha[..., None] / 255
    path = saved(tmp_path / "glass.png", Image.fromarray(np.dstack([colours, alpha])))
    assert np.abs(read_image(path) - (shares * colours + 255 * (1 - shares))).max() <= 1
    grey = Image.fromarray(np.dstack([colours[..., 0], alpha]), "LA")
    expected = (shares * colours[..., :1] + 255 * (1 - shares)).repeat(3, axis=2)
    assert np.abs(read_image(saved(tmp_path / "grey.png", grey)) - expected).max() <= 1
    with Image.open(path) as opened:
        assert np.array_equal(np.asarray(fit_picture(opened, 32)), read_image(path, 32))


def test_palettes_with_a_transparent_colour(tmp_path: Path) -> None:
    palette = scene().quantize(16)
    for name in ("palette.png", "palette.gif"):
        image = read_image(saved(tmp_path / name, palette, transparency=3))
        assert (image[np.asarray(palette) == 3] == 255).all()
        opaque = np.asarray(palette) != 3
        assert np.array_equal(image[opaque], np.asarray(palette.convert("RGB"))[opaque])


@pytest.mark.parametrize(("mode", "suffix"), [("CMYK", "jpg"), ("CMYK", "tiff"), ("1", "png"), ("L", "bmp")])
def test_other_modes_are_read_as_pillow_converts_them(tmp_path: Path, mode: str, suffix: str) -> None:
    path = saved(tmp_path / f"other.{suffix}", scene().convert(mode))
    with Image.open(path) as picture:
        assert picture.mode == mode
        assert np.array_equal(read_image(path), np.asarray(picture.convert("RGB")))


@pytest.mark.parametrize("suffix", ["gif", "webp", "png", "tiff"])
def test_animations_give_their_first_frame(tmp_path: Path, suffix: str) -> None:
    frames = [Image.new("RGB", (20, 10), colour) for colour in ("red", "blue", "lime")]
    lossless = {"lossless": True} if suffix == "webp" else {}
    path = saved(tmp_path / f"moving.{suffix}", frames[0], save_all=True, append_images=frames[1:], **lossless)
    assert np.array_equal(read_image(path), np.asarray(frames[0]))


def test_the_content_decides(tmp_path: Path) -> None:
    path = saved(tmp_path / "really.jpg", scene(), format="PNG")
    assert np.array_equal(read_image(path), np.asarray(scene()))


def test_a_picture_in_memory_is_read_and_not_changed() -> None:
    picture = scene().convert("RGBA")
    exif = picture.getexif()
    exif[0x0112] = 6
    picture.info["exif"] = exif.tobytes()
    before = picture.tobytes()
    assert read_image(picture).shape == (64, 48, 3)
    assert read_image(picture, 16, STORED).shape == (16, 16, 3)
    assert picture.size == (64, 48) and picture.tobytes() == before


# Orientation and size


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
def test_pictures_are_turned_upright(tmp_path: Path, orientation: int, suffix: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(tmp_path / f"turned.{suffix}", scene(), exif=exif)
    with Image.open(path) as picture:
        stored = np.asarray(picture.convert("RGB"))
        upright = ImageOps.exif_transpose(picture)
    assert np.array_equal(read_image(path, decoding=STORED), stored)
    assert np.array_equal(read_image(path), np.asarray(upright.convert("RGB")))
    assert np.array_equal(read_image(path, 24), np.asarray(fit_picture(upright, 24)))
    turned = {1: stored, 3: stored[::-1, ::-1], 6: np.rot90(stored, -1), 8: np.rot90(stored)}
    if orientation in turned:
        assert np.array_equal(read_image(path), turned[orientation])


def test_a_damaged_exif_block_leaves_the_picture(tmp_path: Path) -> None:
    path = saved(tmp_path / "exif.jpg", scene(), exif=b"Exif\0\0II*\0\xff\xff\xff\xff" + bytes(range(99)))
    assert read_image(path).shape == (48, 64, 3)


@pytest.mark.parametrize("framing", [224, Framing(32), Framing(96, squash=True)])
def test_large_jpegs_are_decoded_in_reduced_size(tmp_path: Path, framing: int | Framing) -> None:
    path = saved(tmp_path / "photo.jpg", scene(2000, 3000), quality=90)
    exact = read_image(path, framing, AS_PUBLISHED).astype(int)
    reduced = read_image(path, framing).astype(int)
    gap = np.abs(exact - reduced)
    assert 0 < gap.mean() < 0.3 and gap.max() <= 3


@pytest.mark.parametrize("shape", [(2001, 3000), (299, 400), (800, 1600)])
def test_others_are_decoded_in_full(tmp_path: Path, shape: tuple[int, int]) -> None:
    path = saved(tmp_path / "photo.jpg", scene(*shape))
    assert np.array_equal(read_image(path, 224), read_image(path, 224, AS_PUBLISHED))


def test_very_long_pictures_take_little_memory(tmp_path: Path) -> None:
    stripes = np.zeros((1, 20_000, 3), dtype=np.uint8)
    stripes[:, 9_990:10_010] = 200
    image = read_image(saved(tmp_path / "long.png", Image.fromarray(stripes)), 224)
    assert image.shape == (224, 224, 3)
    assert (image[:, 112:] > 190).all()


# Limits and damage


def huge_png(width: int, height: int) -> bytes:
    """A PNG that declares a size and holds a few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(999))) + chunk(b"IEND", b"")
    )


def test_too_many_pixels_are_refused(tmp_path: Path) -> None:
    (tmp_path / "huge.png").write_bytes(huge_png(12_000, 12_000))
    (tmp_path / "larger.png").write_bytes(huge_png(65_000, 65_000))
    with warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning):
        for name in ("huge.png", "larger.png"):
            with pytest.raises(BrokenImageError, match="declares more than 89,478,485 pixels"):
                read_image(tmp_path / name)
    path = saved(tmp_path / "small.png", scene())
    with pytest.raises(BrokenImageError, match="more than 3,071 pixels"):
        read_image(path, decoding=Decoding(max_pixels=48 * 64 - 1))
    assert read_image(path, decoding=Decoding(max_pixels=48 * 64)).shape == (48, 64, 3)


def test_a_higher_limit_raises_that_of_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    path = saved(tmp_path / "small.tiff", scene())
    assert read_image(path, decoding=Decoding(max_pixels=48 * 64)).shape == (48, 64, 3)
    assert Image.MAX_IMAGE_PIXELS == 48 * 64


def test_whatever_is_wrong_is_said_in_a_few_words(tmp_path: Path) -> None:
    content = saved(tmp_path / "whole.png", scene()).read_bytes()
    (tmp_path / "half.png").write_bytes(content[: len(content) // 2])
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "text.jpg").write_text("not an image")
    (tmp_path / "vector.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    (tmp_path / "folder.png").mkdir()
    reasons = {
        "half.png": "truncated",
        "empty.png": "empty file",
        "text.jpg": "not a picture",
        "vector.jpg": "not a picture",
        "folder.png": "Is a directory",
        "absent.png": "No such file",
    }
    for name, reason in reasons.items():
        with pytest.raises(BrokenImageError) as caught:
            read_image(tmp_path / name)
        assert reason in caught.value.reason and str(tmp_path) not in caught.value.reason
        assert name in str(caught.value) and isinstance(caught.value, DataError)
        again = pickle.loads(pickle.dumps(caught.value))
        assert (str(again), again.reason) == (str(caught.value), caught.value.reason)


@pytest.mark.parametrize(
    "error",
    [struct.error, zlib.error, EOFError, IndexError, KeyError, MemoryError, SyntaxError, OverflowError, TypeError],
)
def test_every_failure_of_pillow_is_a_broken_image(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Image, "open", fail)
    with pytest.raises(BrokenImageError) as caught:
        read_image(Path("any.png"))
    assert caught.value.reason
