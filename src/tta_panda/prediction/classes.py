"""Which classes to predict, and which of them a picture is labelled with by the folder that it lies in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tta_panda.data.dataset import UNLABELLED
from tta_panda.data.folders import CLASS_LIST, class_folders, named_classes
from tta_panda.data.source import published_classes
from tta_panda.errors import InvalidInputError
from tta_panda.models.base import ImageModel
from tta_panda.models.linear import LinearHeadModel


def find_classes(
    places: Sequence[Path], given: Sequence[str] | None, model: ImageModel
) -> tuple[list[str], dict[Path, str]]:
    """Names of the classes, and the name that goes with each folder of pictures of known class.

    Args:
        places: where pictures are. Of folders, sub-folders or a class list name the classes.
        given: the names, where they are known; sub-folders of the same names then tell labels only.
        model: ImageNet's classes are those of a network that was trained on them, where nothing else names any.
    """
    roots = [place.expanduser() for place in places if place.expanduser().is_dir()]
    if given is not None:
        return list(given), {folder: folder.name for root in roots for folder in class_folders(root)}
    names: dict[str, None] = {}
    folders: dict[Path, str] = {}
    for root in roots:
        found, class_names = named_classes(root)
        folders |= dict(zip(found, class_names, strict=False))
        names |= dict.fromkeys(class_names)
    imagenet = list(published_classes("imagenet").values())
    if len(names) < 2 and isinstance(model, LinearHeadModel) and model.head.out_features == len(imagenet):
        return imagenet, {}
    if len(names) < 2:
        where = ", ".join(map(str, places[:3])) or "A list of paths"
        raise InvalidInputError(
            f"Which classes? {where} has no sub-folders or {CLASS_LIST} to tell them. Type --classes cat,dog,bird, or "
            "--classes-file FILE with one name per line."
        )
    return list(names), folders


def labels_by_folder(folders: Mapping[Path, str], class_names: Sequence[str]) -> Callable[[str], int]:
    """A function from the path of a picture to the index of its class, or `UNLABELLED`."""
    indices = {name: index for index, name in enumerate(class_names)}
    spoken = {folder.absolute(): name.replace("_", " ").strip() for folder, name in folders.items()}
    known = {folder: indices[name] for folder, name in spoken.items() if name in indices}

    def label_of(path: str) -> int:
        return next((known[parent] for parent in Path(path).absolute().parents if parent in known), UNLABELLED)

    return label_of
