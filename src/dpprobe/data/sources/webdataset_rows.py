"""Reads the samples of tar shards as rows: labels, ids, groups, patients, but not the images."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from dpprobe.counted_nouns import count_noun
from dpprobe.data import table_writer
from dpprobe.data.images import tar_shards
from dpprobe.data.images.image_files import EXTENSIONS
from dpprobe.data.images.tar_shards import Member, Sample
from dpprobe.data.people import patient_sides
from dpprobe.data.people.alike_names import hint_class, text_of
from dpprobe.data.people.class_units import count_companions
from dpprobe.data.people.companions import describe_alone
from dpprobe.data.people.patient_sides import Fault, RowIndex
from dpprobe.data.people.person_names import person_name
from dpprobe.data.problems import SHOWN
from dpprobe.errors import DataError
from dpprobe.json_values import parse_json
from dpprobe.shown_text import join_lines

if TYPE_CHECKING:
    from dpprobe.data.sources.webdataset_options import ShardOptions
    from dpprobe.data.train_test_split import SplitName

logger = logging.getLogger("dpprobe")


class Row(NamedTuple):
    """One sample: its shard's number, its image's offset, and its other content.

    `name` is the key, by which companions are found. `faults` are pairs (kind of problem, detail);
    `label` is None if it is faulty.
    """

    shard: int
    name: str
    id: str
    image: Member | None
    label: Any
    groups: tuple[str, ...]
    unit: str
    faults: tuple[Fault, ...]


def read_shards(options: ShardOptions) -> dict[SplitName, list[Row]]:
    """Reads headers and labels of all shards, in order.

    Raises DataError, naming the shards, if shards are damaged, or an image belongs to no sample.
    """
    broken, passed = list[str](), list[tuple[Path, Member]]()
    parts = {
        name: list(_read_rows(options, name, broken, passed)) for name in options.list_splits()
    }
    if broken:
        more = [f"and {len(broken) - SHOWN} more"] if len(broken) > SHOWN else []
        raise DataError(join_lines(broken[:SHOWN] + more))
    if images := [where for where in passed if tar_shards.holds_image(*where)]:
        raise DataError(
            f"{count_noun(len(images), 'image')} would be in no row, such as {images[0][1].name} "
            f"in {images[0][0]}. A key ends at the first dot of a name; an image's name ends in "
            f"{', '.join(sorted(EXTENSIONS))}. Rename the images (a.v2.png to a_v2.png), convert "
            "them or leave them out, and pack the shards again"
        )
    if passed:
        logger.warning(
            "%s of shards not used, such as %s in %s",
            count_noun(len(passed), "file"),
            passed[0][1].name,
            passed[0][0],
        )
    return {name: _leave_out(options, name, rows) for name, rows in parts.items()}


def _leave_out(options: ShardOptions, split: SplitName, rows: list[Row]) -> list[Row]:
    """Drops the rows that `companions` leaves out, by key."""
    names = [row.name for row in rows]
    left_out = options.leave_out(names)
    if line := describe_alone(names, left_out):
        logger.warning("%s: %s", split, line)
    return [row for row, out in zip(rows, left_out, strict=True) if not out]


def _read_rows(
    options: ShardOptions, name: SplitName, broken: list[str], passed: list[tuple[Path, Member]]
) -> Iterator[Row]:
    """Yields rows; adds errors of damaged shards to `broken`, and unused members to `passed`."""
    for number, shard in enumerate(options.list_shards(name)):
        unused: list[Member] = []
        try:
            for sample in tar_shards.read_samples(shard, unused):
                used = set[str]()
                if row := _make_row(options, number, shard, sample):
                    used = {"cls", "json", *_list_images(sample)}
                    yield row
                unused += [one for kind, one in sample.members.items() if kind not in used]
        except DataError as error:
            broken.append(str(error))
        passed += [(shard, member) for member in unused]


def _list_images(sample: Sample) -> list[str]:
    return [name for name in sample.members if f".{name}" in EXTENSIONS]


def _make_row(options: ShardOptions, number: int, shard: Path, sample: Sample) -> Row | None:
    """Converts a sample to a row; None if it has neither an image nor a label."""
    fields, faults = _read_fields(options, shard, sample)
    images = _list_images(sample)
    if not images and "cls" not in sample.members and "json" not in sample.members:
        return None
    image = sample.members[images[0]] if images else None
    if image is None:
        faults.append(("missing", f"no image, only {', '.join(sample.members)}"))
    if len(images) > 1:
        faults.append(("missing", f"images {' and '.join(images)} of one key; remove one"))
    if sample.twice:
        faults.append(("id", f"key {sample.key!r} has {sample.twice[0]} twice"))
    label, fault = _read_label(options, shard, sample, fields)
    if fault is not None and not any(kind == "label" for kind, _ in faults):
        faults.append(("label", fault))
    return Row(
        shard=number,
        name=f"{shard.stem}/{sample.key}" if options.shard_in_id else sample.key,
        id=_make_id(options, shard, sample, fields),
        image=image,
        label=label,
        groups=tuple(text_of(fields.get(name)) for name in _group_fields(options)),
        unit=person_name(fields.get(options.unit_column)) if options.unit_column else "",
        faults=tuple(faults),
    )


def _group_fields(options: ShardOptions) -> list[str]:
    return [group.column for group in options.list_groups().values()]


def _read_fields(
    options: ShardOptions, shard: Path, sample: Sample
) -> tuple[dict[str, Any], list[Fault]]:
    """Reads a sample's key.json if an option names a field; errors are reported as label errors."""
    wanted = (options.label_column, options.id_column, options.unit_column, *_group_fields(options))
    if not any(wanted):
        return {}, []
    member = sample.members.get("json")
    if member is None:
        return {}, [("label", f"no member {sample.key}.json")]
    try:
        fields = parse_json(tar_shards.read_at(shard, member.offset, member.size))
    except (OSError, ValueError) as error:
        return {}, [("label", f"{member.name} is not JSON ({error})")]
    if not isinstance(fields, dict):
        return {}, [("label", f"{member.name} is not a mapping of fields to values")]
    return _clean_names(options, fields)


def _clean_names(
    options: ShardOptions, fields: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Fault]]:
    """Replaces surrogates such as "\\ud800", which are valid in JSON, but not in split tables.

    Also returns a fault for each name that has surrogates, or is a list or mapping.
    """
    kinds: dict[str | None, str] = dict.fromkeys(_group_fields(options), "value")
    kinds |= {options.id_column: "id", options.unit_column: "patient"}
    clean, faults = dict(fields), list[Fault]()
    for name, value in fields.items():
        if isinstance(value, str):
            clean[name] = value.encode("utf-8", "backslashreplace").decode("utf-8")
            fault = (
                "which contains half a character (a lone surrogate)" if clean[name] != value else ""
            )
        else:
            fault = "neither a string nor a number" if isinstance(value, list | dict) else ""
        if fault and name in kinds:
            faults.append((kinds[name], f"{name} is {value!r}, {fault}"))
    return clean, faults


def _read_label(
    options: ShardOptions, shard: Path, sample: Sample, fields: Mapping[str, Any]
) -> tuple[Any, str | None]:
    value: Any
    if options.label_column is None:
        member = sample.members.get("cls")
        if member is None:
            return None, f"no member {sample.key}.cls"
        written = tar_shards.read_at(shard, member.offset, member.size)
        place, value = member.name, str(written, errors="replace").strip()
    else:
        place = options.label_column
        if fields.get(place) is None:
            return None, f"no field {place} in {sample.key}.json"
        value = fields[place]
    if options.several_labels:
        good = isinstance(value, list) and len(value) == len(options.class_names)
        if not good or any(type(each) is not int or each not in (0, 1) for each in value):
            return None, f"{place} is {value!r}, not a list of 0 and 1 with one number per class"
        return value, None
    return _class_number(options.class_names, place, value)


def _class_number(names: Sequence[str], place: str, value: Any) -> tuple[int | None, str | None]:
    """Returns a class number, or an error text; numbers are read as names if names are numbers."""
    text = str(value)
    if text in names:
        return names.index(text), None
    indexed = any(name.isdecimal() for name in names)
    decimal = text.isascii() and text.isdecimal()
    if not indexed and decimal and not isinstance(value, bool) and int(text) < len(names):
        return int(text), None
    return None, f"{place} is {text!r}, which is not in class_names{hint_class(text, names)}"


def _make_id(options: ShardOptions, shard: Path, sample: Sample, fields: Mapping[str, Any]) -> str:
    if options.id_column is not None:
        return text_of(fields.get(options.id_column))
    return f"{shard.stem}/{sample.key}" if options.shard_in_id else sample.key


def make_batches(
    options: ShardOptions, parts: Mapping[SplitName, Sequence[Row]]
) -> Iterator[tuple[str, pa.Table]]:
    """Yields batches of the split tables, each with its split, in the order of the shards."""
    index = _make_index(options, parts)
    sides = patient_sides.assign_sides(options, index)
    count_companions(index, sides).refuse(options.companions)
    faults = index.list_faults(sides, options.unit_column)
    for name, rows in parts.items():
        shards = options.list_shards(name)
        for start in range(0, len(rows), table_writer.BATCH_ROWS):
            part = slice(start, start + table_writer.BATCH_ROWS)
            batch = _make_batch(options, rows[part], shards, faults[name][part])
            yield from table_writer.split_batch(batch, sides[name][part])


def _make_index(options: ShardOptions, parts: Mapping[SplitName, Sequence[Row]]) -> RowIndex:
    units = options.unit_column and {
        name: [row.unit for row in rows] for name, rows in parts.items()
    }
    return RowIndex(
        rows={name: len(rows) for name, rows in parts.items()},
        ids=lambda name: [row.id for row in parts[name]],
        labels=lambda name: [row.label for row in parts[name]],
        units=units or None,
        names=lambda name: [row.name for row in parts[name]],
    )


def _make_batch(
    options: ShardOptions,
    rows: Sequence[Row],
    shards: Sequence[Path],
    of_units: Sequence[Sequence[Fault]],
) -> pa.Table:
    faults = [[*row.faults, *more] for row, more in zip(rows, of_units, strict=True)]
    kind = pa.list_(pa.int8()) if options.several_labels else pa.int64()
    return table_writer.make_batch(
        ids=[row.id for row in rows],
        labels=pa.array([row.label for row in rows], kind),
        images=[None] * len(rows),
        paths=[
            None if row.image is None else tar_shards.member_path(shards[row.shard], row.image)
            for row in rows
        ],
        groups={
            name: group.read_values([row.groups[place] for row in rows], faults)
            for place, (name, group) in enumerate(options.list_groups().items())
        },
        units=[row.unit for row in rows] if options.unit_column else None,
        faults=faults,
        # an image's path already names the shard
        origins=["" if row.image else str(shards[row.shard]) for row in rows],
    )
