"""Inspects a folder of images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from dpprobe.counted_nouns import count_noun
from dpprobe.data.images import tar_shards
from dpprobe.data.images.image_files import EXTENSIONS, is_helper, is_image_file
from dpprobe.data.sources import csv_files, imagefolder
from dpprobe.data.sources.folder_parts import find_parts
from dpprobe.data.sources.parquet_columns import PARQUET
from dpprobe.draft.patient_folders import find_patient_folder, look_at_patients, numbered_notes
from dpprobe.draft.seen_dataset import (
    PUBLIC_NAMES,
    Line,
    Seen,
    check_counts,
    draft_companions,
    rare_notes,
)
from dpprobe.errors import ConfigError
from dpprobe.options import resolve_path

TABLES = (*csv_files.SUFFIXES, *PARQUET)
WRITE_SHARDS = (
    "init reads no tar files: for shards write the study by hand with `source: webdataset` "
    "(docs/your-own-data.md), or unpack the tar files"
)
_NO_PATIENTS = (
    "the folder names no patients, so the unit of privacy is one image; if people have several "
    "images, sort them as <class>/<patient>/, or list them in a CSV with a column of patients, and "
    "run init again"
)
_UNPROTECTED = (
    "the unit of privacy is one image, because the study leaves out folders; if folders such as "
    "{example}/ are patients, move the left out folders elsewhere, and run init again"
)


def look_at_folder(place: str) -> Seen:
    """Looks at the classes of a folder; opens no image.

    Raises ConfigError if no study could read the folder's layout.
    """
    root = resolve_path(place)
    options = imagefolder.Options(path=place)
    try:
        _check_layout(root, place)
        listing = imagefolder.list_images(options)
    except ConfigError as error:
        raise ConfigError(str(error).removeprefix("path: ")) from None
    comment = (
        f"The images are in {' and '.join(_list_parts(options)) or '<class>/'}. {PUBLIC_NAMES}"
    )
    keys = {
        "source": Line(value="imagefolder"),
        "path": Line(value=place, comment=comment),
    }
    excluded = _draft_exclude(options, listing, [])
    keys |= excluded
    left_out = cast("list[str]", excluded["exclude"].value) if excluded else []
    example = find_patient_folder(options, listing, left_out)
    if example and not excluded:
        return look_at_patients(place, options, listing, example=example)
    drafted, told = draft_companions(place, keys)
    if drafted:
        words = cast("list[str]", drafted["companions"].value)
        # A folder with only companions would be a class without images.
        keys |= drafted | _draft_exclude(options, listing, words)
    options = imagefolder.Options(**{key: line.value for key, line in keys.items()})
    listing = imagefolder.list_images(options)
    counts: Counter[str] = Counter(dict.fromkeys(listing.class_names, 0))
    for classes in listing.files.values():
        counts.update({name: len(files) for name, files in classes.items()})
    check_counts(counts, place)
    return Seen(
        place=place,
        keys=keys,
        counts=dict(counts),
        images=counts.total(),
        notes=(
            _UNPROTECTED.format(example=example) if example else _NO_PATIENTS,
            *told,
            *_describe_exclude(keys),
            *options.list_warnings(),
            *rare_notes(counts),
            *numbered_notes(counts),
        ),
    )


def _draft_exclude(
    options: imagefolder.Options, listing: imagefolder.Listing, words: Sequence[str]
) -> dict[str, Line]:
    """Drafts the option to skip folders of masks, and folders with only companions."""
    chosen = options.model_copy(update={"companions": tuple(words)})
    left_out = [*imagefolder.list_mask_folders(listing)]
    for name in listing.class_names:
        flags = [
            out
            for split, classes in listing.files.items()
            for out in chosen.leave_out(classes.get(name, []), outer=options.class_depth(split))
        ]
        if flags and all(flags) and name not in left_out:
            left_out.append(name)
    if not left_out:
        return {}
    comment = "Folders of masks, previews or copies of other images, which are no classes."
    return {"exclude": Line(value=sorted(left_out), comment=comment)}


def _describe_exclude(keys: Mapping[str, Line]) -> list[str]:
    if "exclude" not in keys:
        return []
    names = ", ".join(f"{name}/" for name in cast("list[str]", keys["exclude"].value))
    return [
        f"{names}: masks, previews or copies of images of other folders, so the study leaves them "
        "out by `exclude`; if they are classes, remove the key and write `companions: keep`"
    ]


def _list_parts(options: imagefolder.Options) -> list[str]:
    root = resolve_path(options.path)
    return [f"{part.relative_to(root)}/<class>/" for part in options.locate_parts().values()]


def _check_layout(root: Path, place: str) -> None:
    entries = [entry for entry in sorted(root.iterdir()) if not is_helper(entry.name)]
    folders = [entry for entry in entries if entry.is_dir()]
    tables = [entry for entry in entries if entry.name.lower().endswith(TABLES)]
    images = [entry for entry in entries if entry.is_file() and is_image_file(entry)]
    if tables:
        raise ConfigError(
            f"{place}: it contains {tables[0].name}; if this table lists the images, run `dpprobe "
            f"init {Path(place) / tables[0].name}`; otherwise move it elsewhere"
        )
    if images and folders:
        raise ConfigError(
            f"{place}: {count_noun(len(images), 'image')} next to the class folders, such as "
            f"{images[0].name}; move each image into the folder of its class"
        )
    if images:
        raise ConfigError(
            f"{place}: {count_noun(len(images), 'image')} but no class folder; put each image into "
            "a folder named after its class, or list the images in a CSV with a column of labels "
            "and name the CSV"
        )
    if next(_find_files(root, is_image_file), None) is None:
        if tar := next(_find_files(root, tar_shards.is_tar), None):
            raise ConfigError(f"{place}: no image, but {tar.relative_to(root)}; {WRITE_SHARDS}")
        kinds = ", ".join(sorted(EXTENSIONS))
        raise ConfigError(
            f"{place}: no image ({kinds}); name a folder that has one folder per class"
        )
    if len(folders) == 1 and not find_parts([folders[0].name]):
        inner = imagefolder.list_folders(folders[0])
        if len(inner) > 1:
            deeper = Path(place) / folders[0].name
            raise ConfigError(
                f"{place}: only one folder, {folders[0].name}, which contains {len(inner)} "
                f"folders; if these are the classes or splits, run `dpprobe init {deeper}`"
            )


def _find_files(folder: Path, kind: Callable[[Path], bool]) -> Iterator[Path]:
    for _, entries in imagefolder.walk_folder(folder):
        yield from (path for entry in entries if kind(path := Path(entry.path)))
