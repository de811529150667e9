"""Job scripts do not import heavy libraries without need, which would slow every job's start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cell_files import write_dataset_info
from tests.support.training_jobs import make_job, plan_job
from tests.unit.training.test_head_job import METHODS, ROWS, write_features

HEAVY = {"torch", "numba", "opacus", "sklearn", "pandas", "matplotlib", "mlflow", "timm", "PIL"}
# Runs a script like Snakemake, and then prints the modules of the process.
PROGRAM = """
import json, runpy, sys
from snakemake.iocontainers import Namedlist
from types import SimpleNamespace
given = json.loads(sys.argv[2])
named = {key: Namedlist(fromdict=given[key]) for key in ("input", "output", "params", "wildcards")}
job = SimpleNamespace(**named, config=given["config"], log=[given["log"]], threads=1, rule="")
runpy.run_path(sys.argv[1], init_globals={"snakemake": job}, run_name="__main__")
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""
STUDY = {
    "study": "unit",
    "datasets": {"toy": {"source": "sklearn", "name": "digits"}},
    "backbones": {"none": {"family": "pixels"}},
    "methods": {name: {"head": options.head} for name, options in METHODS.items()},
    "epsilons": [4],
    "seeds": 2,
    "delta": 1e-4,
}
PRIVACY = {"delta": 1e-4, "accountant": "pld", "mode": "benchmark", "unit": "image"}


def run_script(repository: Path, name: str, folder: Path, **given: Any) -> set[str]:
    """Runs a job's script in a new Python; returns the packages that the script imported."""
    study = STUDY | {"results_dir": str(folder), "data_dir": str(folder / "data")}
    values = {"config": study, "log": str(folder / "logs/job.log"), "output": {}} | given
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(repository / "scripts" / name), json.dumps(values)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return set(json.loads(finished.stdout.splitlines()[-1]))


@pytest.fixture
def params() -> dict[str, Any]:
    methods = {name: options.model_dump(mode="json") for name, options in METHODS.items()}
    privacy = PRIVACY | {"patients": None}
    return {"methods": methods, "privacy": privacy, "memory_mb": 1000, "seeds": 2}


def test_a_training_job_imports_torch_only_to_train(
    repository: Path, tmp_path: Path, calibration: Path, params: dict[str, Any]
) -> None:
    write_features(tmp_path)
    plans = plan_job(make_job(methods=METHODS), ROWS["train"], tmp_path / "plans.json", calibration)
    given = {
        "input": {split: str(tmp_path / split / "manifest.json") for split in ROWS}
        | {"plans": str(plans)},
        "params": params,
        "wildcards": {"dataset": "toy", "backbone": "none", "epsilon": "4"},
    }
    trained = run_script(repository, "train_heads.py", tmp_path, **given)
    assert {"torch", "numba"} <= trained
    unneeded = {"opacus", "dp_accounting", "sklearn", "matplotlib", "mlflow", "timm", "PIL"}
    assert trained & unneeded == set()
    assert len(list(tmp_path.glob("cells/toy/none/*/eps-4/metrics.json"))) == len(METHODS)
    reused = run_script(repository, "train_heads.py", tmp_path, **given)
    assert reused & (HEAVY | {"pyarrow", "dp_accounting"}) == set()
    log = (tmp_path / "logs/job.log").read_text()
    assert log.count("reused, because nothing that it depends on has changed") == len(METHODS)


def test_a_calibration_imports_numpy_scipy_and_an_accountant(
    repository: Path, tmp_path: Path, params: dict[str, Any]
) -> None:
    write_dataset_info(tmp_path / "dataset.json")
    plans = tmp_path / "calibration/toy/eps-4.json"
    imported = run_script(
        repository,
        "calibrate.py",
        tmp_path,
        input={"info": str(tmp_path / "dataset.json")},
        output={"plans": str(plans)},
        params=params,
        wildcards={"dataset": "toy", "epsilon": "4"},
    )
    assert {"numpy", "scipy", "dp_accounting"} <= imported
    assert imported & (HEAVY | {"pyarrow", "h5py"}) == set()
    sampled = json.loads(plans.read_text())["methods"]["small"]["plan"]
    assert any(name.startswith("prv (opacus ") for name in sampled["checks"])
