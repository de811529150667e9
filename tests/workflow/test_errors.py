"""A wrong study stops before any job; a killed run loses nothing finished."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from .conftest import Workspace


def test_a_wrong_study_stops_at_once_with_one_line(
    workspace: Workspace, small: dict[str, Any]
) -> None:
    small["methods"]["sgd"]["batch_sizes"] = 3
    result = workspace.run(small, check=False)
    assert result.returncode != 0
    assert "config: methods.sgd.batch_sizes: unknown key" in result.stdout
    assert "Traceback" not in result.stdout
    assert not (workspace.directory / "data").exists()


def test_delta_above_one_over_n_stops_before_any_job(
    workspace: Workspace, small: dict[str, Any]
) -> None:
    small["delta"] = 0.01
    result = workspace.run(small, check=False)
    assert result.returncode != 0
    assert "above 1/n" in result.stdout
    assert not (workspace.directory / "data").exists()


def test_a_study_of_one_s_own_replaces_the_default_one(
    workspace: Workspace, small: dict[str, Any], repository: Path
) -> None:
    # Snakemake would merge a default config.yaml of the working directory into it.
    (workspace.directory / "config.yaml").write_text((repository / "config.yaml").read_text())
    planned = workspace.planned(small, "heads")
    assert planned["train_heads"] == 1
    assert planned["extract_features"] == 4


def test_a_killed_run_resumes_and_leaves_nothing_half_written(
    workspace: Workspace, small: dict[str, Any]
) -> None:
    small["features"]["shards"] = 6
    small["methods"]["full"] = {"head": "sgd", "batch_size": "full", "epochs": None, "steps": 5}
    configfile = workspace.write(small)
    process = subprocess.Popen(
        workspace.command("heads", "--configfile", str(configfile)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    features = workspace.directory / "results/features"
    deadline = time.monotonic() + 120
    while len(list(features.rglob("shard-*.h5"))) < 3:
        assert process.poll() is None, "finished before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    finished = {path: path.stat().st_mtime_ns for path in features.rglob("shard-*.h5")}
    assert 3 <= len(finished) < 12
    workspace.run(small, "--unlock")
    workspace.run(small, "heads", "--rerun-incomplete")
    kept = [path for path, mtime in finished.items() if path.stat().st_mtime_ns == mtime]
    # a shard that was finished but not yet noted down by Snakemake may be made again
    assert len(kept) >= len(finished) - 2
    assert (workspace.cell("sgd", "2") / "metrics.json").is_file()
    assert (workspace.cell("full", "2") / "metrics.json").is_file()
    assert "Nothing to be done" in workspace.run(small, "heads").stdout
    assert not [path for path in workspace.directory.rglob("*staged*") if path.is_dir()]
