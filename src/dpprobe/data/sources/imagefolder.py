"""Images in folders, one folder per class.

The layout is `train/<class>/...` and `test/<class>/...`, or only `<class>/...`, which dpprobe
splits. Folders with other usual names of train and test, such as `training`, are never read as
classes (`folder_parts`). Class names are the sorted folder names; they are published with the
weights.

A row's id is the image's path in the folder, including the class. With `split_by: id`, moving an
image to another folder may move it from train to test, but moves no other image.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

from pydantic import Field

from dpprobe.counted_nouns import count_noun
from dpprobe.data.file_states import hash_file_states
from dpprobe.data.images.image_files import EXTENSIONS, is_helper, is_image_file, leads_back
from dpprobe.data.images.image_search import names_image
from dpprobe.data.options import ClassUnits, DatasetOptions, Embed
from dpprobe.data.people import class_units
from dpprobe.data.people.alike_names import find_alike, in_words, is_text
from dpprobe.data.people.companion_names import FEWEST_BASES, find_mask_folders, find_named_folders
from dpprobe.data.people.companion_options import CompanionOptions
from dpprobe.data.people.companions import (
    KEEP,
    FoundCompanions,
    Judgement,
    describe_alone,
    look_for_companions,
)
from dpprobe.data.sources import folder_parts
from dpprobe.data.train_test_split import SplitName, SplitOptions, SplitSeed, TestFraction
from dpprobe.errors import ConfigError
from dpprobe.options import resolve_path
from dpprobe.shown_text import join_lines

logger = logging.getLogger("dpprobe")

SHOWN = 20
NO_CLASS = "unlabelled"  # the class of all images of an unlabelled folder


class Options(CompanionOptions, SplitOptions):
    """Images in folders: `train/<class>/...` and `test/<class>/...`, or `<class>/...`."""

    paths: ClassVar = ("path",)

    source: Literal["imagefolder"] = "imagefolder"
    path: str = Field(min_length=1, description="Image folder, relative to the working directory.")
    exclude: tuple[str, ...] = Field((), description="Class folders to leave out.")
    unlabelled: bool = Field(
        False,
        exclude_if=lambda value: not value,
        description="Read all images below the folder, without classes. Only for a dataset under "
        "public_datasets.",
    )
    embed: Embed = False
    test_fraction: TestFraction = 0.2
    split_seed: SplitSeed = 0

    def check_files(self) -> None:
        list_images(self)
        hash_file_states(self.list_source_files())

    def input_files(self) -> tuple[str, ...]:
        """Returns every folder that is searched; `list_source_files` yields their files."""
        return tuple(sorted(str(folder) for folder, _ in self._walk_folders()))

    def list_source_files(self) -> Iterator[tuple[str, os.DirEntry[str]]]:
        root = resolve_path(self.path)
        for folder, entries in self._walk_folders():
            place = folder.relative_to(root)
            yield from (((place / entry.name).as_posix(), entry) for entry in entries)

    def has_test(self) -> bool:
        return bool(self.locate_parts())

    def has_labels(self) -> bool:
        return not self.unlabelled

    def locate_parts(self) -> dict[SplitName, Path]:
        """Returns the folders of the training and the test part; empty if all folders are classes.

        `test/test/` is the test folder if `test/` contains nothing else.
        """
        root = resolve_path(self.path)
        if self.unlabelled:
            return {}
        chosen = folder_parts.choose_parts(folder_parts.find_parts(list_folders(root)))
        return {split: _enter_folder(root / name) for split, name in chosen.items()}

    def list_warnings(self) -> list[str]:
        """Returns warnings: folders read as train or test, unused folders, likely previews."""
        root, parts = resolve_path(self.path), self.locate_parts()
        places = {split: part.relative_to(root) for split, part in parts.items()}
        read = [f"{at}/ is read as {split}/" for split, at in places.items() if str(at) != split]
        used = {place.parts[0] for place in places.values()}
        unused = [entry.name for entry in _scan_folder(root) if parts and entry.name not in used]
        lines = [", ".join(read)] if read else []
        if unused:
            more = f" and {len(unused) - SHOWN} more" if len(unused) > SHOWN else ""
            lines.append(f"not used: {', '.join(unused[:SHOWN])}{more}")
        for part in parts.values() or [root]:
            lines += _describe_leftovers(part, root)
        if self.left_out_words():
            lines += _describe_alone(self)
        return [f"{self.path}: {line}" for line in lines]

    def image_folders(self) -> tuple[str, ...]:
        return (self.path,)

    def count_rows(self) -> tuple[int, int]:
        rows = split_rows(self, list_images(self))
        return len(rows["train"]), len(rows["test"])

    def count_classes(self) -> int:
        return len(list_images(self).class_names)

    def count_class_units(self) -> ClassUnits:
        listing = list_images(self)

        def count_at(at: Options) -> class_units.Sides:
            rows = split_rows(at, listing)
            return Counter((name, label) for name, part in rows.items() for _, label in part)

        return class_units.count_classes(self, listing.class_names, count_at)

    def find_companions(self) -> FoundCompanions:
        rows = split_rows(self, list_images(self))
        return _find_companions(self, rows)

    def judge_companions(self) -> Judgement:
        listing = list_images(self)
        faults, warnings = _find_companions(self, split_rows(self, listing)).judge(self.companions)
        named = () if self.companions == KEEP else _describe_named_folders(self, listing)
        return (*_mask_folder_faults(self, listing), *faults), (*named, *warnings)

    def class_depth(self, split: str) -> int:
        """Counts the folders in an image's path up to and including its class."""
        root, parts = resolve_path(self.path), self.locate_parts()
        inside = [len(part.relative_to(root).parts) for at, part in parts.items() if at == split]
        return 1 + sum(inside)

    def _walk_folders(self) -> Iterator[tuple[Path, list[os.DirEntry[str]]]]:
        for part in self.locate_parts().values() or [resolve_path(self.path)]:
            left_out = {part / name for name in self.exclude}
            for folder, entries in walk_folder(part):
                if left_out.isdisjoint((folder, *folder.parents)):
                    yield folder, entries


class Listing(NamedTuple):
    """The images of a folder: split -> class name -> files relative to the folder, sorted."""

    files: dict[str, dict[str, list[str]]]
    class_names: tuple[str, ...]


def _find_companions(
    options: Options, rows: Mapping[str, Sequence[tuple[str, int]]]
) -> FoundCompanions:
    names = [name for part in rows.values() for name, _ in part]
    sides = [split for split, part in rows.items() for _ in part]
    depth = {split: options.class_depth(split) for split in rows}
    return look_for_companions(names, sides, outer=[depth[side] for side in sides])


def list_mask_folders(listing: Listing) -> dict[str, tuple[str, str]]:
    """Maps each class folder that seems to contain masks to a mask and its picture."""
    images = {
        name: [file for classes in listing.files.values() for file in classes.get(name, ())]
        for name in listing.class_names
    }
    return find_mask_folders(images)


def _mask_folder_faults(options: Options, listing: Listing) -> Iterator[str]:
    if options.companions == KEEP:
        return
    for name, (image, picture) in list_mask_folders(listing).items():
        exclude = json.dumps([*options.exclude, name], ensure_ascii=False)
        yield (
            f"companions: the folder {name} is read as a class, but seems to have masks or "
            f"previews, such as {image} of {picture}; write `exclude: {exclude}` to leave it out, "
            "or `companions: keep` if it is a class"
        )


def _describe_named_folders(options: Options, listing: Listing) -> Iterator[str]:
    """Warns of class folders named like masks, if their images' names match no other image.

    They may be real classes, such as `mask`, `hat` and `scarf`.
    """
    refused = list_mask_folders(listing)
    names = [f"{name}/{n}" for name in listing.class_names for n in range(FEWEST_BASES)]
    for positions in find_named_folders(names).values():
        for name in {names[position].partition("/")[0]: None for position in positions}:
            if name not in refused:
                exclude = json.dumps([*options.exclude, name], ensure_ascii=False)
                yield (
                    f"companions: the folder {name} is read as a class, but is named like masks or "
                    f"previews; write `exclude: {exclude}` to leave it out, or `companions: keep` "
                    "if it is a class"
                )


def _describe_alone(options: Options) -> Iterator[str]:
    """Warns of images that `companions` leaves out although they seem to be no companions."""
    listed = list_images(options.model_copy(update={"companions": None}))
    names, left_out, depths = list[str](), list[bool](), list[int]()
    for split, classes in listed.files.items():
        inside = [*chain(*classes.values())]
        depth = options.class_depth(split)
        names += inside
        left_out += options.leave_out(inside, outer=depth)
        depths += [depth] * len(inside)
    if line := describe_alone(names, left_out, outer=depths):
        yield line


def list_images(options: Options) -> Listing:
    """Lists the images of a folder by split and class, without opening an image.

    Without `train/` and `test/` all files are listed under "train". Raises ConfigError, with one
    line per kind of fault, if the folder is missing or has another layout.
    """
    root = resolve_path(options.path)
    if not root.is_dir():
        raise ConfigError(
            f"path: no folder {options.path}; correct the path or put the images there"
        )
    if options.unlabelled:
        return _list_unlabelled(options, root)
    parts = options.locate_parts()
    if not parts:
        _check_names(options, list_folders(root))
    places = parts or {"train": root}
    others: list[str] = []
    files: dict[str, dict[str, list[str]]] = {
        name: _list_classes(root, place, options.exclude, others) for name, place in places.items()
    }
    if options.left_out_words():
        files = {split: _leave_out(options, split, classes) for split, classes in files.items()}
    faults = [
        *_others_fault(options, others),
        *_class_faults(options, places, files),
    ]
    if faults:
        raise ConfigError(join_lines(faults))
    for name in options.exclude:
        if not any((place / name).is_dir() for place in places.values()):
            raise ConfigError(
                f"exclude: {options.path} has no class folder {name}; remove {name} from `exclude`"
            )
    if unknown := sorted(files.get("test", {}).keys() - files["train"].keys()):
        raise ConfigError(
            f"path: {options.path}: classes in {parts['test'].name}/ but not in "
            f"{parts['train'].name}/: {', '.join(unknown)}; add training images of these classes "
            "or remove their test images"
        )
    if len(files["train"]) < 2:
        only, place = (
            "".join(files["train"]),
            Path(options.path) / places["train"].relative_to(root),
        )
        remedy = f"write `path: {place}/{only}` if it contains the class folders or parts"
        if parts:  # `path` contains both parts
            remedy = f"move the folders in {only}/ up, in both parts, if they are the classes"
        raise ConfigError(
            f"path: {place} has fewer than two class folders ({only or 'none'}); add the other "
            f"class folders{f', or {remedy}' if only else ''}"
        )
    return Listing(files, tuple(sorted(files["train"])))


def _list_unlabelled(options: Options, root: Path) -> Listing:
    """Lists all images below a folder as one class; raises ConfigError for fewer than two."""
    found = [
        (folder / entry.name).relative_to(root).as_posix()
        for folder, entries in walk_folder(root)
        for entry in entries
        if is_image_file(entry.path)
    ]
    files = {"train": {NO_CLASS: sorted(found)}}
    if options.left_out_words():
        files = {"train": _leave_out(options, "train", files["train"])}
    if len(files["train"][NO_CLASS]) < 2:
        raise ConfigError(
            f"path: {options.path} contains {count_noun(len(found), 'image')}; add public images, "
            "or correct the path"
        )
    return Listing(files, (NO_CLASS,))


def _leave_out(
    options: Options, split: str, classes: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """Drops the images that `companions` leaves out, from each class."""
    outer = options.class_depth(split)
    return {
        name: [
            file
            for file, out in zip(files, options.leave_out(files, outer=outer), strict=True)
            if not out
        ]
        for name, files in classes.items()
    }


def _check_names(options: Options, names: Sequence[str]) -> None:
    """Raises ConfigError if folders read as classes have names such as `train`."""
    parts = folder_parts.find_parts(name for name in names if name not in options.exclude)
    if not parts:
        return
    first, *further = parts
    exclude = f"`exclude: {json.dumps([*options.exclude, first])}`"
    classes = [name for name in names if name not in parts and name not in options.exclude]
    missing = "test" if parts[first] == "train" else "train"
    if further:
        fault = (
            f"{options.path}: the folders {in_words(parts)} have names of parts; keep one for "
            "training and one for testing"
        )
    elif classes:
        fault = (
            f"{options.path}: {first}/ has the name of a part, but is next to {classes[0]}/. If "
            f"it is a class, rename the folder, such as to {first}_class; otherwise put the "
            f"classes into {first}/ and {missing}/, or write {exclude}"
        )
    else:
        inside = folder_parts.find_parts(list_folders(resolve_path(options.path) / first))
        fault = f"{options.path} has {first}/ but no {missing}/; add {missing}/, or " + (
            f"write `path: {options.path}/{first}`"
            if folder_parts.choose_parts(inside)
            else f"put the class folders directly under {options.path}"
        )
    raise ConfigError(f"path: {fault}")


def _others_fault(options: Options, others: Sequence[str]) -> Iterator[str]:
    if others:
        more = f" and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
        one = len(others) == 1
        yield (
            f"path: {options.path}: {len(others)} "
            f"{'file is not an image' if one else 'files are not images'} in a class folder: "
            f"{', '.join(sorted(others)[:SHOWN])}{more}; move images into the folder of their "
            f"class, and others elsewhere (images end in {', '.join(sorted(EXTENSIONS))}, or are "
            "DICOM under any name)"
        )


def _class_faults(
    options: Options, places: Mapping[SplitName, Path], files: dict[str, dict[str, list[str]]]
) -> Iterator[str]:
    """Yields errors about classes without images, and folders that seem to be no classes."""
    root = resolve_path(options.path)
    for split, place in places.items():
        inside = place.relative_to(root)
        where, depth = Path(options.path) / inside, len(inside.parts) + 1
        parts = folder_parts.find_parts(files[split])
        # class -> its inner folders; empty if an image is directly in the class's folder
        folders: dict[str, set[str]] = {}
        for name, images in files[split].items():
            if not images:
                yield (
                    f"path: {where / name} contains no image; add images, remove the folder, or "
                    f"write `exclude: {json.dumps([*options.exclude, name], ensure_ascii=False)}`"
                )
            if name in parts and not (
                len(files[split]) > 1 and all(name in f for f in files.values())
            ):
                yield (
                    f"path: {where / name} has the name of a part inside {place.name}; move the "
                    "class folders up, or rename it if it is a class"
                )
            direct = any(image.count("/") == depth for image in images)
            folders[name] = set() if direct else {image.split("/")[depth] for image in images}
            if len(files[split]) > 1 and folder_parts.find_parts(folders[name]):
                yield (
                    f"path: {where / name} contains {in_words(sorted(folders[name]))}; put the "
                    "class folders into folders of these names, not the other way round"
                )
                return
        most = max(folders.values(), key=len, default=set())
        several = sum(len(each) > 1 for each in folders.values()) > 1
        if len(places) == 1 and several and all(each and each <= most for each in folders.values()):
            yield (
                f"path: all folders in {where} ({in_words([*folders][:SHOWN])}) contain the "
                f"folders {in_words(sorted(most)[:SHOWN])}, so the inner folders seem to be the "
                "classes. If the outer folders are parts, name them train and test; if they are "
                "the classes, put the images directly into them, or list the images in a CSV (if "
                "the inner folders are patients, with a column of patients)"
            )
    for names in find_alike(sorted({folder for classes in files.values() for folder in classes})):
        yield (
            f"path: {options.path}: the class folders {in_words(names)} are spellings of one name, "
            "but would be separate classes; merge them, or rename one"
        )


def _list_classes(
    root: Path, folder: Path, exclude: Sequence[str], others: list[str]
) -> dict[str, list[str]]:
    """Lists the images of each class; appends other files to `others`."""
    classes: dict[str, list[str]] = {}
    for entry in _scan_folder(folder):
        if entry.name in exclude:
            continue
        if not entry.is_dir():
            place = (folder / entry.name).relative_to(root).as_posix()
            others.append(f"{place} (next to the class folders)")
            continue
        images: list[str] = []
        for current, entries in walk_folder(folder / entry.name):
            place = current.relative_to(root).as_posix()
            for file in entries:
                listed = images if is_image_file(file.path) else others
                listed.append(f"{place}/{file.name}")
        classes[entry.name] = sorted(images)
    return classes


def walk_folder(folder: Path) -> Iterator[tuple[Path, list[os.DirEntry[str]]]]:
    """Yields a folder and all folders below, each with its files; refuses endless links."""
    pending = [folder]
    while pending:
        current = pending.pop()
        entries = _scan_folder(current)
        inner = [current / entry.name for entry in entries if entry.is_dir()]
        if back := next(filter(leads_back, inner), None):
            raise ConfigError(f"path: {back} links to a folder that contains it; remove the link")
        pending += inner
        yield current, [entry for entry in entries if not entry.is_dir()]


def _describe_leftovers(part: Path, root: Path) -> Iterator[str]:
    """Describes images among files that systems add, and folders with the same names as parents.

    These folders may contain previews, which could be in another split than their images.
    """
    left_out, repeats = Counter[str](), list[str]()
    stems: dict[Path, set[str]] = {}  # folder -> names of its images, without extension
    for name, folders, files in os.walk(part, followlinks=True):
        place = Path(name)
        for helper in filter(is_helper, folders):
            inside = chain(*(each for *_, each in os.walk(place / helper)))
            left_out[helper] += sum(map(names_image, inside))
        left_out.update(file for file in filter(is_helper, files) if names_image(file))
        folders[:] = [x for x in folders if not is_helper(x) and not leads_back(place / x)]
        stems[place] = {Path(x).stem for x in files if names_image(x) and not is_helper(x)}
        inner = stems[place] | {Path(folder).stem for folder in folders}
        outer = [each for each in place.parents if each in stems and each != part]
        same = inner.intersection(chain(*map(stems.__getitem__, outer)))
        if outer and (place.name == place.parent.name or 2 * len(same) > len(inner)):
            told = f"{place.relative_to(root)}/ repeats names of its parent folder, such as "
            repeats.append(f"{told}{min(same, default=place.name)}")
    if repeats:
        more = f" (and {len(repeats) - 1} more folders)" if len(repeats) > 1 else ""
        yield f"{min(repeats)}{more}; if it has copies or previews, move it elsewhere"
    if total := left_out.total():
        several = f" and {len(left_out) - SHOWN} more" if len(left_out) > SHOWN else ""
        yield (
            f"{count_noun(total, 'image')} left out, in files and folders that operating systems "
            f"add: {', '.join(sorted(+left_out)[:SHOWN])}{several}"
        )


def _scan_folder(folder: Path) -> list[os.DirEntry[str]]:
    """Lists the entries of a folder by name, without those that systems add (`is_helper`).

    Raises ConfigError for a folder that cannot be listed, or a name that is not UTF-8.
    """
    try:
        with os.scandir(folder) as entries:
            kept = [entry for entry in entries if not is_helper(entry.name)]
        for entry in kept:
            entry.is_dir()  # raises for a link that leads to itself
    except OSError as error:
        raise ConfigError(
            f"path: {error.filename or folder} cannot be listed ({error.strerror}); correct its "
            "permissions, or remove the link to it"
        ) from error
    if other := next((entry.name for entry in kept if not is_text(entry.name)), None):
        raise ConfigError(
            f"path: {folder}: the name {os.fsencode(other)!r} is not UTF-8; rename it, such as by "
            f"`convmv -r -f latin1 -t utf8 --notest {shlex.quote(str(folder))}`"
        )
    return sorted(kept, key=lambda entry: entry.name)


def list_folders(folder: Path) -> list[str]:
    """Lists the folders directly in a folder; empty if the folder does not exist."""
    if not folder.is_dir():
        return []
    return [entry.name for entry in _scan_folder(folder) if entry.is_dir()]


def _enter_folder(folder: Path) -> Path:
    """Returns `test/test` if `test` contains only a folder `test`, as in some archives."""
    entries = _scan_folder(folder)
    if len(entries) == 1 and entries[0].name == folder.name and entries[0].is_dir():
        return _enter_folder(folder / folder.name)
    return folder


def split_rows(options: Options, listing: Listing) -> dict[str, list[tuple[str, int]]]:
    """Returns (file, class number) for each row of both tables."""
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
    """Writes the images' split tables; dataset.json gets `recorded`, by default `options`.

    Raises ConfigError if the folder has another layout. Raises one DataError for all faulty images.
    """
    from dpprobe.data import table_writer  # slow import: numpy and pyarrow

    listing = list_images(options)
    root = resolve_path(options.path)
    rows = split_rows(options, listing)
    faults, warnings = options.judge_companions()
    if faults:
        raise ConfigError(join_lines(faults))
    for line in (*options.list_warnings(), *warnings):
        logger.warning("%s", line)
    table_writer.write_dataset(
        directory,
        table_writer.batch_files({name: (root, part) for name, part in rows.items()}),
        options=recorded or options,
        class_names=listing.class_names,
        rows=sum(len(part) for part in rows.values()),
        embed=options.embed,
        chosen_test="test" in listing.files,
    )
