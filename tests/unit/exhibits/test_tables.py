"""The writer of tables."""

from __future__ import annotations

import pytest

from dpprobe.exhibits import tables


def test_latex_prints_a_command_as_it_is_typed() -> None:
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


def _bold_table() -> tables.Table:
    return tables.Table(
        name="n",
        columns=(tables.Column(title="a_b", align="left"), tables.Column(title="c|d")),
        rows=[tables.make_row("<x>|y", tables.mean_cell(0.5, 0.25, 0.75)),
              tables.make_row("z", tables.TableCell(text="1", bold=True))],
        notes=["Run `a & b`."],
    )  # fmt: skip


def test_a_cell_of_several_lines_and_a_comparison_stay_in_the_markdown_s_row() -> None:
    columns = (tables.Column(title="group"),)
    table = tables.Table(name="n", columns=columns, rows=[tables.make_row("a\nb < 40 <40")])
    assert tables.write_markdown(table).splitlines()[2:] == ["| a b < 40 <40 |"]


def test_text_is_escaped_and_code_and_bold_are_marked() -> None:
    assert tables.write_markdown(_bold_table()) == (
        "| a_b | c\\|d |\n| --- | ---: |\n| &lt;x>\\|y | 50.0 ± 25.0 |\n| z | **1** |\n\n"
        "Run `a & b`.\n"
    )
    assert r"z & \textbf{1} \\" in tables.write_latex(_bold_table())
    text = str(tables.write_html(_bold_table(), caption="<b>"))
    assert "<caption>&lt;b&gt;</caption>" in text
    assert '<th scope="col" class="">a_<wbr>b</th><th scope="col" class="num">c|d</th>' in text
    assert '<td class="">&lt;x&gt;|y</td><td class="num">50.0 ± 25.0</td>' in text
    assert '<td class="num"><strong>1</strong></td>' in text
    assert text.endswith('<p class="note">Run <code>a &amp; b</code>.</p>')


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        ((90.0, 87.5, 92.5), "± 2.5"),
        ((90.0, 87.46, 92.54), "± 2.5"),
        ((99.0, 96.0, 100.0), "(96.0 to 100.0)"),
        ((100.0, 43.8, 100.0), "(43.8 to 100.0)"),
        ((0.0, 0.0, 56.2), "(0.0 to 56.2)"),
    ],
)
def test_plus_minus_is_for_symmetric_intervals_alone(
    interval: tuple[float, float, float], text: str
) -> None:
    assert tables.interval_text(*interval) == text
    cell = tables.mean_cell(*(value / 100 for value in interval))
    assert cell.text == f"{interval[0]:.1f} {text}"
    assert cell.ends == pytest.approx(interval[1:])
