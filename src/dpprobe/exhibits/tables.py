"""Writes tables: Markdown and HTML for people, CSV for programs, LaTeX for papers."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from markupsafe import Markup
from markupsafe import escape as escape_html

from dpprobe.files.atomic_writes import write_text
from dpprobe.shown_text import spreadsheet_text

PLUS_MINUS = "±"
TABLE_BYTES = 300_000  # a page links to longer Markdown tables instead of showing them


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table.

    Attributes:
      interval: True if CSV has two more columns, for the ends of the 95% interval.
    """

    title: str
    align: Literal["left", "right"] = "right"
    interval: bool = False


@dataclass(frozen=True, kw_only=True)
class TableCell:
    """One cell of a table.

    Attributes:
      value: the cell's number for programs; None for text.
      ends: the ends of the 95% interval.
      citation: a key of the bibliography, for LaTeX.
    """

    text: str = ""
    value: float | None = None
    ends: tuple[float, float] | None = None
    citation: str | None = None
    bold: bool = False


BLANK = TableCell()


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table with one cell per row and column; in notes, code is in backticks.

    Attributes:
      numbers: a different table for programs (CSV); None if programs get this table.
    """

    name: str
    title: str = ""
    columns: tuple[Column, ...]
    rows: list[tuple[TableCell, ...]]
    notes: list[str] = field(default_factory=list)
    numbers: Table | None = None


def make_table(
    name: str,
    title: str,
    columns: Sequence[str],
    rows: list[tuple[TableCell, ...]],
    notes: Sequence[str] = (),
) -> Table:
    """Makes a table from titles of columns: "<left-aligned", "±with interval", "right-aligned"."""
    return Table(
        name=name,
        title=title,
        columns=tuple(
            Column(
                title=column.lstrip("<±"),
                align="left" if column.startswith("<") else "right",
                interval=column.startswith("±"),
            )
            for column in columns
        ),
        rows=rows,
        notes=list(notes),
    )


def save_table(table: Table, path: Path) -> None:
    writers = {".md": write_markdown, ".csv": comma_separated, ".tex": write_latex}
    write_text(path, writers[path.suffix](table))


def make_row(*cells: TableCell | str) -> tuple[TableCell, ...]:
    return tuple(TableCell(text=cell) if isinstance(cell, str) else cell for cell in cells)


def mean_cell(
    mean: float,
    low: float | None = None,
    high: float | None = None,
    *,
    scale: float = 100.0,
    digits: int = 1,
) -> TableCell:
    """Makes a cell of a mean and (if given) its interval, both multiplied by `scale`."""
    text = f"{scale * mean:.{digits}f}"
    if low is None or high is None:
        return TableCell(text=text, value=scale * mean)
    ends = scale * low, scale * high
    return TableCell(
        text=f"{text} {interval_text(scale * mean, *ends, digits=digits)}",
        value=scale * mean,
        ends=ends,
    )


def interval_text(mean: float, low: float, high: float, *, digits: int = 1) -> str:
    """Formats an interval as ± and a number if both sides print as equal, else as two ends."""
    below, above = f"{mean - low:.{digits}f}", f"{high - mean:.{digits}f}"
    if below == above:
        return f"{PLUS_MINUS} {above}"
    return f"({low:.{digits}f} to {high:.{digits}f})"


def write_markdown(table: Table) -> str:
    header = [_escape_cell(column.title) for column in table.columns]
    rule = ["---" if column.align == "left" else "---:" for column in table.columns]
    lines = [f"# {table.title}", ""] if table.title else []
    lines += [_join_cells(header), _join_cells(rule)]
    lines += [_join_cells([_markdown_cell(cell) for cell in row]) for row in table.rows]
    for note in table.notes:
        lines += ["", note]
    return "\n".join(lines) + "\n"


def _join_cells(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _markdown_cell(cell: TableCell) -> str:
    text = _escape_cell(cell.text)
    return f"**{text}**" if cell.bold else text


def _escape_cell(text: str) -> str:
    """Formats a Markdown cell on one line, with pipes and tags escaped."""
    text = " ".join(text.splitlines()).replace("|", "\\|")
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text)


def write_html(table: Table, *, caption: str) -> Markup:
    """Formats a table as HTML in a scrollable box, with the table's notes."""
    head = Markup("").join(
        Markup('<th scope="col" class="{}">{}</th>').format(
            _cell_class(column), _break_title(column.title)
        )
        for column in table.columns
    )
    body = Markup("\n").join(
        Markup("<tr>{}</tr>").format(
            Markup("").join(
                Markup('<td class="{}">{}</td>').format(_cell_class(column), _html_cell(cell))
                for column, cell in zip(table.columns, row, strict=True)
            )
        )
        for row in table.rows
    )
    box = Markup(
        '<div class="scroll" role="region" tabindex="0" aria-label="{0}"><table class="sortable">'
        "<caption>{0}</caption><thead><tr>{1}</tr></thead><tbody>{2}</tbody></table></div>"
    ).format(caption, head, body)
    notes = [Markup('<p class="note">{}</p>').format(mark_code(note)) for note in table.notes]
    return Markup("\n").join([box, *notes])


def _cell_class(column: Column) -> str:
    return "" if column.align == "left" else "num"


def _break_title(text: str) -> Markup:
    return Markup(str(escape_html(text)).replace("_", "_<wbr>"))


def _html_cell(cell: TableCell) -> Markup:
    text = escape_html(cell.text)
    return Markup("<strong>{}</strong>").format(text) if cell.bold else text


def mark_code(text: str) -> Markup:
    """Escapes a sentence and marks text in backticks as code."""
    return Markup(re.sub(r"`(.+?)`", r"<code>\1</code>", str(escape_html(text))))


def comma_separated(table: Table) -> str:
    table = table.numbers or table
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    header = []
    for column in table.columns:
        header.append(spreadsheet_text(column.title))
        if column.interval:
            header += [f"{column.title} low", f"{column.title} high"]
    writer.writerow(header)
    for row in table.rows:
        values = []
        for column, cell in zip(table.columns, row, strict=True):
            text = spreadsheet_text(cell.text)
            values.append(text if cell.value is None else _format_number(cell.value))
            if column.interval:
                values += ["", ""] if cell.ends is None else map(_format_number, cell.ends)
        writer.writerow(values)
    return stream.getvalue()


def _format_number(value: float) -> str:
    return f"{value:.6g}"


# Characters with a special meaning in LaTeX, and characters that LaTeX's usual fonts lack.
_ESCAPES = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''", "`": "'",
    PLUS_MINUS: r"$\pm$", "ε": r"$\varepsilon$", "δ": r"$\delta$", "∞": r"$\infty$",
    "×": r"$\times$", "→": r"$\to$", "−": "$-$", "–": "--", "…": r"\ldots{}",
    "‡": r"$\ddagger$", "≥": r"$\geq$", "ρ": r"$\rho$",
}  # fmt: skip
_SPECIAL = re.compile(r"\d+\^\d+|" + "|".join(map(re.escape, _ESCAPES)))


def escape_latex(text: str) -> str:
    """Escapes text for LaTeX; writes 2^17 as a power."""
    return _SPECIAL.sub(lambda match: _escape_part(match[0]), text)


def _escape_part(part: str) -> str:
    base, power, exponent = part.partition("^")
    return f"${base}^{{{exponent}}}$" if base and power else _ESCAPES[part]


def write_latex(table: Table) -> str:
    r"""Formats a booktabs table; cited papers must be in `references.bib` in the same folder."""
    spec = "".join("l" if column.align == "left" else "r" for column in table.columns)
    head = " & ".join(escape_latex(column.title) for column in table.columns)
    body = [" & ".join(_latex_cell(cell) for cell in row) + r" \\" for row in table.rows]
    notes = [rf"\par\smallskip {_latex_prose(note)}" for note in table.notes]
    return "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
            rf"\caption{{{escape_latex(table.title)}}}",
            rf"\label{{tab:{table.name.replace('_', '-')}}}",
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


def _latex_cell(cell: TableCell) -> str:
    text = escape_latex(cell.text)
    if text.startswith(("[", "*")):
        text = f"{{{text}}}"  # LaTeX would read a leading bracket as an argument of the last row
    if cell.bold:
        text = rf"\textbf{{{text}}}"
    return text if cell.citation is None else rf"{text}~\cite{{{cell.citation}}}"


def _latex_prose(text: str) -> str:
    parts = text.split("`")
    return "".join(
        _latex_code(part) if index % 2 else escape_latex(part) for index, part in enumerate(parts)
    )


def _latex_code(text: str) -> str:
    """Typesets code without ligatures, which would join two hyphens and change quotes."""
    verbatim = {'"': r"\char34{}", "'": r"\textquotesingle{}", "`": r"\textasciigrave{}"}
    escaped = "".join(verbatim.get(character) or escape_latex(character) for character in text)
    return rf"\texttt{{{escaped.replace('--', '-{}-')}}}"
