"""A look at tar shards, as WebDataset writes them: a folder of them, or one."""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dpprobe.artifacts import parse_json
from dpprobe.data import class_units, tar_shards, webdataset
from dpprobe.data.alike_names import joined_labels, text_of
from dpprobe.data.image_files import EXTENSIONS
from dpprobe.data.tar_shards import Sample
from dpprobe.data.usual_columns import LABELS, find_usual
from dpprobe.draft import column_guesses as guesses
from dpprobe.draft.column_guesses import Column
from dpprobe.draft.csv_guesses import PUBLIC_NAMES, Wishes
from dpprobe.draft.folder_guesses import first_image, name_some
from dpprobe.draft.seen_dataset import SPLIT, Line, Seen, check_counts, rare_notes
from dpprobe.errors import ConfigError, DataError

if TYPE_CHECKING:
    from dpprobe.data.train_test_split import SplitName
    from dpprobe.data.webdataset_rows import Row

NUMBERED = (
    "The shards have no class names: these are the numbers of their labels. Replace them by names "
    "in the order of the numbers. They are published with every head."
)
CLS = "key.cls"
# Words in the names of shards, or of folders of them; what is validated on is tested on where
# nothing else is.
_SIDES = {
    "train": {"train", "training"},
    "test": {"test", "testing"},
    "validation": {"val", "valid", "validation"},
}


@dataclass
class Contents:
    """The members and fields that samples of shards have.

    Attributes:
      labels: of key.cls.
      fields: those of key.json that hold text or numbers.
      lists: the lengths of lists of 0 and 1, by their fields.
      present: how many samples have a value of each field.
      described: samples with key.json.
      extensions: how many samples have a member of each.
      several: a key that has several images; None where there is none.
      first: the first key.
      repeated: True where shards have a key in common.
      empty: shards without a sample.
    """

    samples: int = 0
    labels: Column = field(default_factory=Column)
    fields: dict[str, Column] = field(default_factory=dict)
    lists: dict[str, set[int]] = field(default_factory=dict)
    present: Counter[str] = field(default_factory=Counter)
    described: int = 0
    extensions: Counter[str] = field(default_factory=Counter)
    several: str | None = None
    first: str = ""
    repeated: bool = False
    empty: list[str] = field(default_factory=list)

    @property
    def image_extensions(self) -> list[str]:
        """The extensions of images, the most frequent first."""
        return [name for name, _ in self.extensions.most_common() if f".{name}" in EXTENSIONS]


class ReadShards:
    """Tar shards of which each header, label and description is read from the disk once."""

    def __init__(self) -> None:
        self._samples: dict[Path, list[Sample]] = {}
        self._members: dict[tuple[Path, int], bytes] = {}

    def read_samples(self, shard: Path) -> list[Sample]:
        """Reads the samples of a shard; raises DataError if it is damaged."""
        if shard not in self._samples:
            self._samples[shard] = list(tar_shards.read_samples(shard))
        return self._samples[shard]

    def read_at(self, shard: Path, offset: int, size: int) -> bytes:
        """Reads a member of a sample."""
        if (shard, offset) not in self._members:
            self._members[shard, offset] = tar_shards.read_at(shard, offset, size)
        return self._members[shard, offset]


def holds_shards(folder: Path) -> bool:
    """Returns True for a folder with tar files in it, or in its folders of a split."""
    places = [
        entry
        for entry in folder.iterdir()
        if entry.is_dir() and _split_of_name(entry.name) and not entry.name.startswith(".")
    ]
    return any(map(tar_shards.list_tars, (folder, *places)))


def look_at_shards(place: str, wishes: Wishes) -> Seen:
    """Looks at the headers and labels of tar shards; opens no image.

    Raises:
      ConfigError: where they are damaged or compressed, or hold no images with labels.
    """
    if wishes.root is not None:
        raise ConfigError(f"--root {wishes.root}: shards hold their images; leave it out")
    keys, notes = _find_splits(place)
    # The classes are not known yet, which options are not made without.
    shards = ReadShards()
    unnamed = _make_options(place, keys | {"class_names": Line(value=["0", "1"])})
    contents = _read_contents(unnamed, wishes.image, shards)
    if not contents.samples:
        raise ConfigError(
            f"{place}: no sample in the tar files (key.jpg with {CLS} or key.json); name the "
            "folder of the shards"
        )
    keys |= _image_keys(contents, place, wishes.image) | _label_keys(contents, place, wishes.label)
    if contents.repeated:
        keys["shard_in_id"] = Line(value=True, comment="Different shards use the same keys.")
    if wishes.patient is not None:
        _check_field(contents, wishes.patient, "--patient", place)
    unit = (wishes.patient, True) if wishes.patient else guesses.guess_unit(contents.fields)
    if unit is not None:
        keys["unit_column"] = guesses.unit_line(unit[0], people=unit[1])
    if groups := guesses.guess_groups(contents.fields, plain=True):
        keys["group_columns"] = Line(
            value=[str(name) for name in groups.values()],
            comment="Subgroups, guessed from the columns' names. They are stored with predictions, "
            "not trained on.",
        )
    return _count_rows(place, keys, [*notes, *_list_notes(contents, unit)], shards)


def _make_options(place: str, keys: Mapping[str, Line]) -> webdataset.Options:
    options = Seen(place=place, keys=keys, counts={}, images=0).make_options()
    assert isinstance(options, webdataset.Options)
    return options


# where the shards lie


def _find_splits(place: str) -> tuple[dict[str, Line], list[str]]:
    """Returns where each split's shards lie, and what of the folder is not used."""
    path = Path(place).expanduser()
    source = {"source": Line(value="webdataset")}
    if not path.is_dir():
        _check_plain(place, [path])
        return source | {"train": Line(value=place)}, []
    tars = tar_shards.list_tars(path)
    entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    inner = {entry: tar_shards.list_tars(entry) for entry in entries if entry.is_dir()}
    folders = [folder for folder, shards in inner.items() if shards]
    every = [*tars, *itertools.chain(*inner.values())]
    _check_alone(place, path, every[0])
    _check_plain(place, every)
    parts = _by_side(tars or folders)
    train, test = parts.get("train", []), parts.get("test") or parts.get("validation", [])
    if not tars and not train:
        raise ConfigError(
            f"{place}: tar files in {name_some([each.name for each in folders])} and no folder "
            "train; name the folder of the shards"
        )
    if not tars:
        keys = {"train": _name_folders(place, train)} | (
            {"test": _name_folders(place, test)} if test else {}
        )
        used = [*train, *test]
    elif train and test:
        keys = {
            "train": _find_pattern(place, train, tars),
            "test": _find_pattern(place, test, tars),
        }
        used = [*train, *test]
    else:
        keys, used = {"train": Line(value=place)}, tars
    names = [each.name for each in [*tars, *folders] if each not in used]
    notes = [f"not used, by their names: {name_some(names)}"] if names else []
    if "test" in keys and "test" not in parts:
        notes.append(
            f"{name_some([each.name for each in test])}: tested on, as nothing is called test"
        )
    return source | keys, notes


def _check_alone(place: str, path: Path, tar: Path) -> None:
    """Raises ConfigError for a folder that holds images beside tar files."""
    if image := first_image(path):
        raise ConfigError(
            f"{place}: tar files, such as {tar.relative_to(path)}, and images, such as "
            f"{image.relative_to(path)}; a study reads one or the other: move the tar files "
            "elsewhere if they are copies of the images, else the images"
        )


def _check_plain(place: str, tars: Iterable[Path]) -> None:
    packed = [tar.name for tar in tars if tar.suffix != tar_shards.SUFFIX]
    if packed:
        raise ConfigError(
            f"{place}: {name_some(packed)}: compressed, but images are read from plain .tar files; "
            "decompress shards (gunzip, bunzip2, unxz, unzstd), or unpack an archive of images "
            "(tar -xf) and name its folder"
        )


def _split_of_name(name: str) -> str:
    """Returns the split that a name speaks of; none for other names."""
    words = set(re.split(r"[^a-z]+", name.lower()))
    return next((side for side, known in _SIDES.items() if words & known), "")


def _by_side(places: Iterable[Path]) -> dict[str, list[Path]]:
    parts: dict[str, list[Path]] = {}
    for each in places:
        parts.setdefault(_split_of_name(each.name), []).append(each)
    return parts


def _name_folders(place: str, folders: list[Path]) -> Line:
    paths = [str(Path(place) / folder.name) for folder in folders]
    return Line(value=paths[0] if len(paths) == 1 else paths)


def _find_pattern(place: str, chosen: list[Path], tars: list[Path]) -> Line:
    """Returns a pattern that matches some shards of a folder alone; a list where none does."""
    names = [path.name for path in chosen]
    if len(names) == 1:
        return Line(value=str(Path(place) / names[0]))
    start = os.path.commonprefix(names).rstrip("0123456789")  # noqa: RUF071
    if [path.name for path in tars if path.name.startswith(start)] == names:
        return Line(value=str(Path(glob.escape(place)) / f"{glob.escape(start)}*.tar"))
    return Line(value=[str(Path(place) / name) for name in names])


# what is in them


def _read_contents(options: webdataset.Options, image: str | None, shards: ReadShards) -> Contents:
    """Reads all headers, key.cls and key.json; `image` is an extension that a user named."""
    contents = Contents()
    for side in options.list_splits():
        keys: set[str] = set()
        for shard in options.list_shards(side):
            before = contents.samples
            try:
                for sample in shards.read_samples(shard):
                    contents.repeated |= sample.key in keys
                    keys.add(sample.key)
                    _add_sample(contents, shard, sample, _normal_extension(image or ""), shards)
            except DataError as error:
                raise ConfigError(str(error)) from error
            if contents.samples == before:
                contents.empty.append(shard.name)
    for name, column in contents.fields.items():
        column.blanks = contents.samples - contents.present[name]
    return contents


def _add_sample(
    contents: Contents, shard: Path, sample: Sample, image: str, shards: ReadShards
) -> None:
    """Adds a sample; not what has neither image nor label, which a run passes over."""
    images = [name for name in sample.members if name == image or f".{name}" in EXTENSIONS]
    if not images and not {"cls", "json"} & sample.members.keys():
        return
    contents.samples += 1
    contents.first = contents.first or sample.key
    contents.extensions.update(sample.members.keys())
    if len(images) > 1 and contents.several is None:
        contents.several = sample.key
    written = _read_member(shard, sample, "cls", shards)
    contents.labels.add_value("" if written is None else str(written, errors="replace").strip())
    described = _read_member(shard, sample, "json", shards)
    if described is None:
        return
    contents.described += 1
    try:
        fields = parse_json(described)
    except ValueError:
        return  # a fault of this row, which is told with the others
    for name, value in fields.items() if isinstance(fields, dict) else ():
        if isinstance(value, list):
            if value and all(type(each) is int and each in (0, 1) for each in value):
                contents.lists.setdefault(name, set()).add(len(value))
        elif isinstance(value, str | int | float) and (text := text_of(value).strip()):
            contents.fields.setdefault(name, Column()).add_value(text)
            contents.present[name] += 1


def _read_member(shard: Path, sample: Sample, extension: str, shards: ReadShards) -> bytes | None:
    member = sample.members.get(extension)
    return None if member is None else shards.read_at(shard, member.offset, member.size)


def _normal_extension(written: str) -> str:
    return written.removeprefix(".").lower()


def _image_keys(contents: Contents, place: str, wish: str | None) -> dict[str, Line]:
    """Returns which member is the image, where its extension alone does not say it."""
    members = ", ".join(contents.extensions)
    if wish is not None:
        if _normal_extension(wish) not in contents.extensions:
            raise ConfigError(f"--image {wish}: {place} has no such member; it has {members}")
        return {"image_member": Line(value=_normal_extension(wish))}
    if not contents.image_extensions:
        raise ConfigError(
            f"{place}: no member has the extension of an image; there are {members}: name that of "
            "the images with --image"
        )
    if contents.several is None:
        return {}
    everywhere = [
        name for name in contents.image_extensions if contents.extensions[name] == contents.samples
    ]
    if len(everywhere) != 1:
        raise ConfigError(
            f"{place}: several images of one key, such as {contents.several}: "
            f"{', '.join(contents.image_extensions)}; name the extension of those to classify "
            f"with --image"
        )
    extensions = ", ".join(contents.image_extensions)
    comment = f"Keys have several images ({extensions}); every key has this one."
    return {"image_member": Line(value=everywhere[0], comment=comment)}


def _label_keys(contents: Contents, place: str, wish: str | None) -> dict[str, Line]:
    """Returns where the labels stand, and the names of the classes."""
    if wish is not None:
        _check_field(contents, wish, "--label", place)
    elif contents.labels.values:
        return {"class_names": _class_names(contents.labels, CLS, place)}
    label = wish or next(find_usual(contents.lists, LABELS), None)
    label = label or guesses.guess_label(contents.fields)
    if label is None:
        raise _no_label(contents, place)
    keys = {"label_column": Line(value=label)}
    if label not in contents.lists:
        return keys | {"class_names": _class_names(contents.fields[label], label, place)}
    lengths = sorted(contents.lists[label])
    if len(lengths) > 1:
        raise ConfigError(
            f"{place}: field {label} has lists of {lengths[0]} and of {lengths[1]} labels; write "
            "0 or 1 for each class into all of them"
        )
    names = [str(number) for number in range(lengths[0])]
    check_counts(dict.fromkeys(names, 0), place)
    return keys | {
        "several_labels": Line(value=True),
        "class_names": Line(value=names, comment=NUMBERED),
    }


def _class_names(column: Column, name: str, place: str) -> Line:
    names = guesses.class_names(column, name, place)
    numbered = names == [str(number) for number in range(len(names))]
    return Line(value=names, comment=NUMBERED if numbered else PUBLIC_NAMES)


def _check_field(contents: Contents, name: str, option: str, place: str) -> None:
    fields = [*contents.fields, *(contents.lists if option == "--label" else ())]
    if not fields:
        raise ConfigError(
            f"{option} {name}: {place} has no key.json, of which it would be a field; leave it out"
        )
    guesses.require_column(fields, name, option, place)


def _no_label(contents: Contents, place: str) -> ConfigError:
    if contents.described:
        return guesses.no_label(contents.fields | dict.fromkeys(contents.lists, Column()), place)
    folders = contents.first.rpartition("/")[0]
    remedy = f"pack {CLS} or key.json beside each image"
    if folders:
        remedy += f"; if {folders} and the like are the classes, unpack them and name their folder"
    return ConfigError(
        f"{place}: no labels: there are {', '.join(contents.extensions)}, and neither {CLS} nor "
        f"key.json; {remedy}"
    )


def _list_notes(contents: Contents, unit: tuple[str, bool] | None) -> list[str]:
    notes = []
    if contents.empty:
        notes.append(f"no sample in {name_some(contents.empty)}")
    if contents.described:
        notes += guesses.unit_notes(contents.fields, unit)
    else:
        notes.append(
            "shards without key.json name no patients, so the unit of privacy is one image; if "
            "people have several images, pack key.json with a field of patients"
        )
    if joined := joined_labels(contents.labels.values):
        notes.append(
            f"{name_some(joined)} in {CLS} is read as one class, and its parts are classes too; if "
            "images have several labels, pack key.json with a list of 0 and 1"
        )
    return notes


# how many there are


def _count_rows(place: str, keys: dict[str, Line], notes: list[str], shards: ReadShards) -> Seen:
    """Counts the rows as a run does."""
    from dpprobe.data import webdataset_rows  # heavy: pyarrow

    options = _make_options(place, keys)
    if not options.has_test():
        keys = keys | SPLIT
        options = _make_options(place, keys)
    parts = webdataset_rows.read_shards(options, shards)
    rows = [row for part in parts.values() for row in part]
    patients = options.unit_column is not None

    def list_sides(at: webdataset.Options) -> list[SplitName | None]:
        return [*itertools.chain(*webdataset_rows.assign_sides(at, parts).values())]

    train = [row for row, side in zip(rows, list_sides(options), strict=True) if side == "train"]
    names, pairs = options.class_names, [*class_units.list_pairs(row.label for row in rows)]
    counts = Counter(dict.fromkeys(names, 0))
    counts.update(names[number] for _, number in pairs)
    whose = [row.unit for row in rows] if patients else None
    if not patients:
        notes = [
            *notes,
            "a run does not count the images when it starts; to check delta at the start, set "
            f"`expect: {{train: {len(train)}, test: {len(rows) - len(train)}}}`",
        ]
    return Seen(
        place=place,
        keys=keys,
        counts=dict(counts),
        images=len(rows),
        patients=_count_patients(rows) if patients else None,
        multi_label=options.several_labels,
        notes=(
            *notes,
            *_list_faults(rows),
            *rare_notes(counts, multi_label=options.several_labels),
        ),
        training_units=_count_patients(train) if patients else len(train),
        class_units=class_units.count_classes(
            options, names, lambda at: class_units.count_pairs(pairs, list_sides(at), whose)
        ),
    )


def _count_patients(rows: Iterable[Row]) -> int:
    return len({row.unit for row in rows} - {""})


def _list_faults(rows: Iterable[Row]) -> list[str]:
    """Tells of samples that a run refuses."""
    faulty = [row for row in rows if row.faults]
    if not faulty:
        return []
    return [
        f"{len(faulty)} samples are faulty, which a run refuses; the first is {faulty[0].id}: "
        f"{faulty[0].faults[0][1]}"
    ]
