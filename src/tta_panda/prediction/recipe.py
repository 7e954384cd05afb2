"""What decides predictions, by name: every process makes the same method of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

from tta_panda.images import AS_SHOWN, Decoding
from tta_panda.methods import create_method
from tta_panda.methods.base import Method
from tta_panda.models import load_model, make_classifier, recorded_name, weights_digest
from tta_panda.models.base import framing_of
from tta_panda.models.devices import Backend, Precision, resolve_device
from tta_panda.prediction.classes import find_classes, labels_by_folder
from tta_panda.prediction.reading import Decoder


class Predictor(NamedTuple):
    """What predicts, what reads the pictures, and what knows the class index of a path."""

    method: Method
    decoder: Decoder
    label_of: Callable[[str], int]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A method with its model, its classes and its options.

    Args:
        places: where pictures are; of folders, sub-folders tell labels, and classes where none are given.
        classes: names of the classes, where they are known.
        templates: prompts for them; None for the usual one.
    """

    model: str
    method: str
    places: tuple[Path, ...] = ()
    classes: tuple[str, ...] | None = None
    templates: tuple[str, ...] | None = None
    preset: str | None = None
    options: Mapping[str, Any]
    seed: int = 0
    device: str = "auto"
    precision: str = "fp32"
    backend: str = "torch"
    decoding: Decoding = AS_SHOWN

    def make(self) -> Predictor:
        """Load the model, and make the method for its classes."""
        device = resolve_device(self.device)
        model = load_model(self.model, device, cast(Precision, self.precision), cast(Backend, self.backend))
        names, folders = find_classes(self.places, self.classes, model)
        classifier = make_classifier(model, names, list(self.templates) if self.templates else "photo")
        method = create_method(self.method, classifier, preset=self.preset, seed=self.seed, **self.options)
        decoder = Decoder(framing_of(model), self.decoding)
        return Predictor(method, decoder, labels_by_folder(folders, classifier.class_names))

    def settings(self) -> dict[str, Any]:
        """What must be the same where a job is resumed; where the model runs need not be."""
        return {
            "model": recorded_name(self.model),
            "weights": weights_digest(self.model),
            "precision": self.precision,
            "backend": self.backend,
            "classes": self.classes and list(self.classes),
            "templates": self.templates and list(self.templates),
            "method": self.method,
            "options": dict(self.options),
            "preset": self.preset,
            "seed": self.seed,
            "decoding": str(self.decoding),
        }
