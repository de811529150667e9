"""Finds conflicts among the folders that a study writes, and with the folders that it reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dpprobe.options import real_path, resolve_path
from dpprobe.study.reserved_names import COMPARISONS, DOWNLOADS, RELEASES, WRITTEN
from dpprobe.study.study import Study

LONGEST_NAME = 255  # bytes
USUAL = "results"  # the default study's results_dir, and the folder of most other studies


def folder_faults(study: Study) -> list[str]:
    """Lists errors for folders inside each other, or with files that would be read as images."""
    checks = (_not_made, _each_other, _among_others, _among_images)
    return [fault for check in checks for fault in check(study)]


def _not_made(study: Study) -> Iterator[str]:
    """Yields errors for folders that cannot be created: inside a file, or with too long a name."""
    for key, written in (("results_dir", study.results_dir), ("data_dir", study.data_dir)):
        places = [(folder := _resolve_folder(written)), *folder.parents]
        if any(len(part.encode()) > LONGEST_NAME for part in folder.parts):
            yield f"{key}: {written[:60]}...: this name is too long; choose a shorter one"
        elif not (near := next(filter(Path.exists, places))).is_dir():
            yield f"{key}: {written}: {near} is not a folder; choose another folder"


def _each_other(study: Study) -> Iterator[str]:
    data, results = _resolve_folder(study.data_dir), _resolve_folder(study.results_dir)
    if data == results:
        yield (
            f"results_dir: {study.results_dir}: it is also the data_dir; choose two folders, such "
            "as data and results"
        )
        return
    for name in (*study.all_datasets(), DOWNLOADS):
        tables = data / name
        if results.is_relative_to(tables):
            what = "downloads go" if name == DOWNLOADS else f"the split tables of {name} go"
            yield (
                f"results_dir: {study.results_dir}: in {Path(study.data_dir) / name}, where "
                f"{what}; choose another folder"
            )


def _among_others(study: Study) -> Iterator[str]:
    """Yields an error for a results_dir that is among a study's own files in `results`."""
    results, usual = _resolve_folder(study.results_dir), _resolve_folder(USUAL)
    inner = results.relative_to(usual).parts if results.is_relative_to(usual) else ()
    taken = next((name for name in inner if name in WRITTEN | {RELEASES, COMPARISONS}), None)
    if taken:
        yield (
            f"results_dir: {study.results_dir}: {taken} is a name that the default study writes "
            f"in {USUAL}; choose another, such as {USUAL}/{taken}_study, and move existing files "
            "there"
        )


def _among_images(study: Study) -> Iterator[str]:
    """Yields errors for folders whose files the next run would read as images."""
    written = {"results_dir": (study.results_dir, [_resolve_folder(study.results_dir)])}
    tables = [_resolve_folder(study.data_dir) / name for name in (*study.all_datasets(), DOWNLOADS)]
    written["data_dir"] = (study.data_dir, tables)
    for name, dataset in study.all_datasets().items():
        for folder in dataset.image_folders():
            for key, (folder_written, places) in written.items():
                if any(place.is_relative_to(_resolve_folder(folder)) for place in places):
                    yield (
                        f"{key}: {folder_written}: files written there would lie in {folder}, "
                        f"where dataset {name} looks for images, and would be read as images; "
                        "choose a folder next to it"
                    )


def _resolve_folder(folder: str) -> Path:
    return real_path(resolve_path(folder))
