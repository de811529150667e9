"""Images in folders, one folder per class.

The layout is `train/<class>/...` and `test/<class>/...`, or only `<class>/...`, which dpprobe
splits. Class names are the sorted names of the folders; they are published with the weights.

A row's id is its path under the folder. The path contains the class, but depends on the row alone.
With `split_by: id`, moving an image to another folder may change its side, but no other image's.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

from pydantic import Field

from dpprobe.data import class_units
from dpprobe.data.alike_names import find_alike, in_words
from dpprobe.data.image_files import EXTENSIONS, is_image_file
from dpprobe.data.options import ClassUnits, DatasetOptions, Embed
from dpprobe.data.train_test_split import SplitOptions, SplitSeed, TestFraction
from dpprobe.errors import ConfigError
from dpprobe.options import resolve_path

logger = logging.getLogger("dpprobe")

SHOWN = 20
BYSTANDERS = frozenset({"thumbs.db", "desktop.ini"})


class Options(SplitOptions):
    """Images in folders: `train/<class>/...` and `test/<class>/...`, or `<class>/...`."""

    paths: ClassVar = ("path",)

    source: Literal["imagefolder"] = "imagefolder"
    path: str = Field(min_length=1, description="The folder, relative to the working directory.")
    exclude: tuple[str, ...] = Field((), description="Class folders to leave out.")
    embed: Embed = False
    test_fraction: TestFraction = 0.2
    split_seed: SplitSeed = 0

    def check_files(self) -> None:
        list_images(self)
        self.source_state()

    def input_files(self) -> tuple[str, ...]:
        """Returns every folder that is searched; `list_source_files` the images in them."""
        return tuple(sorted(str(folder) for folder, _ in self._walk_folders()))

    def list_source_files(self) -> Iterator[tuple[str, os.DirEntry[str]]]:
        root = resolve_path(self.path)
        for folder, entries in self._walk_folders():
            place = folder.relative_to(root)
            yield from (((place / entry.name).as_posix(), entry) for entry in entries)

    def has_test(self) -> bool:
        root = resolve_path(self.path)
        return (root / "train").is_dir() and (root / "test").is_dir()

    def image_folders(self) -> tuple[str, ...]:
        return (self.path,)

    def count_rows(self) -> tuple[int, int]:
        rows = _split_rows(self, list_images(self))
        return len(rows["train"]), len(rows["test"])

    def count_classes(self) -> int:
        return len(list_images(self).class_names)

    def count_class_units(self) -> ClassUnits:
        listing = list_images(self)

        def count_at(at: Options) -> class_units.Sides:
            rows = _split_rows(at, listing)
            return Counter((name, label) for name, part in rows.items() for _, label in part)

        return class_units.count_classes(self, listing.class_names, count_at)

    def _walk_folders(self) -> Iterator[tuple[Path, list[os.DirEntry[str]]]]:
        root = resolve_path(self.path)
        parts = [root / name for name in ("train", "test") if (root / name).is_dir()]
        for part in parts or [root]:
            left_out = {part / name for name in self.exclude}
            for folder, entries in _walk_folder(part):
                if left_out.isdisjoint((folder, *folder.parents)):
                    yield folder, entries


class Listing(NamedTuple):
    """The images of a folder: split -> class name -> files relative to the folder, sorted."""

    files: dict[str, dict[str, list[str]]]
    class_names: tuple[str, ...]


def list_images(options: Options) -> Listing:
    """Lists the images; opens none of them.

    Without `train/` and `test/` all files are listed under "train".

    Raises:
      ConfigError: if the folder is missing or has another layout; its message has a line per kind
        of fault.
    """
    root = resolve_path(options.path)
    if not root.is_dir():
        raise ConfigError(
            f"path: no folder {options.path}; correct the path or put the images there"
        )
    parts = {name for name in ("train", "test") if (root / name).is_dir()}
    if len(parts) == 1:
        missing = ({"train", "test"} - parts).pop()
        raise ConfigError(
            f"path: {options.path} has {parts.pop()}/ but no {missing}/; add {missing}/, or put "
            f"the class folders directly under {options.path}"
        )
    places = {name: root / name for name in ("train", "test")} if parts else {"train": root}
    others: list[str] = []
    files = {
        name: _list_classes(root, place, options.exclude, others) for name, place in places.items()
    }
    faults = [*_others_fault(options, others), *_class_faults(options, files)]
    if faults:
        raise ConfigError("\n".join(faults))
    for name in options.exclude:
        if not any((place / name).is_dir() for place in places.values()):
            raise ConfigError(
                f"exclude: {options.path} has no class folder {name}; remove {name} from `exclude`"
            )
    if parts:
        unknown = sorted(files["test"].keys() - files["train"].keys())
        if unknown:
            raise ConfigError(
                f"path: {options.path}: classes in test/ but not in train/: "
                f"{', '.join(unknown)}; add training images of these classes or remove their "
                "test images"
            )
    if len(files["train"]) < 2:
        only = "".join(files["train"])
        hint = (
            f", or write `path: {options.path}/{only}` if it contains the class folders"
            if only
            else ""
        )
        raise ConfigError(
            f"path: {options.path} has fewer than two class folders ({only or 'none'}); add the "
            f"other class folders{hint}"
        )
    return Listing(files, tuple(sorted(files["train"])))


def _others_fault(options: Options, others: Sequence[str]) -> Iterator[str]:
    if others:
        more = f" and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
        one = len(others) == 1
        yield (
            f"path: {options.path}: {len(others)} "
            f"{'file is not an image' if one else 'files are not images'}: "
            f"{', '.join(sorted(others)[:SHOWN])}{more}; move {'it' if one else 'them'} elsewhere "
            f"(images end in {', '.join(sorted(EXTENSIONS))}, or are DICOM under any name)"
        )


def _class_faults(options: Options, files: dict[str, dict[str, list[str]]]) -> Iterator[str]:
    """Yields faults of classes without images, and of folder names that look alike."""
    for name, classes in files.items():
        place = f"{options.path}/{name}" if len(files) > 1 else options.path
        for folder, images in classes.items():
            if not images:
                yield (
                    f"path: {place}/{folder} contains no image; add images, remove the folder, or "
                    "name it in `exclude`"
                )
    for names in find_alike(sorted({folder for classes in files.values() for folder in classes})):
        yield (
            f"path: {options.path}: the class folders {in_words(names)} differ only in case or "
            "spaces, and would be separate classes; merge them, or rename one"
        )


def _list_classes(
    root: Path, folder: Path, exclude: Sequence[str], others: list[str]
) -> dict[str, list[str]]:
    """Lists the files of each class; adds files that are no images to `others`."""
    classes: dict[str, list[str]] = {}
    for entry in sorted(path.name for path in folder.iterdir()):
        if entry.startswith(".") or entry in exclude or entry.lower() in BYSTANDERS:
            continue
        if (folder / entry).is_dir():
            classes[entry] = _list_files(root, folder / entry, others)
        else:
            place = (folder / entry).relative_to(root).as_posix()
            others.append(f"{place} (beside the class folders)")
    return classes


def _list_files(root: Path, folder: Path, others: list[str]) -> list[str]:
    files: list[str] = []
    for current, entries in _walk_folder(folder):
        place = current.relative_to(root).as_posix()
        for entry in entries:
            listed = files if is_image_file(entry.path) else others
            listed.append(f"{place}/{entry.name}")
    return sorted(files)


def _walk_folder(folder: Path) -> Iterator[tuple[Path, list[os.DirEntry[str]]]]:
    """Yields a folder and all below it, each with its files.

    Ignores names that begin with a dot, and the files that Windows puts beside images.

    Raises:
      ConfigError: for a folder that cannot be listed.
    """
    pending = [folder]
    while pending:
        current = pending.pop()
        files = []
        try:
            with os.scandir(current) as entries:
                for entry in entries:
                    if entry.name.startswith(".") or entry.name.lower() in BYSTANDERS:
                        continue
                    if entry.is_dir():
                        pending.append(current / entry.name)
                    else:
                        files.append(entry)
        except OSError as error:
            raise ConfigError(
                f"path: {current} cannot be listed ({error.strerror}); correct its permissions, "
                "or remove the link to it"
            ) from error
        yield current, files


def _split_rows(options: Options, listing: Listing) -> dict[str, list[tuple[str, int]]]:
    """Returns the rows of both tables: file and class number."""
    rows = {
        name: [
            (file, label)
            for label, folder in enumerate(listing.class_names)
            for file in classes.get(folder, ())
        ]
        for name, classes in listing.files.items()
    }
    if "test" not in rows:
        tested = options.choose_test(*zip(*rows["train"], strict=True))
        pairs = [*zip(rows["train"], tested, strict=True)]
        for name, chosen in (("train", False), ("test", True)):
            rows[name] = [row for row, test in pairs if test == chosen]
    return rows


def prepare(options: Options, directory: Path, *, recorded: DatasetOptions | None = None) -> None:
    """Writes the split tables of a folder of images.

    Args:
      recorded: the options for dataset.json, if another source made `options` from them.

    Raises:
      ConfigError: if the folder has another layout.
      DataError: for faulty images, all in one message.
    """
    from dpprobe.data import table  # heavy: numpy and pyarrow

    listing = list_images(options)
    root = resolve_path(options.path)
    rows = _split_rows(options, listing)
    if "test" in listing.files:
        unused = sorted({path.name for path in root.iterdir()} - {"train", "test"})
        if unused:
            logger.warning("%s: not used: %s", options.path, ", ".join(unused))
    table.write_dataset(
        directory,
        table.batch_files({name: (root, part) for name, part in rows.items()}),
        options=recorded or options,
        class_names=listing.class_names,
        rows=sum(len(part) for part in rows.values()),
        embed=options.embed,
        chosen_test="test" in listing.files,
    )
