"""Data sets of image files in class folders, clean or corrupted.

    root/<class>/**/*.jpg                            clean; the folders of ImageNet-V2 are numbers
    root/<corruption>/<severity>/<class>/**/*.jpg    corrupted, as ImageNet-C and `tta-panda corrupt` lay it out
    root/<domain>/<class>/**/*.jpg                   domains that are no corruptions, such as those of PACS

An optional `classes.txt` next to the class folders names the classes, with one line `folder<TAB>name` for each.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tta_panda.data import CLEAN
from tta_panda.data.corruptions import ALL_CORRUPTIONS, ALL_GROUPS, CORRUPTIONS, EXTRA_CORRUPTIONS
from tta_panda.data.dataset import ImageFiles
from tta_panda.data.listing import CLASS_LIST, SUFFIXES, Found, find_images, found_in, read_classes, shortened
from tta_panda.data.source import Archive, Finding, ImageSource, Status, published_classes
from tta_panda.errors import DataError, TtaPandaWarning
from tta_panda.escapes import path_text
from tta_panda.images import AS_PUBLISHED


@dataclass(frozen=True, kw_only=True)
class ImageFolders(ImageSource):
    """Image files in class folders."""

    layout: str = "<class>/*.jpg"
    domains: tuple[str, ...] = ()
    classes: str | None = None  # file in `class_names` that lists the allowed class folders; None allows any
    numbered: bool = False  # whether class folders are named by the index of the class in that list
    folder: str = ""  # optional folder that contains the corruptions or domains
    clean: tuple[str, ...] = ("",)  # possible folders of clean images; the first that exists is used
    class_count: int | None = None  # of a tree of domains without severities, if it is known

    def load(self, root: Path | None, corruption: str, severity: int) -> ImageFiles:
        root = self.required_root(root)
        folder = self.domain(root, corruption, severity)
        if self.classes is not None:
            return self._load_published(folder)
        if self.has_severities:
            folders, names = named_classes(folder, root)
        else:  # a domain may lack a class
            found = self._tree_classes(folder.parent)
            folders, names = [folder / name for name in found], titles(found, folder.parent, root)
        if not folders:
            raise DataError(
                f"{folder} holds no class folders; expected {folder}/<class>/*.jpg, found {found_in(folder)}. Images "
                "without labels can be predicted: tta-panda predict FOLDER --classes cat,dog"
            )
        return self._load_classes(folder, folders, names)

    def _load_published(self, folder: Path) -> ImageFiles:
        assert self.classes is not None and self.size is not None
        found = {path.name for path in class_folders(folder)}
        classes = published_classes(self.classes)
        if self.numbered:
            classes = {str(number): name for number, name in enumerate(classes.values())}
        count = min(self.size[1], len(classes))
        unknown, missing = sorted(found - classes.keys()), sorted(classes.keys() - found)
        if unknown or len(found) != count:
            problem = f"{len(found) - count} too many"
            if len(found) < count:
                named = f": {', '.join(missing[:5])}" if count == len(classes) else ""
                problem = f"{count - len(found)} missing{named}"
            if unknown:
                problem = f"{len(unknown)} unknown: {', '.join(unknown[:5])}"
            raise DataError(
                f"{folder} should hold the {count:,} class folders of {self.name} ({shortened(list(classes))}); "
                f"found {found_in(folder)}; {problem}. For some of the classes, or others, use --data folder."
            )
        classes = {name: title for name, title in classes.items() if name in found}
        files = self._load_classes(folder, [folder / name for name in classes], tuple(classes.values()))
        if not len(files):
            raise DataError(f"The class folders of {folder} hold no images; expected {self.layout}.")
        return files

    def _load_classes(self, folder: Path, classes: Sequence[Path], class_names: tuple[str, ...]) -> ImageFiles:
        """Find the images in the class folders of `folder`, sorted by class, and warn about skipped files."""
        per_class = [find_images([each]) if each.is_dir() else Found((), {}) for each in classes]
        outside = [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file()]
        skipped = {path: reason for found in per_class for path, reason in found.skipped.items()}
        skipped |= dict.fromkeys(outside, "outside the class folders")
        found = Found(tuple(path for found in per_class for path in found.paths), skipped)
        if skipped:
            warnings.warn(
                f"{path_text(folder)}: {found}", TtaPandaWarning, stacklevel=1
            )  # from one place, so it is shown once
        labels = np.repeat(np.arange(len(per_class)), [len(found.paths) for found in per_class])
        return ImageFiles(found.paths, labels, class_names, self.decoding)

    def domain(self, root: Path, corruption: str, severity: int) -> Path:
        """Find the folder that contains the class folders of a domain."""
        self.check_is_clean(corruption)
        if not self.has_severities:
            root = self._tree(root)
            if not (root / corruption).is_dir():
                raise DataError(
                    f"There is no {root / corruption}; expected {self.layout}, found {found_in(root)}. Give another "
                    "folder with --data-root PATH, or name other domains with --corruption NAMES."
                )
            return root / corruption
        if corruption == CLEAN:
            for place in self.clean:
                if (root / place).is_dir():
                    return root / place
            raise DataError(
                f"No clean images in {root}: expected {root / self.clean[0]}/<class>/*. To run without clean images, "
                "use --corruption all."
            )
        if (root / self.folder).is_dir():
            root = root / self.folder
        folders = corruption_folders(root, corruption)
        for folder in folders:
            if (folder / str(severity)).is_dir():
                return folder / str(severity)
        found = f"severities {found_in(folders[0])} of {corruption}" if folders else found_in(root)
        advice = "Unpack it there, or name other corruptions with --corruption NAMES."
        if corruption in ALL_CORRUPTIONS:
            advice = (
                f"Make it from clean images with: tta-panda corrupt CLEAN {root} --corruption {corruption} --severity "
                f"{severity}"
            )
        raise DataError(
            f"There is no {root / corruption / str(severity)}. Expected <corruption>/<severity>/<class>/*.jpg in "
            f"{root}; found {found}. {advice}"
        )

    def available(self, root: Path | None) -> tuple[str, ...]:
        """The domains of the data set, or those found on disk; `clean` if none is, so that loading raises the error."""
        if self.domains and self.has_severities:
            return self.domains
        root = self.required_root(root)
        if not self.has_severities:
            found = tuple(path.name for path in class_folders(self._tree(root)))
            return tuple(name for name in self.domains if name in found) or self.domains or found
        there = tuple(name for name in ALL_CORRUPTIONS if any(map(_is_corruption, corruption_folders(root, name))))
        return (CLEAN, *there) if class_folders(root) or not there else there

    def check(self, root: Path) -> Iterator[Finding]:
        if not self.has_severities:
            tree = self._tree(root)
            if self.domains and (tree != root or root.name == self.folder):
                for name in self.domains:
                    yield self.check_path(tree / name, self._check_domain)
            return
        if self.classes is None:
            return
        if self.domains == (CLEAN,):
            for place in filter(None, self.clean):
                if (root / place).is_dir():
                    yield self.check_path(root / place, self._check_classes)
            return
        own = self.expand(["all"], root)
        for folder in (root / self.folder, root):
            there = {
                name: places[0] for name in (*own, *EXTRA_CORRUPTIONS) if (places := corruption_folders(folder, name))
            }
            if any(name in there for name in own):
                for name in dict.fromkeys((*own, *there)):
                    yield self.check_path(there.get(name, folder / name), self._check_severities)
                return

    def _tree(self, root: Path) -> Path:
        """The folder that contains the domains."""
        return root / self.folder if (root / self.folder).is_dir() else root

    def _tree_classes(self, tree: Path) -> list[str]:
        """Names of the class folders of all domains."""
        domains = [tree / name for name in self.available(tree) if (tree / name).is_dir()]
        return sorted({path_text(path.name) for domain in domains for path in class_folders(domain)})

    def _check_domain(self, folder: Path) -> tuple[Status, str]:
        classes = self._tree_classes(folder.parent)
        there = {path_text(path.name) for path in class_folders(folder)}
        if len(classes) > (expected := self.class_count or len(classes)):
            return "damaged", f"the domains have {len(classes):,} different class folders, expected {expected:,}"
        images = len(find_images([folder]).paths)
        found = f"{images:,} images of {len(there):,} classes"
        lacking = sorted(set(classes) - there)
        if lacking or len(there) < expected:
            return "partial", f"{found}, expected {expected:,} classes; missing: {shortened(lacking)}"
        return "ok", found

    def _check_severities(self, folder: Path) -> tuple[Status, str]:
        there = [severity for severity in range(1, 6) if (folder / str(severity)).is_dir()]
        for severity in there:
            status, detail = self._check_classes(folder / str(severity))
            if status != "ok":
                return status, f"severity {severity}: {detail}"
        return "ok" if len(there) == 5 else "partial", f"severities {', '.join(map(str, there)) or 'none'}"

    def _check_classes(self, folder: Path) -> tuple[Status, str]:
        """Count the images, without decoding any."""
        assert self.size is not None
        images, expected = len(self._load_published(folder)), self.size[0]
        return "ok" if images == expected else "partial", f"{images:,} of {expected:,} images"


def named_classes(folder: Path, root: Path | None = None) -> tuple[list[Path], tuple[str, ...]]:
    """Find the class folders in a folder, and the class names, from `classes.txt` there or in the root if it exists.

    Without class folders, all names in the list are returned.
    """
    folders = class_folders(folder)
    return folders, titles([path_text(path.name) for path in folders], folder, root or folder)


def titles(found: Sequence[str], *places: Path) -> tuple[str, ...]:
    """Class names of these folders, from `classes.txt` in the first place that has one; all its names if none."""
    lists = [place / CLASS_LIST for place in places if (place / CLASS_LIST).is_file()]
    names = read_classes(lists[0]) if lists else {}
    if not found or not names:
        return tuple(found) or tuple(names.values())
    absent = [name for name in found if name not in names]
    if absent:
        raise DataError(
            f"{lists[0]} has no line for the class folder(s) {', '.join(absent[:5])}. Expected one line per class "
            "folder: its name, a tab, and the class name for the prompt."
        )
    return tuple(names[name] for name in found)


def corruption_folders(root: Path, corruption: str) -> list[Path]:
    """Existing folders of a corruption, in `root` or in that of its group, if archives were unpacked separately."""
    group = next((group for group, names in ALL_GROUPS.items() if corruption in names), "")
    return [folder for folder in (root / corruption, root / group / corruption) if folder.is_dir()]


def class_folders(folder: Path) -> list[Path]:
    """Class folders in a folder: all except hidden ones, those of corruptions, and those that contain corruptions."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.is_dir()
        and not path.name.startswith(".")
        and not _is_corruption(path)
        and not any(os.path.isdir(f"{path}/{name}") and _is_corruption(path / name) for name in ALL_CORRUPTIONS)
    )


def _is_corruption(folder: Path) -> bool:
    """Whether a folder has the name of a corruption and contains severities; a class may be called snow, too."""
    return folder.name in ALL_CORRUPTIONS and any((folder / str(severity)).is_dir() for severity in range(1, 6))


def _archive(group: str, md5: str, gigabytes: float) -> Archive:
    holds = tuple(f"{name}/{severity}" for name in ALL_GROUPS[group] for severity in range(1, 6))
    return Archive(f"https://zenodo.org/records/2235448/files/{group}.tar", md5, gigabytes, holds, "ImageNet-C", group)


def _imagenet_variant(name: str, about: str, images: int, classes: int, clean: tuple[str, ...]) -> ImageFolders:
    """A data set of clean images in folders of ImageNet classes; images are classified among the classes it has."""
    return ImageFolders(
        name=name,
        about=about,
        layout=f"{clean[0]}/<wnid>/*",
        domains=(CLEAN,),
        classes="imagenet",
        clean=(*clean, ""),
        decoding=AS_PUBLISHED,
        size=(images, classes),
    )


def _domain_tree(name: str, title: str, folder: str, domains: tuple[str, ...], classes: int) -> ImageFolders:
    """A data set of several domains, with the folders of DomainBed; class names are those of the folders."""
    return ImageFolders(
        name=name,
        about=f"{title}: {classes} classes in {len(domains)} domains.",
        layout=f"{folder}/<{domains[0]}, ...>/<class>/*",
        domains=domains,
        has_severities=False,
        folder=folder,
        class_count=classes,
        decoding=AS_PUBLISHED,
    )


def _corrupted(name: str, about: str, folder: str, names: tuple[str, ...]) -> ImageFolders:
    """A data set in the layout of ImageNet-C with other corruptions."""
    return replace(IMAGENET_C, name=name, about=about, folder=folder, domains=(CLEAN, *names), archives=())


FOLDER = ImageFolders(name="folder", about="Your own images: folder/<class>/*.")
IMAGENET = _imagenet_variant(
    "imagenet", "ImageNet's 50,000 validation images, <wnid>/*.JPEG.", 50_000, 1000, ("val", "validation")
)
IMAGENET_A = _imagenet_variant(
    "imagenet-a", "ImageNet-A: 7,500 photographs of 200 classes that networks get wrong.", 7_500, 200,
    ("imagenet-a", "imagenet-adversarial/imagenet-a"),
)  # fmt: skip
IMAGENET_R = _imagenet_variant(
    "imagenet-r", "ImageNet-R: 30,000 renditions, such as paintings and toys, of 200 classes.", 30_000, 200,
    ("imagenet-r", "imagenet-rendition/imagenet-r"),
)  # fmt: skip
IMAGENET_SKETCH = _imagenet_variant(
    "imagenet-sketch", "ImageNet-Sketch: 50,889 sketches.", 50_889, 1000,
    ("sketch", "imagenet-sketch/images", "imagenet-sketch/sketch", "imagenet-sketch"),
)  # fmt: skip
IMAGENET_V2 = replace(
    _imagenet_variant(
        "imagenet-v2", "ImageNet-V2, matched frequency: 10,000 new photographs, <class index>/*.jpeg.", 10_000,
        1000, ("imagenetv2-matched-frequency-format-val", "imagenet-v2"),
    ),
    layout="imagenetv2-matched-frequency-format-val/<0 to 999>/*.jpeg",
    numbered=True,
)  # fmt: skip
IMAGENET_C = ImageFolders(
    name="imagenet-c",
    about="ImageNet-C, <corruption>/<severity>/<wnid>/*.JPEG; clean images from val/ next to it.",
    layout="<corruption>/<severity>/<wnid>/*.JPEG",
    domains=(CLEAN, *CORRUPTIONS),
    classes="imagenet",
    folder="ImageNet-C",
    clean=("val", "validation"),
    decoding=AS_PUBLISHED,
    size=(50_000, 1000),
    archives=(
        _archive("noise", "e80562d7f6c3f8834afb1ecf27252745", 22),
        _archive("blur", "2d8e81fdd8e07fef67b9334fa635e45c", 7),
        _archive("weather", "33ffea4db4d93fe4a428c40a6ce0c25d", 13),
        _archive("digital", "89157860d7b10d5797849337ca2e5c03", 8),
        _archive("extra", "d492dfba5fc162d8ec2c3cd8ee672984", 16),
    ),
)
IMAGENET_C_BAR = _corrupted(
    "imagenet-c-bar", "ImageNet-C-bar: ten other corruptions, <corruption>/<severity>/<wnid>/*.JPEG.", "ImageNet-C-bar",
    (
        "blue_noise_sample", "brownish_noise", "caustic_refraction", "checkerboard_cutout", "cocentric_sine_waves",
        "inverse_sparkles", "perlin_noise", "plasma_noise", "single_frequency_greyscale", "sparkles",
    ),
)  # fmt: skip
IMAGENET_3DCC = _corrupted(
    "imagenet-3dcc", "ImageNet-3DCC: twelve 3D common corruptions, <corruption>/<severity>/<wnid>/*.", "ImageNet-3DCC",
    (
        "near_focus", "far_focus", "bit_error", "color_quant", "flash", "fog_3d", "h265_abr", "h265_crf", "iso_noise",
        "low_light", "xy_motion_blur", "z_motion_blur",
    ),
)  # fmt: skip
TINY_IMAGENET_C = replace(
    _corrupted("tiny-imagenet-c", "Tiny-ImageNet-C: 200 classes of ImageNet at 64 px.", "Tiny-ImageNet-C", CORRUPTIONS),
    size=(10_000, 200),
)

DOMAINS = ImageFolders(
    name="domains",
    about="Your own domains: folder/<domain>/<class>/*.",
    layout="<domain>/<class>/*",
    has_severities=False,
)
PACS = _domain_tree("pacs", "PACS", "PACS", ("art_painting", "cartoon", "photo", "sketch"), 7)
VLCS = _domain_tree("vlcs", "VLCS", "VLCS", ("Caltech101", "LabelMe", "SUN09", "VOC2007"), 5)
OFFICEHOME = _domain_tree("officehome", "OfficeHome", "office_home", ("Art", "Clipart", "Product", "Real World"), 65)
TERRA = _domain_tree(
    "terra", "Terra Incognita, animals in camera traps", "terra_incognita",
    ("location_38", "location_43", "location_46", "location_100"), 10,
)  # fmt: skip
DOMAINNET = _domain_tree(
    "domainnet", "DomainNet", "domain_net",
    ("clipart", "infograph", "painting", "quickdraw", "real", "sketch"), 345,
)  # fmt: skip
VISDA = _domain_tree("visda", "VisDA-C, rendered (train) and photographed", "VisDA-C", ("train", "validation"), 12)
