"""Gathers the problems of a dataset while its split tables are written, and reports them together.

The error shows the first problems of each kind; `problems.csv` lists all, in constant memory.
"""

from __future__ import annotations

import csv
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dpprobe.errors import DataError
from dpprobe.files import atomic_writes
from dpprobe.shown_text import join_lines, spreadsheet_text

FILE_NAME = "problems.csv"
COLUMNS = ("split", "row", "id", "path", "problem", "detail")
SHOWN = 20

# For each kind of problem, in the report's order: singular, plural, remedy.
KINDS: dict[str, tuple[str, str, str]] = {
    "missing": ("missing image", "missing images", "restore the file or leave the image out"),
    "unreadable": (
        "unreadable image", "unreadable images", "replace the file or leave the image out"),
    "item": (
        "file with other vectors", "files with other vectors",
        "save them like the other items, or correct the study"),
    "id": ("id missing or twice", "ids missing or twice", "give every row its own id"),
    "label": (
        "label without a class", "labels without a class",
        "correct the label or leave the image out"),
    "value": ("unusable value", "unusable values", "correct the value or leave the image out"),
    "patient": (
        "missing patient, patient in both splits, or patient with two names",
        "rows with a missing patient, a patient in both splits, or a patient with two names",
        "keep each patient's images in one split, under one name"),
    "duplicate": (
        "image in train and test", "images in train and test",
        "remove the image from one split, or write `duplicates: warn`"),
    "group": (
        "group in two spellings", "groups in two spellings",
        "use one spelling in the file, or write `ignore_case: true` in group_columns"),
    "class": (
        "class or split without rows", "classes or splits without rows",
        "add images or remove the class"),
    "untested": (
        "class without test rows", "classes without test rows",
        "add rows, remove the class, enlarge the test split, or write `missing_classes: warn`"),
    "size": (
        "unexpected size", "unexpected sizes",
        "complete the source or correct `expect`"),
}  # fmt: skip
# Kinds of problems that do not stop a run; they are listed only in `problems.csv`.
NOTES = {"copy": "training image that appears twice", "null": "unreadable, so a null example"}
# Kinds of problems whose rows become null examples with `unreadable: drop`.
UNREADABLE = ("missing", "unreadable")
# Kinds of problems that leave a row without content, so that it cannot be a copy.
WITHOUT_CONTENT = (*UNREADABLE, "item")


class ImageError(DataError):
    """The reason why an encoded image cannot be used."""


class Problems:
    """Counts problems, keeps the first problems of each kind, and writes all to a file.

    On exit, `problems.csv` is removed unless `make_error` or `keep_notes` was called.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME
        self.counts = dict.fromkeys(KINDS, 0)
        self._shown: dict[str, list[str]] = {kind: [] for kind in KINDS}
        self._complete = False
        self._stack = ExitStack()
        self._rows: Any = None

    def __enter__(self) -> Problems:
        self.path.unlink(missing_ok=True)
        return self

    def __exit__(self, *error: Any) -> None:
        if self._complete:
            self._stack.close()
        else:
            self._stack.__exit__(*error)

    def __bool__(self) -> bool:
        return any(self.counts.values())

    def add_problem(
        self,
        kind: str,
        detail: str,
        *,
        split: str = "",
        row: int | None = None,
        row_id: str = "",
        path: str = "",
    ) -> None:
        """Adds a problem of a row or a split, or a note (a problem that does not stop the run)."""
        if self._rows is None:
            self._rows = self._open_writer()
        name = NOTES.get(kind) or KINDS[kind][0]
        number = "" if row is None else str(row)
        self._rows.writerow([split, number, *map(spreadsheet_text, (row_id, path, name, detail))])
        if kind in NOTES:
            return
        self.counts[kind] += 1
        if self.counts[kind] <= SHOWN:
            where = split if row is None else f"{split} row {row}"
            where += f" (id {row_id})" if row_id else ""
            where += f", {path}" if path else ""
            self._shown[kind].append(f"{where}: {detail}" if where else detail)

    def keep_notes(self) -> None:
        """Keeps the file with the notes of a dataset without problems."""
        self._complete = True

    def make_error(self) -> DataError:
        """Returns an error with one line for one problem, or with a list of problems by kind."""
        self._complete = True
        total = sum(self.counts.values())
        present = {kind: count for kind, count in self.counts.items() if count}
        if total == 1:
            ((kind, _),) = present.items()
            return DataError(f"{self._shown[kind][0]}; {KINDS[kind][2]}")
        parts = [f"{count} {KINDS[kind][count > 1]}" for kind, count in present.items()]
        lines = [f"{self.path.parent}: {', '.join(parts)}; {self.path} lists all of them"]
        for kind, count in present.items():
            lines.append(f"{count} {KINDS[kind][count > 1]} ({KINDS[kind][2]}):")
            lines += [f"  {line}" for line in self._shown[kind]]
            if count > SHOWN:
                lines.append(f"  and {count - SHOWN} more")
        return DataError(join_lines(lines))

    def _open_writer(self) -> Any:
        temporary = self._stack.enter_context(atomic_writes.atomic_path(self.path))
        stream = self._stack.enter_context(temporary.open("w", encoding="utf-8", newline=""))
        rows = csv.writer(stream, lineterminator="\n")
        rows.writerow(COLUMNS)
        return rows
