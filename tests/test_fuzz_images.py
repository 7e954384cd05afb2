"""Damaged image files of every format: each is read or named broken, in bounded time and memory.

150 in the suite; any number, with a report, by

    python tests/test_fuzz_images.py 5000
"""

from __future__ import annotations

import io
import json
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tta_panda.errors import BrokenImageError
from tta_panda.images import read_image

resource = pytest.importorskip("resource")

SECONDS = 20  # of CPU for one file
MEGABYTES = 1500  # of memory that is used at any time; 89 million pixels of three bytes take 270
ADDRESSES = 6 << 30  # bytes of address space, some of which the libraries take without using it

SIZES = (0, 1, 31, 9_990, 12_000, 20_000, 65_535, 2**24 - 1, 2**31 - 1, 2**32 - 1)
FORMATS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "png": [("RGB", {}), ("P", {}), ("LA", {}), ("I;16", {}), ("RGBA", {"save_all": True})],
    "jpeg": [("RGB", {}), ("CMYK", {}), ("L", {"progressive": True}), ("RGB", {"exif": b"Exif\0\0MM\0*" + bytes(40)})],
    "bmp": [("RGB", {}), ("P", {}), ("RGBA", {})],
    "gif": [("P", {}), ("RGB", {"save_all": True, "append_images": [Image.new("RGB", (23, 31))]})],
    "tiff": [("RGB", {}), ("F", {}), ("L", {"compression": "tiff_lzw"}), ("CMYK", {"compression": "jpeg"}),
             ("1", {"compression": "group4"}), ("RGBA", {"compression": "tiff_adobe_deflate"})],
    "webp": [("RGB", {}), ("RGBA", {"lossless": True}), ("RGB", {"save_all": True, "duration": 9})],
    "ppm": [("RGB", {}), ("L", {}), ("1", {})],
}  # fmt: skip


def originals() -> list[tuple[str, bytes]]:
    pixels = np.random.default_rng(0).integers(0, 256, (31, 23, 3), dtype=np.uint8)
    made = []
    for name, variants in FORMATS.items():
        for mode, options in variants:
            buffer = io.BytesIO()
            picture = Image.fromarray(pixels).convert("L" if mode == "I;16" else mode)
            (picture.convert("I").convert(mode) if mode == "I;16" else picture).save(buffer, name, **options)
            made.append((name, buffer.getvalue()))
    return made


def mutated(name: str, content: bytes, rng: np.random.Generator) -> bytes:
    """The file with one to three kinds of damage."""
    data = bytearray(content)
    for kind in rng.choice(["cut", "flip", "head", "size", "zeros", "repeat", "insert"], rng.integers(1, 4)):
        place = int(rng.integers(0, max(1, len(data))))
        length = int(rng.integers(1, 64))
        if kind == "cut":
            del data[place:]
        elif kind == "flip":
            for index in rng.integers(0, max(1, len(data)), rng.integers(1, 20)):
                data[index : index + 1] = bytes([rng.integers(256)])
        elif kind == "head":
            place = int(rng.integers(0, 64))
            data[place : place + 4] = rng.bytes(4)
        elif kind == "size":
            resized(name, data, *(int(side) for side in rng.choice(SIZES, 2)))
        elif kind == "zeros":
            data[place : place + length] = bytes(length)
        elif kind == "repeat":
            data[place:place] = data[place : place + length] * int(rng.integers(1, 50))
        else:
            data[place:place] = rng.bytes(length)
    return bytes(data)


def resized(name: str, data: bytearray, width: int, height: int) -> None:
    """Declare another size in the header, where it still is."""
    if name == "png" and len(data) > 33:
        data[16:24] = struct.pack(">II", width, height)
        data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    elif name == "jpeg" and (start := re.search(rb"\xff[\xc0\xc2]", bytes(data))):
        data[start.end() + 3 : start.end() + 7] = struct.pack(">HH", height & 0xFFFF, width & 0xFFFF)
    elif name == "bmp":
        data[18:26] = struct.pack("<II", width, height)
    elif name == "gif":
        data[6:10] = struct.pack("<HH", width & 0xFFFF, height & 0xFFFF)
    elif name == "tiff":
        for tag, side in ((256, width), (257, height)):  # one long value in an entry of the directory
            for entry in re.finditer(re.escape(struct.pack("<H", tag)) + rb"[\x03\x04]\0\x01\0\0\0", bytes(data)):
                data[entry.start() : entry.start() + 12] = struct.pack("<HHII", tag, 4, 1, side)
    elif name == "webp" and data[12:16] == b"VP8X":
        data[24:30] = struct.pack("<I", width)[:3] + struct.pack("<I", height)[:3]
    elif name == "webp" and data[12:16] == b"VP8L":
        data[21:25] = struct.pack("<I", (width & 0x3FFF) | (height & 0x3FFF) << 14)
    elif name == "webp":
        data[26:30] = struct.pack("<HH", width & 0x3FFF, height & 0x3FFF)
    elif name == "ppm":
        data[:] = re.sub(rb"^(P\d)\s\d+\s\d+", rb"\1 %d %d" % (width, height), data)


def read_mutants(count: int, seed: int = 0) -> dict[str, Any]:
    """Read damaged files under limits; a file that takes too long ends the process, and its bytes stay on disk."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    rng, sources = np.random.default_rng(seed), originals()
    outcomes: Counter[str] = Counter()
    slowest = 0.0
    path = Path(tempfile.mkdtemp("mutants")) / "mutant.jpg"
    for index in range(count):
        name, content = sources[index % len(sources)]
        path.write_bytes(mutated(name, content, rng))
        fit = (None, 32, 224)[int(rng.integers(3))]
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        start = time.process_time()
        try:
            image = read_image(path, fit)
            assert image.ndim == 3 and image.shape[2] == 3 and image.dtype == np.uint8
            assert fit is None or image.shape == (fit, fit, 3)
            outcomes["read"] += 1
        except BrokenImageError as error:
            outcomes["too large" if "pixels" in error.reason else "broken"] += 1
        slowest = max(slowest, time.process_time() - start)
    signal.setitimer(signal.ITIMER_PROF, 0)
    shutil.rmtree(path.parent)
    return {**outcomes, "slowest in seconds": round(slowest, 2), "megabytes": peak_kilobytes() // 1024}


def peak_kilobytes() -> int:
    """Of this process alone: `ru_maxrss` would begin with the size of the process that started it."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\s*(\d+)", status.read_text())[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_damaged_files_are_read_or_named_broken() -> None:
    done = subprocess.run([sys.executable, __file__, "150"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert min(report["read"], report["broken"], report["too large"]) >= 10
    assert report["read"] + report["broken"] + report["too large"] == 150
    assert report["slowest in seconds"] < SECONDS
    assert report["megabytes"] < MEGABYTES


def test_the_originals_can_be_read(tmp_path: Path) -> None:
    for name, content in originals():
        (tmp_path / name).write_bytes(content)
        assert read_image(tmp_path / name).shape == (31, 23, 3)


if __name__ == "__main__":
    print(json.dumps(read_mutants(*map(int, sys.argv[1:]))))
