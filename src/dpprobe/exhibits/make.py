"""Makes an exhibit from the files of its job."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from dpprobe.errors import NothingToShow
from dpprobe.exhibits import published, tables
from dpprobe.exhibits.exhibit import FORMATS, Exhibit, Need
from dpprobe.study.study import Study

# Arguments that `make` may have besides the inputs, outputs, params and wildcards of its job.
STUDY, RESULTS, PUBLISHED, FOLDER = "study", "results", "published", "folder"


def find_function(words: str) -> Callable[..., Any]:
    """Imports a function given as "module:function"."""
    module, _, name = words.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def read_needs(
    needs: Mapping[str, Need], inputs: Mapping[str, Sequence[str]]
) -> dict[str, list[Path] | Path | None]:
    paths = {name: [Path(path) for path in inputs[name]] for name in needs if needs[name].read}
    return {
        name: files if needs[name].many else next(iter(files), None)
        for name, files in paths.items()
    }


def make_exhibit(
    exhibit: Exhibit,
    *,
    inputs: Mapping[str, Sequence[str]],
    outputs: Mapping[str, Sequence[str]],
    params: Mapping[str, Any],
    wildcards: Mapping[str, str],
    read_study: Callable[[], Study],
) -> None:
    """Makes the files of one job; writes the tables or figures that `make` returns.

    `inputs` and `outputs` map the names of needs and outputs to paths.
    """
    make = find_function(exhibit.make)
    asked = inspect.signature(make).parameters
    offered = {**params, **wildcards}
    study = read_study() if STUDY in asked or callable(exhibit.files) else None
    if PUBLISHED in asked:
        offered[PUBLISHED] = published.read_published()
    declared = exhibit.list_outputs(study)
    first = Path(outputs[declared[0].name][0])
    offered[RESULTS] = first.parents[declared[0].paths[0].count("/")]
    offered |= {STUDY: study, FOLDER: first.parent}
    given = {name: value for name, value in offered.items() if name in asked}
    save: Callable[[Any, Path], None] = tables.save_table
    settings: Any = nullcontext()
    if exhibit.kind == "figure":
        from dpprobe.exhibits import style  # imports Matplotlib, which tables do not need

        save, settings = style.save_figure, style.use_settings()
    with settings:
        stems = [
            f"{offered[RESULTS]}/{stem.format(**wildcards)}" for stem in exhibit.list_stems(study)
        ]
        try:
            made = make(**given, **read_needs(exhibit.needs, inputs))
        except NothingToShow as reason:  # the workflow expects files, so each file shows the reason
            made = [style.write_reason(str(reason)) for _ in stems]
        if made is None:  # `make` has written the files
            return
        for stem, item in zip(stems, made if isinstance(made, list) else [made], strict=True):
            for ending in FORMATS[exhibit.kind]:
                save(item, Path(f"{stem}.{ending}"))
