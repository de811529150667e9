"""Drafts a manifest for class folders that contain one folder per patient: `<class>/<patient>/`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from dpprobe.data.sources import csv_manifest, imagefolder
from dpprobe.draft.seen_dataset import PUBLIC_NAMES, Line, Seen, count_classes, make_options
from dpprobe.options import resolve_path

# Fewer folders, or a folder with more of the images, are rather sites, devices or years.
_FEWEST_FOLDERS, _LARGEST_SHARE = 10, 0.2
_NUMBERED = re.compile(r"(.*?)[0-9]+", re.DOTALL)


def find_patient_folder(
    options: imagefolder.Options, listing: imagefolder.Listing, left_out: Collection[str]
) -> str | None:
    """Returns `<class>/<patient>` of the first image; None unless such folders may be patients.

    Classes in `left_out` do not count.
    """
    depths = {options.class_depth(split) for split in listing.files}
    names = [
        name.split("/")
        for classes in listing.files.values()
        for folder, images in classes.items()
        if folder not in left_out
        for name in images
    ]
    depth = depths.pop()
    if depths or not names or any(len(each) < depth + 2 for each in names):
        return None
    folders = Counter(each[depth] for each in names)
    if len(folders) < _FEWEST_FOLDERS or max(folders.values()) > _LARGEST_SHARE * len(names):
        return None
    return "/".join(names[0][depth - 1 : depth + 1])


def look_at_patients(
    place: str, options: imagefolder.Options, listing: imagefolder.Listing, *, example: str
) -> Seen:
    """Drafts a manifest of the images, with folders such as `example` as patients.

    All images of a folder are then one unit of privacy, also if the folder is of something else.
    """
    depth = options.class_depth("train")
    keys = _draft_keys(place, options, listing.class_names, depth)
    manifest = make_options(place, keys)
    assert isinstance(manifest, csv_manifest.Options)
    note = (
        f"every image is in a folder within its class, such as {example}/, so the study takes "
        "these folders for patients and protects all images of a folder together; if they are not "
        "patients, remove `unit_column`, and each image is a unit of its own"
    )
    return count_classes(manifest, place, keys, [note])


def _draft_keys(
    place: str, options: imagefolder.Options, classes: Iterable[str], depth: int
) -> dict[str, Line]:
    root, parts = resolve_path(place), options.locate_parts()
    files = {split: part.relative_to(root).as_posix() for split, part in parts.items()}
    before = "[^/]+/" * (depth - 1)
    extract: dict[str, object] = {
        "class": {"column": "path", "pattern": f"^{before}([^/]+)/"},
        "patient": {"column": "path", "pattern": f"^{before}[^/]+/([^/]+)/"},
    }
    keys = {
        "source": Line(value="csv"),
        "root": Line(value=place),
        "train": Line(
            value=files.get("train", "."),
            comment="A folder, read like a table with one row per image and the column `path`.",
        ),
    }
    if "test" in files:
        keys["test"] = Line(value=files["test"])
    return keys | {
        "extract": Line(value=extract, comment="The images are in <class>/<patient>/."),
        "label_column": Line(value="class"),
        "class_names": Line(value=list(classes), comment=PUBLIC_NAMES),
        "unit_column": Line(
            value="patient", comment="All images of a patient are protected together."
        ),
    }


def numbered_notes(counts: Mapping[str, int]) -> list[str]:
    """Returns a warning if the names of classes look like the names of patients."""
    matches = [_NUMBERED.fullmatch(name) for name in counts]
    stems = {match[1] if match else None for match in matches}
    if len(counts) < _FEWEST_FOLDERS or len(stems) > 1 or not next(iter(stems)):
        return []
    first = next(iter(counts))
    return [
        f"the classes are numbered, such as {first}: if each folder is a patient and not a class, "
        "do not run this study, which would publish their names; list the images in a CSV with "
        "columns of labels and patients, and run init on that CSV"
    ]
