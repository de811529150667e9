"""Reads, joins, filters and splits the rows of a CSV manifest, and writes split tables.

Errors in a file raise ConfigError before any image is read. Faulty labels of rows become negative
codes; `problems.csv` lists all faulty rows together.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from dpprobe.counted_nouns import count_noun
from dpprobe.data import table_writer
from dpprobe.data.options import DatasetOptions
from dpprobe.data.people import patient_sides
from dpprobe.data.people.alike_names import fold_name, hint_class, joined_labels
from dpprobe.data.people.companion_options import CompanionOptions
from dpprobe.data.people.companions import FoundCompanions, describe_alone, look_for_companions
from dpprobe.data.people.group_columns import BLANKS, TRUTH
from dpprobe.data.people.patient_sides import RowIndex
from dpprobe.data.people.person_names import person_name
from dpprobe.data.sources.csv_files import SUFFIXES, open_rows, read_header
from dpprobe.data.sources.csv_options import Join, ManifestOptions, TableOptions
from dpprobe.data.sources.path_template import SpreadFolders, fill_template, template_parts
from dpprobe.data.train_test_split import SplitName
from dpprobe.errors import ConfigError
from dpprobe.options import resolve_path
from dpprobe.time_limits import limited_time

logger = logging.getLogger("dpprobe")

BATCH_ROWS = 128
SHOWN = 5
# The most time for matching a pattern, per file and per row.
MATCHING_SECONDS, MATCHING_SECONDS_PER_ROW = 10.0, 1e-3
LINE = "\0line"  # contains NUL, so that no column of a file has this name
# Codes of faulty labels. Valid codes are class numbers, or 0 and 1 if rows have several labels.
UNCERTAIN, BLANK, OTHER, DROP = -1, -2, -3, -4


@dataclass(frozen=True, kw_only=True)
class ManifestRows:
    """The rows of one file that belong to a split.

    Attributes:
      file: the file's name, as written in the study.
      frame: the needed columns as text, and the line number of each row.
      codes: int64 [rows, 1] class numbers, or int8 [rows, labels] of 0 and 1; negative if faulty.
    """

    file: str
    frame: pd.DataFrame
    codes: np.ndarray

    def take_rows(self, rows: np.ndarray | slice) -> ManifestRows:
        return ManifestRows(file=self.file, frame=self.frame.iloc[rows], codes=self.codes[rows])


def read_index(options: TableOptions) -> RowIndex:
    """Reads the columns that decide which rows are train or test."""
    return _make_index(options, load_columns(options, _columns_that_decide(options), quiet=True))


def _make_index(options: TableOptions, parts: Mapping[SplitName, ManifestRows]) -> RowIndex:
    column, several = options.unit_column, options.multi_label()
    units = column and {name: rows.frame[column].tolist() for name, rows in parts.items()}
    return RowIndex(
        rows={name: len(rows.frame) for name, rows in parts.items()},
        ids=lambda name: _make_ids(options, parts[name]),
        labels=lambda name: (parts[name].codes if several else parts[name].codes[:, 0]).tolist(),
        units=units or None,
        groups=lambda name, column: parts[name].frame[column].tolist(),
        names=_path_names(options, parts),
        wrong_labels=lambda name: _list_wrong_labels(options, parts[name]),
    )


def _list_wrong_labels(options: TableOptions, rows: ManifestRows) -> list[tuple[str, str]]:
    """Lists the labels that are no class, with file and line."""
    columns = options.label_columns or (options.label_column or "",)
    texts, lines = [rows.frame[name].tolist() for name in columns], rows.frame[LINE].tolist()
    counted = _count_by(rows.file)
    return [
        (texts[label][row], f"{rows.file} {counted} {lines[row]}")
        for row, label in np.argwhere(rows.codes == OTHER).tolist()
    ]


def _count_by(file: str) -> str:
    return "line" if file.lower().endswith(SUFFIXES) else "row"


def _path_names(
    options: TableOptions, parts: Mapping[SplitName, ManifestRows]
) -> Callable[[SplitName], list[str]] | None:
    if not isinstance(options, ManifestOptions) or not _has_paths(options, parts.values()):
        return None
    return lambda name: _make_paths(options, parts[name])


def _has_paths(options: ManifestOptions, parts: Iterable[ManifestRows]) -> bool:
    """Returns False if a file lacks a column of paths, for which `check_files` raises an error."""
    return all({*options.path_columns()} <= {*rows.frame.columns} for rows in parts)


def find_companions(
    options: ManifestOptions, parts: Mapping[SplitName, ManifestRows]
) -> FoundCompanions:
    """Finds companions among the rows of both tables."""
    column, units = options.unit_column, None
    if column is not None:
        units = [unit for rows in parts.values() for unit in rows.frame[column]]
    return look_for_companions(
        [name for rows in parts.values() for name in _make_paths(options, rows)],
        [name for name, rows in parts.items() for _ in range(len(rows.frame))],
        units=units,
    )


def _columns_that_decide(options: TableOptions) -> set[str]:
    """Returns columns of groups, and columns that determine which rows are train or test."""
    single = {options.label_column, options.split_column, options.unit_column, options.id_column}
    if options.unit_column is None and not options.has_test():
        single |= {options.id_column} if options.id_column else {*options.path_columns()}
    named = {column for column in single if column is not None}
    named |= {group.column for group in options.list_groups().values()}
    if isinstance(options, CompanionOptions):  # companions are found by images' names
        named |= {*options.path_columns()}
    return named | {*options.filters, *(options.label_columns or ())}


def read_rows(options: TableOptions) -> dict[SplitName, ManifestRows]:
    """Reads the rows of the train and the test table.

    Raises ConfigError if a file does not match the options, or no row remains.
    """
    parts = load_columns(options, set(options.list_columns()))
    train, sides = parts["train"], patient_sides.assign_sides(options, _make_index(options, parts))
    chosen = np.array(sides["train"], dtype=object)
    parts["train"] = train.take_rows(chosen == "train")
    if not options.has_test():
        parts["test"] = train.take_rows(chosen == "test")
    if options.max_images_per_patient is not None:
        logger.info(
            "%s: %d rows left out by max_images_per_patient",
            options.train,
            sides["train"].count(None),
        )
    return parts


def load_columns(
    options: TableOptions, needed: set[str], *, quiet: bool = False
) -> dict[SplitName, ManifestRows]:
    """Reads the needed columns of "train", and of "test" if the manifest has its own test rows."""
    if options.split_column is None:
        return {
            name: _use_rows(
                options, name, _read_split(options, name, needed, quiet=quiet), quiet=quiet
            )
            for name in options.list_splits()
        }
    frame = _read_split(options, "train", needed, quiet=quiet)
    parts: dict[SplitName, ManifestRows] = {}
    names: tuple[SplitName, ...] = ("train", "test")
    for name in names:
        values = options.train_values if name == "train" else options.test_values
        rows = frame[
            _choose_rows(frame, options.split_column, values, f"{name}_values", options.train)
        ]
        if rows.empty:
            written = sorted(frame[options.split_column].unique())[:SHOWN]
            shown = ", ".join(value or '""' for value in written)
            raise ConfigError(
                f"{name}_values: {options.train}: column {options.split_column!r} has no value "
                f"{' or '.join(map(str, values))}; write a value that the column has: {shown}"
            )
        parts[name] = _use_rows(options, name, rows, quiet=quiet)
    used = [str(value) for value in (*options.train_values, *options.test_values)]
    column = frame[options.split_column]
    rest = column[~column.isin(used)]
    if not rest.empty:
        _warn_of_rest(options.train, options.split_column, len(rest), rest.iloc[0])
    return parts


@cache
def _warn_of_rest(file: str, column: str, rows: int, value: str) -> None:
    """Warns about rows in neither split, only once although every check reads the rows."""
    logger.warning(
        "%s: %s of neither split, such as %s %r; not used",
        file,
        count_noun(rows, "row"),
        column,
        value,
    )


def _use_rows(
    options: TableOptions, name: SplitName, frame: pd.DataFrame, *, quiet: bool
) -> ManifestRows:
    """Returns the rows that remain after filters and dropped labels."""
    file = options.split_file(name) if options.split_column is None else options.train
    total = len(frame)
    for column, values in options.filters.items():
        frame = frame[_choose_rows(frame, column, values, f"filters.{column}", file)]
        if frame.empty:
            wanted = " or ".join(map(str, values))
            raise ConfigError(
                f"filters.{column}: {file}: no {name} row has {column} {wanted} after the earlier "
                "filters; correct the values"
            )
    filtered = total - len(frame)
    if isinstance(options, ManifestOptions) and options.left_out_words():
        frame = _leave_out(options, name, frame, file, quiet=quiet)
    if (unit := options.unit_column) is not None and unit in frame:
        frame = frame.assign(**{unit: frame[unit].map(person_name)})
    codes = _encode_labels(options, frame)
    kept = ~(codes == DROP).any(axis=1)
    rows = ManifestRows(file=file, frame=frame, codes=codes).take_rows(kept)
    if rows.frame.empty:
        remedy = "is left; correct `uncertain`, `missing` or" if total else "below the header; fill"
        raise ConfigError(f"{file}: no {name} row {remedy} the file")
    if not quiet:
        logger.info(
            "%s: %s: %d rows, %d left out by filters, %d by their labels",
            file,
            name,
            total,
            filtered,
            int((~kept).sum()),
        )
    return rows


def _leave_out(
    options: ManifestOptions, name: SplitName, frame: pd.DataFrame, file: str, *, quiet: bool
) -> pd.DataFrame:
    """Drops the rows that `companions` leaves out, by path."""
    rows = ManifestRows(file=file, frame=frame, codes=np.empty((0, 1)))
    if not _has_paths(options, [rows]):
        return frame
    paths = _make_paths(options, rows)
    left_out = options.leave_out(paths)
    if not quiet:
        logger.info("%s: %s: %d rows left out by companions", file, name, sum(left_out))
        if line := describe_alone(paths, left_out):
            logger.warning("%s: %s: %s", file, name, line)
    return frame[[not out for out in left_out]]


def _choose_rows(
    frame: pd.DataFrame, column: str, values: Sequence[Any], option: str, file: str
) -> pd.Series:
    """Returns a mask of the rows whose `column` has one of the values in an option.

    Raises ConfigError if the column contains another spelling of a value, because rows with this
    spelling would be lost silently.
    """
    wanted = {str(value) for value in values}
    looks = {fold_name(value): value for value in wanted}
    for written in sorted(set(frame[column].unique()) - wanted):
        if named := looks.get(fold_name(written)):
            line = frame[LINE][frame[column] == written].iloc[0]
            raise ConfigError(
                f"{option}: {file} line {line}: {column} is {written!r}, not {named!r} as in the "
                f"study; use one spelling in both, or list both: [{named}, {written}]"
            )
    return frame[column].isin(wanted)


def _read_split(
    options: TableOptions, name: SplitName, needed: set[str], *, quiet: bool
) -> pd.DataFrame:
    """Reads a split's file, with extracted and joined columns, in the order of lines."""
    file = options.split_file(name)
    joins: list[Join] = []
    wanted = set(needed)
    for join in reversed(options.joins):  # a join's key may be a column of another join
        if wanted & set(join.columns):
            joins.insert(0, join)
            wanted |= join.key_columns.keys()
    used = {column: made for column, made in options.extract.items() if column in wanted}
    header = read_header(options, file, name)
    columns = {column for column in header if column in wanted}
    frame = _read_file(options, file, columns | {extract.column for extract in used.values()})
    options.check_length(name, len(frame))
    for column, extract in used.items():
        with limited_time(
            MATCHING_SECONDS + MATCHING_SECONDS_PER_ROW * len(frame),
            f"extract.{column}: {file}: {extract.pattern!r} takes too long; write a pattern "
            "without a repetition inside another repetition, such as (a+)+",
        ):
            values = frame[extract.column].str.extract(extract.pattern, expand=False)
        if values.isna().any():
            row = frame[values.isna()].iloc[0]
            raise ConfigError(
                f"extract.{column}: {file} line {row[LINE]}: {extract.column} "
                f"{row[extract.column]!r} does not match {extract.pattern!r}; correct one of them"
            )
        frame[column] = values
    for join in joins:
        frame = _join_file(options, frame, join, file=file, quiet=quiet)
    return frame


def _read_file(options: TableOptions, file: str, columns: set[str]) -> pd.DataFrame:
    """Reads columns of a file as text, with each row's line number; ignores empty lines."""
    if (other := options.open_columns(file)) is not None:
        read = other.read_columns(columns)
        lengths = {name: len(texts) for name, texts in read.items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name} {length}" for name, length in sorted(lengths.items()))
            raise ConfigError(f"{file}: columns differ in length ({told}); store one value per row")
        frame = pd.DataFrame(read, dtype=object)
        return frame.assign(**{LINE: np.arange(len(frame))})
    header = read_header(options, file, file)
    places = [(header.index(name), name) for name in sorted(columns)]
    values: dict[str, list[str]] = {name: [] for _, name in places}
    lines = []
    with open_rows(options, file) as rows:
        first = next(rows)
        for row in rows:
            if not any(row):
                continue
            if row == first:
                raise ConfigError(
                    f"{file} line {rows.line_num}: repeats the header, as two joined files do; "
                    "remove the line"
                )
            if len(row) != len(header):
                raise ConfigError(
                    f"{file} line {rows.line_num}: {len(row)} values for {len(header)} "
                    "columns; correct the line, or `delimiter`"
                )
            lines.append(rows.line_num)
            for place, name in places:
                value = row[place].strip()
                # Labels and groups repeat a few short words, so each word is stored once.
                values[name].append(sys.intern(value) if len(value) <= 8 else value)
    frame = pd.DataFrame({name: pd.Series(part, dtype=object) for name, part in values.items()})
    frame[LINE] = pd.Series(lines, dtype="int64")
    return frame


def _join_file(
    options: TableOptions, frame: pd.DataFrame, join: Join, *, file: str, quiet: bool
) -> pd.DataFrame:
    """Joins another file's columns to the rows, keeping all rows in order."""
    keys = join.key_columns
    other = _read_file(options, join.file, {*keys.values(), *join.columns})
    theirs = list(keys.values())
    other = other[(other[theirs] != "").all(axis=1)]  # blank keys match no row
    twice = other.duplicated(theirs)
    if twice.any() and not join.first:
        row = other[twice].iloc[0]
        raise ConfigError(
            f"joins: {join.file} line {row[LINE]}: a second row with "
            f"{_describe_key(row, theirs)}; remove one, add a key, or write `first: true`"
        )
    other = other[~twice]
    # Keys of the joined file are renamed, because `frame` may have another column with this name.
    made = [f"\0{number}" for number in range(len(theirs))]
    right = other[list(join.columns)].assign(
        **{key: other[name] for key, name in zip(made, theirs, strict=True)}
    )
    joined = frame.merge(
        right, how="left", left_on=list(keys), right_on=made, validate="many_to_one"
    )
    unmatched = int(joined[made[0]].isna().sum())
    if len(frame) and unmatched == len(frame):
        ours = _describe_key(frame.iloc[0], list(keys))
        known = f"has {_describe_key(other.iloc[0], theirs)}" if len(other) else "has no key at all"
        raise ConfigError(
            f"joins: {join.file}: none of its rows matches a row of {file} ({file} has {ours}, "
            f"{join.file} {known}); correct `by`, or make a matching column with `extract`"
        )
    if unmatched and not quiet:
        logger.info("%s: %d of %d rows have no row in %s", file, unmatched, len(frame), join.file)
    return joined.drop(columns=made).fillna(dict.fromkeys(join.columns, ""))


def _describe_key(row: pd.Series, columns: Sequence[str]) -> str:
    return ", ".join(f"{name} {row[name]!r}" for name in columns)


def _encode_labels(options: TableOptions, frame: pd.DataFrame) -> np.ndarray:
    """Returns the labels as numbers; faulty labels become negative codes."""
    if options.label_columns is None:
        assert options.label_column is not None
        blank = DROP if options.missing == "drop" else BLANK
        numbers = options.label_numbers()
        floats = {f"{name}.0": code for name, code in numbers.items() if name.isdecimal()}
        codes = frame[options.label_column].map({**floats, **numbers, "": blank})
        return codes.fillna(OTHER).to_numpy(dtype=np.int64)[:, None]
    columns = []
    for name in options.label_columns:
        meaning = {text: _parse_label(options, name, text) for text in frame[name].unique()}
        columns.append(frame[name].map(meaning).to_numpy(dtype=np.int8))
    return np.stack(columns, axis=1)


def _parse_label(options: TableOptions, column: str, text: str) -> int:
    if text.lower() in BLANKS:
        return {"zeros": 0, "drop": DROP, "error": BLANK}[options.missing]
    try:
        # float() also reads digits of other scripts
        number = float(TRUTH.get(text.lower(), text if text.isascii() else ""))
    except ValueError:
        return OTHER
    if number == -1:
        policy = options.uncertain
        if not isinstance(policy, str):
            policy = policy.get(column, "error")
        return {"ones": 1, "zeros": 0, "drop": DROP, "error": UNCERTAIN}[policy]
    return int(number) if number in (0, 1) else OTHER


def _make_ids(options: TableOptions, rows: ManifestRows) -> list[str]:
    if options.id_column is not None:
        return list(rows.frame[options.id_column])
    if isinstance(options, ManifestOptions):
        return _make_paths(options, rows)
    splits = {options.split_file(name): name for name in options.list_splits()}
    prefix = splits[rows.file] if len(splits) > 1 else "row"
    return [f"{prefix}-{place:08d}" for place in rows.frame.index]


def _make_paths(options: ManifestOptions, rows: ManifestRows) -> list[str]:
    """Returns paths as written in the manifest; empty if a column of the path is blank."""
    columns = {name: rows.frame[name].tolist() for name in options.path_columns()}
    template = options.template_of(rows.file)
    if template is None:
        return next(iter(columns.values()))
    parts = template_parts(template)
    filled = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    return [fill_template(parts, row) if all(row.values()) else "" for row in filled]


def make_batches(
    options: ManifestOptions, parts: Mapping[SplitName, ManifestRows]
) -> Iterator[tuple[str, pa.Table]]:
    """Yields batches for the split tables; uses both splits' rows to find faulty patients."""
    mistaken = find_mistaken(options, parts)
    root = resolve_path(options.root)
    for name, rows in parts.items():
        folders = SpreadFolders.find(root, options.template_of(rows.file))
        for start in range(0, len(rows.frame), BATCH_ROWS):
            part = rows.take_rows(slice(start, start + BATCH_ROWS))
            written = _make_paths(options, part)
            blank = f"no path: {' or '.join(options.path_columns())} is blank"
            batch = make_batch(
                options,
                part,
                mistaken,
                images=[None] * len(written),
                paths=_locate_files(root, folders, part, written),
                faults=[[] if path else [("missing", blank)] for path in written],
            )
            yield name, batch


def _locate_files(
    root: Path, folders: SpreadFolders | None, rows: ManifestRows, written: Sequence[str]
) -> list[str | None]:
    """Returns the paths of rows' files; None for a blank path."""
    # A `~` in a row's path is not expanded, because the path is data, not an option.
    if folders is None:
        return [str(root / path) if path else None for path in written]
    origins = (f"{rows.file} {_count_by(rows.file)} {line}" for line in rows.frame[LINE])
    return [
        str(folders.find_file(path, origin)) if path else None
        for path, origin in zip(written, origins, strict=True)
    ]


def write_tables(
    directory: Path,
    options: TableOptions,
    parts: Mapping[SplitName, ManifestRows],
    batches: Iterator[tuple[str, pa.Table]],
    *,
    recorded: DatasetOptions | None = None,
    embed: bool = False,
) -> None:
    table_writer.write_dataset(
        directory,
        batches,
        options=recorded or options,
        class_names=options.class_names_or_labels(),
        multi_label=options.multi_label(),
        groups=list(options.list_groups()),
        units=options.unit_column is not None,
        rows=sum(len(rows.frame) for rows in parts.values()),
        embed=embed,
        chosen_test=options.has_test(),
    )


def find_mistaken(options: TableOptions, parts: Mapping[SplitName, ManifestRows]) -> dict[str, str]:
    """Maps patients to their faults, as `patient_sides.find_mistaken` does."""
    if options.unit_column is None:
        return {}
    column = options.unit_column
    return patient_sides.find_mistaken({name: rows.frame[column] for name, rows in parts.items()})


def make_batch(
    options: TableOptions,
    rows: ManifestRows,
    mistaken: Mapping[str, str],
    *,
    images: Sequence[bytes | None],
    paths: Sequence[str | None],
    faults: list[list[tuple[str, str]]],
) -> pa.Table:
    """Makes a batch for the split tables; adds faults of labels, groups, patients to `faults`."""
    labels = _make_labels(options, rows, faults)
    groups = {
        name: group.read_values(rows.frame[group.column].tolist(), faults)
        for name, group in options.list_groups().items()
    }
    patients = None
    if options.unit_column is not None:
        patients = rows.frame[options.unit_column].tolist()
        further = patient_sides.list_faults(patients, mistaken, options.unit_column)
        for fault, more in zip(faults, further, strict=True):
            fault += more
    counted = _count_by(rows.file)
    return table_writer.make_batch(
        ids=_make_ids(options, rows),
        labels=labels,
        images=images,
        paths=paths,
        groups=groups,
        units=patients,
        faults=faults,
        origins=[f"{rows.file} {counted} {line}" for line in rows.frame[LINE]],
    )


def _make_labels(
    options: TableOptions, rows: ManifestRows, faults: list[list[tuple[str, str]]]
) -> pa.Array:
    """Returns labels; a faulty label becomes None, and adds an entry to `faults`."""
    columns = options.label_columns or (options.label_column or "",)
    written = [rows.frame[name].tolist() for name in columns]
    hinted = options.label_columns is not None
    for row, label in np.argwhere(rows.codes < 0).tolist():
        text, code = written[label][row], int(rows.codes[row, label])
        fault = _label_fault(options, columns[label], text, code)
        if not hinted and joined_labels([text], options.class_names or options.label_columns):
            hinted = True  # one hint per batch is enough
            fault += (
                "; its parts are names of classes: if images have several labels, use one column "
                "of 0 and 1 per class, and label_columns instead of label_column"
            )
        faults[row].append(("label", fault))
    bad = [bool(row.any()) for row in rows.codes < 0]
    if options.label_columns is None:
        values = rows.codes[:, 0].tolist()
        kind = pa.int64()
    else:
        values = rows.codes.tolist()
        kind = pa.list_(pa.int8())
    return pa.array([None if no else value for no, value in zip(bad, values, strict=True)], kind)


def _label_fault(options: TableOptions, column: str, text: str, code: int) -> str:
    if code == BLANK:
        policies = "drop" if options.label_columns is None else "zeros or drop"
        return f"{column} is blank, and `missing` is error ({policies} would accept it)"
    if code == UNCERTAIN:
        return (
            f"{column} is -1, uncertain, and `uncertain` is error (ones, zeros or drop would "
            "accept it)"
        )
    if options.label_columns is None:
        hint = hint_class(text, options.label_numbers())
        keys = "a key of" if isinstance(options.class_names, dict) else "in"
        return f"{column} is {text!r}, which is not {keys} class_names{hint}"
    return f"{column} is {text!r}, which is not 1, 0, true, false, -1 or blank"
