"""What loading leaves behind: nothing. Messages of open_clip are dropped, and those of all others pass."""

from __future__ import annotations

import contextlib
import logging
import threading
import warnings
from collections.abc import Iterator

import open_clip
import pytest
from open_clip import factory

from tta_panda import load_model
from tta_panda.errors import InvalidInputError, ModelLoadError
from tta_panda.models.checkpoints import failures_explained
from tta_panda.models.openclip import open_clip_silenced


@contextlib.contextmanager
def unconfigured() -> Iterator[logging.Logger]:
    """The root logger of a program that configured nothing; pytest gives it handlers."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    root.setLevel(logging.WARNING)
    try:
        yield root
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


class Heard(logging.Handler):
    def __init__(self):
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def test_loading_leaves_the_root_logger_as_it_was(tiny_checkpoint):
    with unconfigured() as root:
        load_model(str(tiny_checkpoint))
        assert (root.handlers, root.filters, root.level) == ([], [], logging.WARNING)
        with contextlib.suppress(ZeroDivisionError), open_clip_silenced():
            assert root.filters
            _ = 1 / 0
        assert (root.handlers, root.filters, root.level) == ([], [], logging.WARNING)


def test_only_messages_of_open_clip_are_dropped(tiny_checkpoint, monkeypatch):
    heard = Heard()
    original = factory.set_model_preprocess_cfg

    def speak() -> None:
        logging.info("of a user's thread")
        logging.getLogger("another.library").warning("of another library")

    def meanwhile(*arguments):
        thread = threading.Thread(target=speak)
        thread.start()
        thread.join()
        original(*arguments)

    monkeypatch.setattr(factory, "set_model_preprocess_cfg", meanwhile)
    with unconfigured() as root:
        root.addHandler(heard)
        root.setLevel(logging.DEBUG)
        load_model(str(tiny_checkpoint))
        assert set(heard.messages) == {"of a user's thread", "of another library"}
        open_clip.create_model(f"local-dir:{tiny_checkpoint}", load_weights=False)
    assert any("local dir" in message for message in heard.messages)  # open_clip does speak


def test_only_warnings_of_open_clip_are_dropped():
    with warnings.catch_warnings(record=True) as caught, open_clip_silenced():
        for module in ("open_clip.factory", "open_clipper", "user"):
            warnings.warn_explicit(f"of {module}", UserWarning, "file.py", 1, module=module)
    assert [str(warning.message) for warning in caught] == ["of open_clipper", "of user"]


def test_what_a_library_raises_becomes_one_sentence():
    message = r"^Cannot load x: first line\. Do this\.$"
    with pytest.raises(ModelLoadError, match=message), failures_explained("Cannot load x", " Do this."):
        raise RuntimeError("first line.\nsecond line")
    with pytest.raises(ModelLoadError, match=r"^Cannot load x: TimeoutError$"), failures_explained("Cannot load x"):
        raise TimeoutError
    with pytest.raises(InvalidInputError, match=r"^ours$"), failures_explained("Cannot load x"):
        raise InvalidInputError("ours")
