"""The command that writes a study for a folder or a table of images: `dpprobe init`."""

from __future__ import annotations

import argparse
import difflib
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpprobe.errors import ConfigError
from dpprobe.extras import require_extra
from dpprobe.files import atomic_writes
from dpprobe.files.output_paths import check_output_path
from dpprobe.options import resolve_path
from dpprobe.shown_text import join_lines, one_line

WISHES = ("label", "image", "patient", "root", "table", "vectors")
VECTORS = (
    ".npy",
    ".npz",
    ".safetensors",
    ".pt",
    ".h5",
    ".hdf5",
    ".h5ad",
)  # files of `source: embeddings`

if TYPE_CHECKING:
    from dpprobe.draft.seen_dataset import Seen


def add_command(commands: Any) -> None:
    summary = "write a study for a folder, a CSV or a parquet file of images or vectors"
    parser: argparse.ArgumentParser = commands.add_parser("init", help=summary)
    parser.set_defaults(run=_run_init)
    parser.add_argument(
        "place",
        nargs="?",
        help="folder with one folder per class, CSV with one row per image, parquet file, or "
        "folder of vectors: one file per item, parts of clip-retrieval, or parquet files",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="study file to write; default <name>.yaml in this folder",
    )
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    parser.add_argument("--checkpoint", metavar="FILE", help="weights file of a timm model")
    parser.add_argument("--model", metavar="NAME", help="timm's name of the model of --checkpoint")
    parser.add_argument(
        "--size",
        type=int,
        metavar="PIXELS",
        help="size of the images that enter the network of --checkpoint; smaller is faster",
    )
    columns = parser.add_argument_group("columns of a CSV or parquet file, if guesses are wrong")
    for option, metavar, words in (
        ("--label", "COLUMN", "column with the labels"),
        ("--image", "COLUMN", "column with the images, their paths, or the names of items"),
        ("--patient", "COLUMN", "column with the patient of each image"),
        ("--root", "FOLDER", "folder that the paths in a CSV are relative to"),
        ("--table", "FILE", "CSV with one row per item, for a folder of vectors"),
        ("--vectors", "ARRAY", "array or column of the vectors"),
    ):
        columns.add_argument(option, metavar=metavar, help=words)


def _run_init(arguments: argparse.Namespace) -> int:
    require_extra("workflow", "dpprobe init")
    # imported late, to keep `dpprobe --help` quick
    import yaml

    from dpprobe.draft.available_backbone import ask_for_vectors, choose_backbone
    from dpprobe.draft.init_output import seen_in_words
    from dpprobe.draft.study_text import make_draft, study_text
    from dpprobe.study.class_split_checks import class_split_faults
    from dpprobe.study.extraction_times import describe_times
    from dpprobe.study.run_command import command_line
    from dpprobe.study.study_checks import check_study
    from dpprobe.study.study_file import load_study

    try:
        seen = look_at_place(arguments)
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}; correct its permissions") from None
    output = arguments.output or Path(f"{seen.study_name}.yaml")
    check_output(output, seen, force=arguments.force)
    if seen.vectors is None:
        backbone = choose_backbone(arguments.checkpoint, arguments.model, arguments.size)
    elif arguments.checkpoint or arguments.model or arguments.size:
        raise ConfigError(
            f"--checkpoint, --model, --size: {seen.place} has vectors, which a model computed "
            "already; leave them out, and name this model in the study"
        )
    else:
        backbone = ask_for_vectors(seen.vectors)
    draft = make_draft(seen, backbone, output, list_words(arguments))
    text = study_text(draft)
    values = yaml.safe_load(text)
    values["backbones"][backbone.name] |= backbone.asked  # as if a person had confirmed them
    study = load_study(values)
    warnings = check_study(study, check_classes=False)
    refused, rare = class_split_faults(study, seen.study_name, draft.class_units)
    try:
        atomic_writes.write_text(output, text)
    except OSError as error:
        raise ConfigError(f"--output {output}: {error.strerror}; name another folder") from None
    print(seen_in_words(draft))
    for warning in [*warnings, *rare]:
        print(one_line(f"warning:     {warning}"))
    for line in describe_times(study):
        print(one_line(f"time:        {line}"))
    for line in backbone.seen:
        print(one_line(f"             {line}"))
    for fault in refused:
        print(one_line(f"refused:     {fault}"))
    if backbone.asked:
        told = (
            f"confirm:     backbones.{backbone.name}: which model computed the vectors, and did "
            f"it compute each from its own item alone? Complete these lines in {output}; until "
            "then `check` and a run refuse it"
        )
        print(one_line(told))
    if refused:
        told = f"Correct {output} before you run it: a run stops at each line that begins with "
        print(join_lines(["", f"{told}`refused`."]))
    ready = f"Wrote {output}, which has none of the counts above: these counts are private."
    following = f"Read the file, then run:  {command_line(*draft.run_words)}"
    print(join_lines(["", ready, following]))
    return 0


def list_words(arguments: argparse.Namespace) -> list[str]:
    """Returns the words of the command that writes the same study."""
    names = (*WISHES, "checkpoint", "model", "size", "output")
    given = {f"--{name}": getattr(arguments, name) for name in names}
    options = (word for name, value in given.items() if value for word in (name, str(value)))
    return ["dpprobe", "init", arguments.place, *options]


def look_at_place(arguments: argparse.Namespace) -> Seen:
    """Inspects the folder or table; raises ConfigError if it does not exist."""
    # imported late, to keep `dpprobe --help` quick
    from dpprobe.data.images import tar_shards
    from dpprobe.data.people.alike_names import is_text
    from dpprobe.data.sources import csv_files
    from dpprobe.data.sources.parquet_columns import PARQUET
    from dpprobe.draft.csv_guesses import Wishes, look_at_csv
    from dpprobe.draft.folder_guesses import WRITE_SHARDS, look_at_folder
    from dpprobe.draft.item_guesses import find_folder, holds_items, look_at_items
    from dpprobe.draft.parquet_guesses import look_at_parquet
    from dpprobe.draft.vector_guesses import find_vector_files, look_at_vectors

    if not arguments.place:
        raise ConfigError(
            "init: name a folder of class folders, a CSV with one row per image, or a parquet "
            "file: dpprobe init images/lesions"
        )
    place = arguments.place.rstrip("/") or "/"
    if not is_text(place):
        name = f"${repr(os.fsencode(place))[1:]}"  # as bash reads bytes
        rename = f"convmv -r -f latin1 -t utf8 --notest {name}"
        raise ConfigError(f"{name} is not UTF-8; rename it, such as by `{rename}`")
    path = resolve_path(place)
    wishes = Wishes(**{name: getattr(arguments, name) for name in WISHES})
    if files := find_vector_files(place, wishes):
        return look_at_vectors(files, wishes)
    if path.is_dir() and (wishes.table or holds_items(path)):
        return look_at_items(place, wishes)
    if path.is_dir():
        if wishes != Wishes():
            raise ConfigError(
                f"{place}: a folder has no columns; leave out --label, --image, --patient and "
                "--root, or name a CSV"
            )
        return look_at_folder(place)
    if not path.is_file():
        if os.path.lexists(path):
            raise ConfigError(
                f"{place}: neither a folder nor a plain file, but a device, a pipe or a link that "
                "leads to no file; name another"
            )
        raise ConfigError(f"{place}: no such folder or file; {_suggest_paths(path)}")
    if tar_shards.is_tar(path):
        raise ConfigError(f"{place}: a tar file; {WRITE_SHARDS}")
    if wishes.table or wishes.vectors:
        raise ConfigError(
            f"{place}: --table and --vectors are for a folder of vectors, or a parquet file of "
            "vectors; name it, or leave them out"
        )
    if path.name.lower().endswith(csv_files.SUFFIXES):
        try:
            return look_at_csv(place, wishes)
        except ConfigError:
            if (folder := find_folder(path)) is None:
                raise
            return look_at_items(str(folder), replace(wishes, table=place))
    if path.name.lower().endswith(PARQUET):
        return look_at_parquet(place, wishes)
    if path.name.lower().endswith(VECTORS):
        raise ConfigError(
            f"{place}: vectors, for which init cannot write a study; write one with `source: "
            f"embeddings` and `train: {place}`, as docs/embeddings.md shows"
        )
    raise ConfigError(
        f"{place}: neither a folder nor a table; name a folder of class folders, or a file that "
        f"ends in {', '.join((*csv_files.SUFFIXES, PARQUET[0]))}"
    )


def check_output(output: Path, seen: Seen, *, force: bool) -> None:
    """Raises ConfigError if the study would replace a file, or be inside the folder of images."""
    if output.suffix not in (".yaml", ".yml"):
        raise ConfigError(
            f"--output {output}: not the name of a YAML file; write a name that ends in .yaml"
        )
    check_output_path(output, "--output")
    if output.exists() and not force:
        raise ConfigError(
            f"{output}: the file exists; name another file with --output, or overwrite it with "
            "--force"
        )
    images = resolve_path(seen.place).resolve()
    if not images.is_dir():
        return
    if Path.cwd().is_relative_to(images):
        raise ConfigError(
            f"{seen.place}: you are in the folder of the images, so results would be written "
            f"among them; change to another folder, such as {images.parent}"
        )
    if output.resolve().is_relative_to(images):
        raise ConfigError(
            f"--output {output}: the study would be among the images; name a file outside "
            f"{seen.place}"
        )


def _suggest_paths(path: Path) -> str:
    folder = path.parent
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    close = difflib.get_close_matches(path.name, sorted(names), n=3)
    if close:
        return f"did you mean {' or '.join(str(folder / name) for name in close)}?"
    return "correct the path" if folder.is_dir() else f"{folder} is missing too; correct the path"
