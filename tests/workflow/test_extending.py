"""A head and an analysis, by the letter of docs/extending.md."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from .conftest import PREPARED, TIMEOUT, Template, Workspace


@pytest.fixture(scope="module")
def extended(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with the page's file and line in it."""
    folder = tmp_path_factory.mktemp("extended")
    for name in ("src", "workflow", "scripts", "envs", "resources"):
        shutil.copytree(repository / name, folder / name)
    shutil.copyfile(repository / "Snakefile", folder / "Snakefile")
    page = (repository / "docs/extending.md").read_text()
    heads, analyses = page.split("# An analysis of your own\n")
    module, line = find_code(heads)
    (folder / "src/dpprobe/heads/nearest_mean.py").write_text(module)
    register(folder / "src/dpprobe/heads/registry.py", "HEADS: dict[str, str] = {\n", line)
    *files, line = find_code(analyses)
    places = re.findall(
        r"^`(src/dpprobe/analyses/lengths/\w+\.py)`:$", analyses, flags=re.MULTILINE
    )
    for place, text in zip(places, files, strict=True):
        (folder / place).parent.mkdir(exist_ok=True)
        (folder / place).write_text(text)
    registry = folder / "src/dpprobe/analysis_registry.py"
    register(registry, "ANALYSES: dict[str, Registered] = {\n", line)
    return folder


def find_code(page: str) -> list[str]:
    """Returns the Python of a page, block by block."""
    return re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)


def register(registry: Path, start: str, line: str) -> None:
    """Puts a line at the start of a registry."""
    text = registry.read_text()
    assert text.count(start) == 1
    registry.write_text(text.replace(start, start + line))


def run(folder: Path, *command: str) -> str:
    result = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-6000:]
    return result.stdout


def test_the_page_s_head_goes_through_the_whole_workflow(
    extended: Path, small: dict[str, Any], template: Template
) -> None:
    template(Workspace(repository=extended, directory=extended), small, *PREPARED)
    small["methods"] = {"nearest_mean": {"head": "nearest_mean"}, "ceiling": {"head": "nonprivate"}}
    small["epsilons"] = [1, 8, "inf"]
    (extended / "study.yaml").write_text(yaml.safe_dump(small))
    run(
        extended, "-m", "snakemake", "--profile", "none", "--cores", "2", "tables",
        "--configfile", "study.yaml",
    )  # fmt: skip
    table = pq.read_table(extended / "results/summary/digits.parquet").to_pandas()
    accuracy = table[table["method"] == "nearest_mean"].groupby("epsilon")["accuracy"].mean()
    assert accuracy[8.0] > 0.8
    assert accuracy[float("inf")] >= accuracy[1.0] > 0.15
    cell = extended / "results/cells/digits/pixels/nearest_mean/eps-1"
    statement = json.loads((cell / "privacy.json").read_text())
    (mechanism,) = statement["mechanisms"]
    assert mechanism["name"] == "class sums and counts"
    assert statement["epsilon_realised"] <= 1


def test_the_page_s_head_keeps_the_promises_it_makes(extended: Path) -> None:
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
    self.count(name, 1)
    return values.values
heads_releases = __import__("dpprobe.privacy.releases", fromlist=["Releases"]).Releases
heads_releases.gaussian = capture
for left_out in range(-1, 30):
    chosen = [row for row in range(30) if row != left_out]
    plan = Plan(
        mechanisms=options.mechanisms(len(chosen)), n=len(chosen), epsilon=1.0, delta=1e-5,
        accountant="pld", realised_epsilon=1.0,
    )
    fit_heads(options, TrainingSet(features[chosen].clone(), labels[chosen], 3), plan, [1])
whole, *others = sums
moved = [float((whole - other).norm()) for other in others]
assert max(moved) <= options.mechanisms(30)[0].sensitivity, moved
assert moved[3] == moved[5] == 0 and abs(moved[4] - 1) < 1e-6, moved

rows = 5_000
plan = Plan(
    mechanisms=options.mechanisms(rows), n=rows, epsilon=1.0, delta=1e-5, accountant="pld",
    realised_epsilon=1.0,
)
for dimension in (1, 2, 3, 16):
    features = 3 * torch.randn(rows, dimension, generator=torch.Generator().manual_seed(dimension))
    # a class of its own for each row: their sums are what the rows add
    fit_heads(options, TrainingSet(features, torch.arange(rows), rows), plan, [1])
    assert float(sums[-1].norm(dim=1).max()) <= plan.mechanisms[0].sensitivity, dimension
"""
    run(extended, "-c", check)


def test_the_page_s_analysis_goes_through_the_whole_workflow(
    extended: Path, small: dict[str, Any], template: Template
) -> None:
    template(Workspace(repository=extended, directory=extended), small, *PREPARED)
    small["lengths"] = {"rows": 500}
    (extended / "study.yaml").write_text(yaml.safe_dump(small))
    command = ("-m", "snakemake", "--profile", "none", "--cores", "2")
    printed = run(extended, *command, "lengths_digits", "--configfile", "study.yaml")
    assert "lengths of digits, pixels" in printed
    record = json.loads((extended / "results/lengths/digits/pixels.json").read_text())
    assert len(record["means"]) == 10
    assert all(mean > 0 for mean in record["means"].values())
    table = (extended / "results/tables/digits_lengths.csv").read_text().splitlines()
    assert table[0] == "backbone,class,mean length"
    assert len(table) == 11
    small["lengths"] = {"rows": 400}
    (extended / "study.yaml").write_text(yaml.safe_dump(small))
    planned = run(extended, *command, "-n", "lengths", "--configfile", "study.yaml")
    assert "lengths of digits, pixels" in planned, "another option measures again"
    planned = run(extended, *command, "-n", "all", "--configfile", "study.yaml")
    assert "lengths of digits, pixels" in planned, "part of `all` where asked for"
    del small["lengths"]
    (extended / "study.yaml").write_text(yaml.safe_dump(small))
    assert "lengths of digits" not in run(
        extended, *command, "-n", "all", "--configfile", "study.yaml"
    )
