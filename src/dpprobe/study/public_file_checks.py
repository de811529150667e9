"""Refuses "public" files that are inside the folders of a study's private data.

In results_dir, only features of public datasets, and text embeddings of class names, are public.
All other files in results_dir, and the data of private datasets, are refused. Paths are compared
as written, and with links followed. The training job detects private copies in other folders.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from dpprobe.data.option_paths import is_wildcard
from dpprobe.errors import ConfigError
from dpprobe.options import resolve_path
from dpprobe.study.study import Study

TEXT_FILE = "text.safetensors"


class PublicFiles:
    """Checks a study's public files; looks up the private folders once."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self._results_folder = Path(study.results_dir)

    def check_method(self, method: str) -> None:
        """Checks a method's public files for every dataset and backbone of the study.

        Raises:
          ConfigError: if a path has an unknown name in braces, is inside private data, or names
            text embeddings by a backbone that reads no text.
        """
        study, options = self._study, self._study.methods[method]
        if not options.public_files():
            return
        written = {
            named
            for dataset in study.datasets
            for backbone in study.backbones
            for named in options.fill_paths(dataset=dataset, backbone=backbone)
            .public_files()
            .items()
        }
        for option, path in sorted(written):
            backbone = self._silent_texts.get(Path(path))
            if backbone is not None and option.endswith("public_head"):
                raise ConfigError(
                    f"{option}: backbone {backbone} reads no text; use a backbone of family "
                    "open_clip, or a file"
                )
            if place := self._describe_place(path):
                raise ConfigError(
                    f"{option}: {path}: it is in {place}, so it may hold private data; name "
                    "a file in another folder, or features of a dataset under public_datasets"
                )

    def check_weights(self, path: str) -> None:
        """Raises ConfigError if a backbone's weights are inside private data, or a name pattern."""
        if is_wildcard(path):
            raise ConfigError(
                f"checkpoint: {path}: Snakemake would replace the part in brackets; rename the "
                "file or its folder"
            )
        if place := self._describe_place(path):
            raise ConfigError(
                f"checkpoint: {path}: it is in {place}, so it may hold private data; name "
                "public weights in another folder"
            )

    def _describe_place(self, path: str) -> str | None:
        """Describes the private folder that contains a path; None if there is none."""
        for view in _path_views(resolve_path(path)):
            public = any(view.is_relative_to(folder) for folder in self._public_folders)
            if public or view in self._text_embeddings:
                continue
            for folder, words in self._private_folders:
                if view.is_relative_to(folder):
                    return words
        return None

    @cached_property
    def _private_folders(self) -> list[tuple[Path, str]]:
        study, results, data = self._study, self._results_folder, Path(self._study.data_dir)
        folders = {results: "the results of this study"}
        for name in study.datasets:
            features = results / "features" / name
            of_one = [features, *(features / backbone for backbone in study.backbones)]
            of_one += [results / "cells" / name, data / name, data / "downloads" / name]
            folders |= dict.fromkeys(of_one, f"the folders of the private dataset {name}")
        return [(view, words) for path, words in folders.items() for view in _path_views(path)]

    @cached_property
    def _public_folders(self) -> set[Path]:
        """The folders of public features; a folder that is a link is not followed."""
        return {
            view / "features" / name
            for view in _path_views(self._results_folder)
            for name in self._study.public_datasets
        }

    @cached_property
    def _silent_texts(self) -> dict[Path, str]:
        """Maps text embedding files that no job writes to their backbones, which read no text."""
        features = self._results_folder / "features"
        return {
            features / dataset / name / TEXT_FILE: name
            for name, backbone in self._study.backbones.items()
            if not backbone.reads_text
            for dataset in self._study.datasets
        }

    @cached_property
    def _text_embeddings(self) -> set[Path]:
        """The files of text embeddings; a file that is a link is not followed."""
        return {
            view / TEXT_FILE
            for name in self._study.all_datasets()
            for backbone in self._study.backbones
            for view in _path_views(self._results_folder / "features" / name / backbone)
        }


def _path_views(path: Path) -> set[Path]:
    """Returns a path as written, and with links followed, both without `..`."""
    views = {Path(os.path.abspath(path))}  # noqa: PTH100, resolve() follows links
    with suppress(OSError, RuntimeError):  # circular links: nobody can read the file
        views.add(path.resolve())
    return views
