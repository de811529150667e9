"""Recognizes parts of a dataset, such as `Training/`, by names of folders and files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from dpprobe.data.train_test_split import SplitName

Part = Literal["train", "test", "held out"]

_NAMES: dict[Part, str] = {
    "train": "train|training|trn|trainval",
    "test": "test|testing|tst",
    "held out": "val|valid|validation|dev|development|eval|evaluation|holdout|heldout",
}
# Words in folder names that denote neither a part nor a class.
_FILLER = (
    "set|split|part|fold|data|dataset|image|img|picture|pic|photo|file|folder|dir|sample|example"
)
_WORDS = {part: re.compile(rf"(?:{names})(?:(?:{_FILLER})s?)?") for part, names in _NAMES.items()}
_FILLERS = re.compile(rf"(?:{_FILLER})s?|the|of|for|final|\d+")


class _Name(NamedTuple):
    """The part of a dataset that a folder name denotes, and the name's other words."""

    part: Part | None
    rest: str


def find_parts(names: Iterable[str]) -> dict[str, Part]:
    """Maps folders to the parts of a dataset that their names denote; omits other folders.

    A name without further words denotes a part: `TRAIN`, `test_images`, `Validation Set`. Further
    words are allowed if folders of two parts have the same words: `seg_train` and `seg_test`.
    """
    read = {name: _read_name(name) for name in names}
    parts = {name: one.part for name, one in read.items() if one.part and not one.rest}
    if any(re.search("invalid", name, re.IGNORECASE) for name in read):
        parts = {name: part for name, part in parts.items() if "valid" not in name.lower()}
    if parts:
        return parts
    trained = {one.rest for one in read.values() if one.part == "train"}
    others = {one.rest for one in read.values() if one.part not in (None, "train")}
    paired = trained & others
    return {name: one.part for name, one in read.items() if one.part and one.rest in paired}


def choose_parts(parts: Mapping[str, Part]) -> dict[SplitName, str]:
    """Chooses the training and the test folder; empty unless there is exactly one folder of each.

    A validation folder becomes the test folder if there is no test folder.
    """
    named: dict[Part, list[str]] = {"train": [], "test": [], "held out": []}
    for name, part in parts.items():
        named[part].append(name)
    train, test = named["train"], named["test"] or named["held out"]
    return {"train": train[0], "test": test[0]} if len(train) == len(test) == 1 else {}


def find_test_file(train: Path) -> Path | None:
    """Finds the test file in a training file's folder: `Testing.csv` for `Training.csv`."""
    same = train.with_name(train.name.replace("train", "test", 1))
    if same != train and same.is_file():
        return same
    files = {each.stem: each for each in train.parent.iterdir() if each.suffix == train.suffix}
    chosen = choose_parts(find_parts(files))
    return files[chosen["test"]] if chosen.get("train") == train.stem else None


def _read_name(name: str) -> _Name:
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Za-z])(?=[A-Z][a-z])", " ", name)
    words = re.sub(r"\b(hold|held)[\W_]+out", "holdout", spaced.casefold())
    part: Part | None = None
    rest = []
    for word in re.findall(r"[^\W\d_]+|\d+", words):
        meant = next((each for each, known in _WORDS.items() if known.fullmatch(word)), None)
        if meant is None and not _FILLERS.fullmatch(word):
            rest.append(word)
        part = part or meant
    return _Name(part, " ".join(rest))
