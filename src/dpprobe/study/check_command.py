"""The command `dpprobe check`, which checks a study without Snakemake."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dpprobe.backbones.feature_dimensions import read_dimensions
from dpprobe.counted_nouns import count_noun
from dpprobe.data.sources import embeddings
from dpprobe.errors import ConfigError
from dpprobe.extras import require_extra
from dpprobe.shown_text import join_lines, show_message
from dpprobe.study.dimension_checks import check_dimensions
from dpprobe.study.extraction_times import describe_times
from dpprobe.study.run_command import STUDY, run_command, similar_study
from dpprobe.study.study import Study
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from dpprobe.study.study_lines import StudyLines
from dpprobe.study.yaml_file import check_yaml

FEWEST_NAMED = 3
UNREAD = (
    "Not read yet: images, and labels row by row. The first job of a run reads them and lists all "
    "images that are missing or unreadable, and all labels without a class."
)


def add_command(commands: Any) -> None:
    summary = "check a study file (YAML, options, data, checkpoints) without running it"
    parser: argparse.ArgumentParser = commands.add_parser("check", help=summary)
    parser.set_defaults(run=_run_check)
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        default=[Path(STUDY)],
        help="study files; if several files set a value, the last one wins; default config.yaml",
    )


def _run_check(arguments: argparse.Namespace) -> int:
    require_extra("workflow", "dpprobe check")
    for file in arguments.files:
        if not file.exists():
            meant = similar_study(str(file))
            raise ConfigError(f"{file}: no such file; name the file of a study{meant}")
    study = read_study(arguments.files, network=True)
    named = " ".join(map(str, arguments.files))
    default = arguments.files == [Path(STUDY)]
    words = [] if default else ["--configfile", *map(str, arguments.files)]
    cells = count_noun(len(study.list_cells()), "cell")
    lines = [f"{named}: {cells}; run: {run_command(*words)}", UNREAD]
    lines += [*list_vectors(study), *list_limits(study), *list_tested(study)]
    hub_files = read_dimensions(study.backbones, Path(study.results_dir)).hub_files
    lines += describe_times(study, hub_files)
    print(join_lines(lines))
    return 0


def list_vectors(study: Study) -> Iterator[str]:
    """Describes the arrays of each dataset of vectors, and how many items have files."""
    for name, options in study.datasets.items():
        if isinstance(options, embeddings.Options):
            yield from (f"{name}: {line}" for line in options.describe_vectors())


def list_limits(study: Study) -> Iterator[str]:
    """Yields one line per dataset with releases: the limit of the total epsilon, or its absence."""
    for name in sorted({release.dataset for release in study.releases.values()}):
        limit, delta, risk = study.max_epsilon(name), study.dataset_delta(name), study.max_risk
        parts = [f"epsilon {limit:g} at delta {delta:g} (max_epsilon)"] if limit else []
        parts += [f"{risk} (max_risk)"] if risk else []
        if parts:
            yield f"{name}: limit of all releases together, for one unit: {', '.join(parts)}."
        else:
            yield (
                f"{name}: no limit of all releases together: their total epsilon can grow without "
                "end. Set `privacy.max_epsilon` before the first release."
            )


def list_tested(study: Study) -> Iterator[str]:
    """Yields the classes with the fewest test units, counted as in the test of a release."""
    tested = {
        release.dataset
        for release in study.releases.values()
        if release.test_metric not in (None, "accuracy")
    }
    for name in sorted(tested):
        counts = study.datasets[name].count_class_units()
        if counts is not None:
            units = counts.test_shares or counts.test
            fewest = sorted(units, key=lambda each: (units[each], each))[:FEWEST_NAMED]
            listed = ", ".join(f"{each} {units[each]:.4g}" for each in fewest)
            parts = " (patients with images of several classes count in parts)"
            yield (
                f"{name}: fewest test {study.dataset_unit(name)}s that count in a release: "
                f"{listed}{parts if counts.test_shares else ''}. Do not publish these numbers."
            )


def read_study(files: Sequence[Path], *, network: bool = False) -> Study:
    """Reads a study from its files and checks it, as `load_checked` does."""
    return load_checked(read_values(files), StudyLines(files=files), network=network)


def load_checked(values: Mapping[str, Any], lines: StudyLines, *, network: bool = False) -> Study:
    """Reads a study from YAML values, checks it completely, and prints warnings.

    The commands `run`, `check` and `site` all read their study with this function.

    Args:
      lines: locates the keys of the study's files, for errors that name lines.
      network: see `hub_files.describe_missing`.

    Raises ConfigError with one line per option that is wrong, or does not fit files or machine.
    """
    with lines.name_lines():
        study = load_study(values)
        warnings = [*check_study(study), *check_dimensions(study, network=network)]
    for warning in warnings:
        print(f"dpprobe: warning: {show_message(warning)}", file=sys.stderr)
    return study


def read_values(files: Sequence[Path]) -> dict[str, Any]:
    """Reads the values of study files; if several files set a key, the last file counts."""
    values: dict[str, Any] = {}
    for path in files:
        check_yaml(path)
        values = merge_values(values, yaml.safe_load(path.read_text(encoding="utf-8-sig")))
    return values


def merge_values(first: Mapping[str, Any], last: Mapping[str, Any]) -> dict[str, Any]:
    """Merges the values of two files like Snakemake: mappings key by key."""
    result = dict(first)
    for key, value in last.items():
        old = result.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = merge_values(old, value) if both else value  # type: ignore[arg-type]
    return result
