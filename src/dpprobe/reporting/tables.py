"""A table as text: Markdown for people, CSV for programs, LaTeX for papers."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dpprobe.artifacts import write_text

EXTENSIONS = ("md", "csv", "tex")
PLUS_MINUS = "±"


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column's heading; `interval` says that CSV has a second column for half an interval."""

    title: str
    align: Literal["left", "right"] = "right"
    interval: bool = False


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What stands in a row's column.

    Attributes:
      text: for people.
      value: for programs, where it is a number; the text where None.
      half: of a 95 % interval.
      citation: a key of the bibliography, for LaTeX.
    """

    text: str = ""
    value: float | None = None
    half: float | None = None
    citation: str | None = None


BLANK = Entry()


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A table: every row has an entry a column."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: list[tuple[Entry, ...]]
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.name}: {len(row)} entries, {len(self.columns)} columns")


def write_sheet(sheet: Sheet, folder: Path) -> None:
    """Writes <name>.md, <name>.csv and <name>.tex."""
    for extension, text in (
        ("md", markdown(sheet)),
        ("csv", comma_separated(sheet)),
        ("tex", latex(sheet)),
    ):
        write_text(folder / f"{sheet.name}.{extension}", text)


def measured(mean: float, half: float | None, *, scale: float = 100.0, digits: int = 1) -> Entry:
    """A mean with half of its interval, both fractions, shown times `scale`."""
    text = f"{scale * mean:.{digits}f}"
    if half is not None:
        text += f" {PLUS_MINUS} {scale * half:.{digits}f}"
    return Entry(text=text, value=scale * mean, half=None if half is None else scale * half)


def markdown(sheet: Sheet) -> str:
    header = [_pipes(column.title) for column in sheet.columns]
    rule = ["---" if column.align == "left" else "---:" for column in sheet.columns]
    lines = [f"# {sheet.title}", "", _line(header), _line(rule)]
    lines += [_line([_pipes(entry.text) for entry in row]) for row in sheet.rows]
    for note in sheet.notes:
        lines += ["", note]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _pipes(text: str) -> str:
    return text.replace("|", "\\|")


def comma_separated(sheet: Sheet) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    header = []
    for column in sheet.columns:
        header += [column.title, f"{column.title} {PLUS_MINUS}"][: 1 + column.interval]
    writer.writerow(header)
    for row in sheet.rows:
        values = []
        for column, entry in zip(sheet.columns, row, strict=True):
            values.append(entry.text if entry.value is None else _number(entry.value))
            if column.interval:
                values.append("" if entry.half is None else _number(entry.half))
        writer.writerow(values)
    return stream.getvalue()


def _number(value: float) -> str:
    return f"{value:.6g}"


# What LaTeX reads as its own, and signs that its usual fonts do not have.
_ESCAPES = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''", "`": "'",
    PLUS_MINUS: r"$\pm$", "ε": r"$\varepsilon$", "δ": r"$\delta$", "∞": r"$\infty$",
    "×": r"$\times$", "→": r"$\to$", "−": "$-$", "–": "--", "…": r"\ldots{}",
}  # fmt: skip
_POWER = re.compile(r"(\d+)\^(\d+)")


def escape(text: str) -> str:
    """Text that LaTeX prints as it is; 2^17 becomes a power."""
    parts = []
    end = 0
    for found in _POWER.finditer(text):
        parts.append(_escape_plain(text[end : found.start()]))
        parts.append(f"${found[1]}^{{{found[2]}}}$")
        end = found.end()
    return "".join([*parts, _escape_plain(text[end:])])


def _escape_plain(text: str) -> str:
    return "".join(_ESCAPES.get(character, character) for character in text)


def latex(sheet: Sheet) -> str:
    r"""A table environment of booktabs; `references.bib` beside it has what it cites."""
    spec = "".join("l" if column.align == "left" else "r" for column in sheet.columns)
    head = " & ".join(escape(column.title) for column in sheet.columns)
    body = [" & ".join(_cell(entry) for entry in row) + r" \\" for row in sheet.rows]
    notes = [rf"\par\smallskip {_prose(note)}" for note in sheet.notes]
    return "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
            rf"\caption{{{escape(sheet.title)}}}",
            rf"\label{{tab:{sheet.name.replace('_', '-')}}}",
            rf"\begin{{tabular}}{{{spec}}}",
            r"\toprule",
            head + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            *notes,
            r"\end{table}",
            "",
        ]
    )


def _cell(entry: Entry) -> str:
    text = escape(entry.text)
    if text.startswith(("[", "*")):
        text = f"{{{text}}}"  # at the start of a row it would be an argument of the row before
    return text if entry.citation is None else rf"{text}~\cite{{{entry.citation}}}"


def _prose(text: str) -> str:
    """A sentence, what stands in backticks in typewriter letters."""
    parts = text.split("`")
    return "".join(_code(part) if index % 2 else escape(part) for index, part in enumerate(parts))


def _code(text: str) -> str:
    """A command as it is typed: without ligatures, which join two hyphens and bend quotes."""
    verbatim = {'"': r"\char34{}", "'": r"\textquotesingle{}", "`": r"\textasciigrave{}"}
    escaped = "".join(verbatim.get(character) or escape(character) for character in text)
    return rf"\texttt{{{escaped.replace('--', '-{}-')}}}"
