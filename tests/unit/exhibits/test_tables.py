"""Tables are written as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest

from dpprobe.exhibits import tables


def test_latex_tables_print_commands_verbatim() -> None:
    column = tables.Column(title="x")
    note = "Run `snakemake --cores all --configfile 'a b.yaml'`, or not -- as you like."
    table = tables.Table(name="one", title="One", columns=(column,), rows=[], notes=[note])
    quoted = r"\textquotesingle{}a b.yaml\textquotesingle{}"
    expected = rf"\texttt{{snakemake -{{}}-cores all -{{}}-configfile {quoted}}}, or not -- as you"
    assert expected in tables.write_latex(table)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a_b & c", r"a\_b \& c"),
        ("5 % ± 1 of 2^17", r"5 \% $\pm$ 1 of $2^{17}$"),
        (r"C:\x {y} ~ ^", r"C:\textbackslash{}x \{y\} \textasciitilde{} \textasciicircum{}"),
        ("Tramèr → ε ∞", r"Tramèr $\to$ $\varepsilon$ $\infty$"),
    ],
)
def test_latex_escapes(text: str, expected: str) -> None:
    assert tables.escape_latex(text) == expected


def test_a_cell_of_several_lines_and_a_comparison_stay_in_the_markdown_s_row() -> None:
    columns = (tables.Column(title="group"),)
    table = tables.Table(name="n", columns=columns, rows=[tables.make_row("a\nb < 40 <40")])
    assert tables.write_markdown(table).splitlines()[2:] == ["| a b < 40 <40 |"]


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        ((90.0, 87.5, 92.5), "± 2.5"),
        ((90.0, 87.46, 92.54), "± 2.5"),
        ((99.0, 96.0, 100.0), "(96.0 to 100.0)"),
        ((100.0, 43.8, 100.0), "(43.8 to 100.0)"),
        ((0.0, 0.0, 56.2), "(0.0 to 56.2)"),
        ((50.0, 49.94, 50.06), "± 0.1"),
        ((50.0, 49.96, 50.06), "(50.0 to 50.1)"),
    ],
)
def test_plus_minus_is_only_for_symmetric_intervals(
    interval: tuple[float, float, float], text: str
) -> None:
    assert tables.interval_text(*interval) == text
    cell = tables.mean_cell(*(value / 100 for value in interval))
    assert cell.text == f"{interval[0]:.1f} {text}"
    assert cell.ends == pytest.approx(interval[1:])


def test_a_mean_has_its_digits_and_scale_and_an_interval_if_both_ends_are_known() -> None:
    assert tables.mean_cell(0.123456, 0.1, 0.2, digits=2).text == "12.35 (10.00 to 20.00)"
    assert tables.mean_cell(1234.5678, scale=1, digits=0).text == "1235"
    for ends in ((), (0.4,), (None, 0.6)):
        cell = tables.mean_cell(0.5, *ends)
        assert (cell.text, cell.value, cell.ends) == ("50.0", 50.0, None)


def _numbers() -> tables.Table:
    rows = [
        tables.make_row("=1+1", tables.mean_cell(0.123456789, 0.1, 0.2), tables.BLANK),
        tables.make_row("a,b", "none", tables.TableCell(text="two", value=2.0)),
    ]
    return tables.make_table("n", "t", ("<name", "±mean", "-x"), rows, ["note"])


def test_csv_has_numbers_with_six_digits_and_two_columns_for_the_ends() -> None:
    header, *rows = csv.reader(io.StringIO(tables.comma_separated(_numbers())))
    assert header[:4] == ["name", "mean", "mean low", "mean high"]
    assert not header[4].startswith("-"), "a spreadsheet would compute it"
    assert rows[0][1:] == ["12.3457", "10", "20", ""]
    assert not rows[0][0].startswith("=")
    assert rows[1] == ["a,b", "none", "", "", "2"]


def test_csv_uses_the_separate_numbers_table_if_there_is_one() -> None:
    own = tables.make_table("n", "", ("x",), [tables.make_row("1")])
    table = replace(_numbers(), numbers=own)
    assert tables.comma_separated(table) == "x\n1\n"
    assert "| two |" in tables.write_markdown(table)
