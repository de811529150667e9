"""The report's tables equal those in the files."""

from __future__ import annotations

import pytest

from dpprobe.errors import DataError
from dpprobe.exhibits.tables import save_table, write_markdown
from dpprobe.reporting.report.shown_tables import study_tables
from tests.support.paper_tables import paper_run, table_of
from tests.support.report_page import ReportedStudy

NAMES = ("foundation_features_table2", "features_second_order_headline")


def test_the_tables_equal_those_of_the_files(made: ReportedStudy) -> None:
    run = paper_run(sorted(made.results.glob("cells/*/*/*/*/metrics.json")))
    folder = made.results / "tables/papers"
    for name in NAMES:
        for ending in ("md", "csv", "tex"):
            save_table(table_of(run, name), folder / f"{name}.{ending}")
    apart = made.results / "tables/digits_fairness.md"  # shown in another section
    files = [*made.table_files, apart, *sorted(folder.iterdir())]
    made_again = study_tables(files, made.sources.summaries, run)
    assert len(made_again) == len(list(made.results.glob("tables/**/*.md"))) == 2 + len(NAMES)
    for item in made_again:
        (text,) = (file for file in item.files if file.suffix == ".md")
        assert write_markdown(item.table) == text.read_text(encoding="utf-8")
        assert len(item.files) == (3 if item.folder == "papers" else 2)
    assert [item.dataset for item in made_again] == [None, "digits", None, None]


def test_a_file_of_another_table_is_refused(made: ReportedStudy) -> None:
    with pytest.raises(DataError, match="papers/other.md: not a table of these results"):
        study_tables([made.results / "tables/papers/other.md"], made.sources.summaries, None)
