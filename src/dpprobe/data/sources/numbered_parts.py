"""Orders files of a dataset in numbered parts, such as img_emb_0.npy and img_emb_1.npy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from dpprobe.data.option_paths import match_files
from dpprobe.errors import ConfigError


def list_parts(path: Path) -> list[Path]:
    """Lists the files of a path or glob pattern in the order of their numbers: 2 before 10.

    Files whose names differ in more than numbers are listed by name.
    """
    files = match_files(path)
    numbers = {file: _split_name(file) for file in files}
    if len({texts for texts, _ in numbers.values()}) > 1:
        return files
    return sorted(files, key=lambda file: (numbers[file][1], file.name))


def number_parts(path: Path) -> dict[int, Path]:
    """Maps numbers of parts to the files that match a pattern, in order.

    Raises ConfigError if a number is missing or occurs twice, or if names differ in more than one
    number.
    """
    files = list_parts(path)
    texts, numbers = zip(*map(_split_name, files), strict=True)
    places = [n for n, found in enumerate(zip(*numbers, strict=False)) if len({*found}) > 1]
    if len({*texts}) > 1 or len(places) > 1:
        raise ConfigError(
            f"{path}: the order of {files[0].name} and {files[-1].name} is not known, because "
            "names of parts may differ in only one number; name a pattern such as img_emb_*.npy"
        )
    place = places[0] if places else len(numbers[0]) - 1
    parts: dict[int, Path] = {}
    for file, found in zip(files, numbers, strict=True):
        number = found[place] if found else 0
        if (first := parts.setdefault(number, file)) != file:
            raise ConfigError(
                f"{path}: {first.name} and {file.name} are both part {number}; keep one"
            )
        if number - 1 not in parts and len(parts) > 1:
            before = parts[[*parts][-2]]
            missing = _rename(before, place, [*parts][-2] + 1)
            raise ConfigError(
                f"{path}: no {missing} between {before.name} and {file.name}; put the part there, "
                "or number the parts without a gap"
            )
    return parts


def check_pairs(
    vectors: Path, rows: Mapping[Path, int], table: Path, lines: Mapping[Path, int]
) -> None:
    """Checks that each part of vectors has a part of a table, with one row per vector.

    Args:
      vectors: the pattern of the parts of vectors.
      rows: the number of vectors of each part.
      table: the pattern of the parts of the table.
      lines: the number of rows of each part of the table.

    Raises ConfigError if a part has no partner, or partners have different numbers of rows.
    """
    parts, tables = number_parts(vectors), number_parts(table)
    for number in sorted(parts.keys() ^ tables.keys()):
        there, lacking = (parts, table) if number in parts else (tables, vectors)
        raise ConfigError(
            f"{lacking}: no part {number}, but {there[number]} exists; add the part, or remove both"
        )
    for number, part in parts.items():
        if lines[tables[number]] != rows[part]:
            raise ConfigError(
                f"{tables[number]}: {lines[tables[number]]} rows, but {rows[part]} vectors in "
                f"{part}; store one row per vector"
            )


def _split_name(path: Path) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Splits a file's name into texts and the numbers between them."""
    pieces = re.split("([0-9]+)", path.name)
    return tuple(pieces[::2]), tuple(map(int, pieces[1::2]))


def _rename(path: Path, place: int, number: int) -> str:
    """Returns a part's name with another number, padded to as many digits."""
    pieces = re.split("([0-9]+)", path.name)
    width = len(pieces[2 * place + 1])
    pieces[2 * place + 1] = f"{number:0{width}d}"
    return "".join(pieces)
