"""The notebooks of docs/notebooks run offline from the first cell to the last."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import nbformat
import pytest

from tests.support.training_jobs import write_results

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yields a working directory with the results of a small study; closes figures at the end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plt, "show", lambda: None)
    write_results(tmp_path / "results", "1", "4", dataset="digits", backbone="pixels")
    yield tmp_path
    plt.close("all")


def run_cells(notebook: Path) -> list[Any]:
    """Runs all code cells in one namespace; returns the value of each cell's last expression."""
    names: dict[str, Any] = {}
    values = []
    for cell in json.loads(notebook.read_text())["cells"]:
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, notebook.name, "exec"), names)
        if isinstance(last, ast.Expr):
            values.append(eval(compile(ast.Expression(last.value), notebook.name, "eval"), names))
    return values


def test_notebooks_are_valid_hold_no_output_and_link_to_files() -> None:
    """Stored outputs would name the machine, and change with each run."""
    assert [path.stem for path in NOTEBOOKS] == ["quickstart", "study_in_pandas"]
    for notebook in NOTEBOOKS:
        book = nbformat.read(notebook, as_version=4)
        nbformat.validate(book)
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in book.cells)
        text = "".join(cell.source for cell in book.cells if cell.cell_type == "markdown")
        targets = [part.partition(")")[0].partition("#")[0] for part in text.split("](")[1:]]
        assert targets
        assert [name for name in targets if not (notebook.parent / name).is_file()] == []


def test_the_quickstart_runs(place: Path) -> None:
    score, spent, *_, passed, names = run_cells(ROOT / "docs/notebooks/quickstart.ipynb")
    assert score > 0.8
    assert 0.99 < spent.epsilon <= 1
    assert passed is True
    assert len(names) == 5
    assert (place / "releases/digits_v1/privacy.json").is_file()


def test_a_study_is_read_into_pandas() -> None:
    head, table, best, *_, score = run_cells(ROOT / "docs/notebooks/study_in_pandas.ipynb")
    assert head["dataset"].tolist() == ["digits"] * 4
    assert table.columns.tolist() == [1.0, 4.0]
    assert best["method"].tolist() == ["momentum"] * 2
    assert 0 <= score <= 1
