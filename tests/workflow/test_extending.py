"""A head, table, figure, analysis, accountant and metric can each be added in one place."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from tests.support.programs import run_program

from .conftest import PREPARED, TIMEOUT, Template, WarmPython, Workspace, copy_code

pytestmark = pytest.mark.slow

FIGURE = "results/figures/digits/accuracy_points"
# An accountant and a metric are added by one line each.
DECLARED = (
    (
        "privacy/accountants.py",
        "ACCOUNTANTS = {\n",
        '    "twice": Accountant("numpy", lambda *of: 2 * _pld_check(*of), in_studies=True),\n',
    ),
    (
        "results/metrics.py",
        "SCALAR_METRICS: dict[str, Callable[[Evaluation], float | None]] = {\n",
        '    "error_rate": lambda of: 1 - of.share(of.right),\n',
    ),
)


def read_code(page: str, heading: str) -> list[str]:
    """Returns the Python code below a heading of the page, until the next heading of its level."""
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```python\n(.*?)^```", section, flags=re.DOTALL | re.MULTILINE)


def insert(path: Path, start: str, line: str) -> None:
    """Inserts a line of the page below the first line of a registry."""
    text = path.read_text()
    assert text.count(start) == 1
    path.write_text(text.replace(start, start + line))


@pytest.fixture(scope="module")
def extended(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a copy of the project with the page's files and lines."""
    folder = copy_code(repository, tmp_path_factory.mktemp("extended"))
    shutil.rmtree(folder / "profiles")  # the default profile is quiet
    page = (repository / "docs/extending.md").read_text()
    package = folder / "src/dpprobe"
    module, line = read_code(page, "Add a head")
    (package / "heads/nearest_mean.py").write_text(module)
    insert(package / "heads/registry.py", "HEADS: dict[str, str] = {\n", line)
    registry = package / "reporting/registry.py"
    for heading, place in (
        ("Add a table", "reporting/best_of_methods.py"),
        ("Add a figure", "reporting/figures/cell_points.py"),
    ):
        module, line = read_code(page, heading)
        assert f"`src/dpprobe/{place}`" in page
        (package / place).write_text(module)
        insert(registry, "STUDY_EXHIBITS: tuple[Exhibit, ...] = (\n", line)
        room, name = Path(place).parent, Path(place).stem
        imported = f"from dpprobe.{'.'.join(room.parts)} import {name}\n"
        insert(registry, "from dpprobe.results.study_files import StudyFiles\n", imported)
    *modules, line = read_code(page, "Add an analysis")
    places = re.findall(r"^`src/dpprobe/(analyses/lengths/\w+\.py)`:$", page, flags=re.MULTILINE)
    for place, module in zip(places, modules, strict=True):
        (package / place).parent.mkdir(exist_ok=True)
        (package / place).write_text(module)
    insert(package / "analysis_registry.py", "ANALYSES: dict[str, Registered] = {\n", line)
    for file, table, entry in DECLARED:
        insert(package / file, table, entry)
    return folder


def run(folder: Path, *words: str) -> str:
    command = [sys.executable, *words]
    result = run_program(
        command if words[0] == "-c" else WarmPython.asked(command),
        joined=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder / "src")},
        timeout=TIMEOUT,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-6000:]
    return result.stdout


def run_study(extended: Path, *targets: str, folder: Path | None = None, dry: bool = False) -> str:
    """Runs the study in a folder, by default in the extended project."""
    folder = folder or extended
    words = ["-m", "snakemake", "--profile", "none", "--cores", "2", "--directory", str(folder)]
    words += ["--configfile", str(folder / "study.yaml"), *["--dry-run"] * dry, "--", *targets]
    return run(extended, *words)


def test_the_example_head_runs_in_a_whole_study(
    extended: Path, small: dict[str, Any], template: Template
) -> None:
    template(Workspace(repository=extended, directory=extended), small, *PREPARED)
    small["methods"] = {"nearest_mean": {"head": "nearest_mean"}, "ceiling": {"head": "nonprivate"}}
    small["epsilons"] = [1, 8, "inf"]
    small["accountant"] = "twice"
    (extended / "study.yaml").write_text(yaml.safe_dump(small))
    run_study(extended, "tables", f"{FIGURE}.svg")
    table = pq.read_table(extended / "results/summary/digits.parquet").to_pandas()
    accuracy = table[table["method"] == "nearest_mean"].groupby("epsilon")["accuracy"].mean()
    assert accuracy[8.0] > 0.8
    assert accuracy[float("inf")] >= accuracy[1.0] > 0.15
    cell = extended / "results/cells/digits/pixels/nearest_mean/eps-1"
    statement = json.loads((cell / "privacy.json").read_text())
    (mechanism,) = statement["mechanisms"]
    assert mechanism["name"] == "class sums and counts"
    assert statement["accountant"].startswith("twice (numpy ")
    assert 0.9 < statement["epsilon_realised"] <= 1
    (pld,) = (each for name, each in statement["checks"].items() if name.startswith("pld"))
    assert pld == pytest.approx(statement["epsilon_realised"] / 2, rel=1e-3)
    assert (table["error_rate"] + table["accuracy"]).tolist() == pytest.approx([1.0] * len(table))
    summary = json.loads((cell / "metrics.json").read_text())["summary"]
    assert summary["error_rate"]["mean"] == pytest.approx(1 - summary["accuracy"]["mean"])
    shown = (extended / "results/tables/digits_best_of_methods.md").read_text()
    assert "| nearest_mean |" in shown
    assert "| ceiling | inf |" in shown
    assert "digits" in (extended / f"{FIGURE}.svg").read_text()
    (extended / f"{FIGURE}.svg").unlink()
    planned = run_study(extended, "results/report.html", dry=True)
    assert "results of all cells of digits" in planned  # needed by the report


def test_the_example_head_has_the_stated_sensitivity_and_noise(extended: Path) -> None:
    check = """
import math
import torch
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.plan import Plan
from dpprobe.heads.registry import method_options

options = method_options({"head": "nearest_mean", "normalize": "none"})
features = torch.randn(30, 5, generator=torch.Generator().manual_seed(0))
features[3], features[4], features[5] = math.nan, 0, 1e30
labels = torch.arange(30) % 3
sums = []
def capture(self, name, values):
    sums.append(values.values[0].clone())
    self.count_releases(name, 1)
    return values.values
heads_releases = __import__("dpprobe.privacy.releases", fromlist=["Releases"]).Releases
heads_releases.release_gaussian = capture
for left_out in range(-1, 30):
    chosen = [row for row in range(30) if row != left_out]
    plan = Plan(
        mechanisms=options.list_mechanisms(len(chosen)), n=len(chosen), epsilon=1.0, delta=1e-5,
        accountant="pld", realised_epsilon=1.0,
    )
    fit_heads(options, TrainingSet(features[chosen].clone(), labels[chosen], 3), plan, [1])
whole, *others = sums
moved = [float((whole - other).norm()) for other in others]
assert max(moved) <= options.list_mechanisms(30)[0].sensitivity, moved
assert moved[3] == moved[5] == 0 and abs(moved[4] - 1) < 1e-6, moved

rows = 5_000
plan = Plan(
    mechanisms=options.list_mechanisms(rows), n=rows, epsilon=1.0, delta=1e-5, accountant="pld",
    realised_epsilon=1.0,
)
for dimension in (1, 2, 3, 16):
    features = 3 * torch.randn(rows, dimension, generator=torch.Generator().manual_seed(dimension))
    # a class of its own for each row: their sums are what the rows add
    fit_heads(options, TrainingSet(features, torch.arange(rows), rows), plan, [1])
    assert float(sums[-1].norm(dim=1).max()) <= plan.mechanisms[0].sensitivity, dimension
"""
    run(extended, "-c", check)


def test_the_example_analysis_runs_in_a_whole_study(
    extended: Path, small: dict[str, Any], template: Template
) -> None:
    folder = extended / "measured"
    folder.mkdir()
    template(Workspace(repository=extended, directory=folder), small, *PREPARED)
    study = folder / "study.yaml"
    study.write_text(yaml.safe_dump(small | {"lengths": {"rows": 500}}))
    assert "lengths of digits, pixels" in run_study(extended, "lengths_digits", folder=folder)
    record = json.loads((folder / "results/lengths/digits/pixels.json").read_text())
    assert len(record["means"]) == 10
    assert all(mean > 0 for mean in record["means"].values())
    table = (folder / "results/tables/digits_lengths.csv").read_text().splitlines()
    assert table[0] == "backbone,class,mean length"
    assert len(table) == 11

    study.write_text(yaml.safe_dump(small | {"lengths": {"rows": 400}}))
    for target in ("lengths", "all"):  # other options repeat the measurement, also within `all`
        planned = run_study(extended, target, folder=folder, dry=True)
        assert "lengths of digits, pixels" in planned
    study.write_text(yaml.safe_dump(small))
    assert "lengths of digits" not in run_study(extended, "all", folder=folder, dry=True)
