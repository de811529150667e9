"""A run prints little while it works, and ends with results, or with each failure's cause."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from PIL import Image

from tests.support.programs import run_program
from tests.workflow.conftest import TIMEOUT, WarmPython, Workspace, count_rules

JOB_LINES = ("Finished jobid", "Job stats", "Reason:", "input:", "output:", "Select jobs", "rule ")


def say(
    workspace: Workspace, study: dict[str, Any], *arguments: str, code: int = 0, cold: bool = False
) -> list[str]:
    """Runs a study like a user, only with profiles/default; returns the printed lines.

    Args:
      cold: True for a newly started Python, which also prints messages during imports.
    """
    words = workspace.command(*arguments, "--configfile", str(workspace.write(study)))
    asked = words.index("--quiet")
    words = words[:asked] + words[asked + 2 :]
    result = run_program(
        words if cold else WarmPython.asked(words), joined=True, timeout=TIMEOUT, check=False
    )
    assert result.returncode == code, result.stdout
    return result.stdout.splitlines()


def test_a_dry_run_says_what_would_run_and_why(workspace: Workspace, small: dict[str, Any]) -> None:
    lines = say(workspace, small, "--dry-run", "heads")
    assert len(lines) < 30
    assert any(line.split() == ["train_heads", "1"] for line in lines)
    assert lines[-2].startswith("why: ")
    lines = say(workspace, small, "--dry-run", "heads", "-p")
    assert count_rules("\n".join(lines))["train_heads"] == 1
    assert "Reason: Missing output files: results/calibration/digits/eps-2.json" in "\n".join(lines)
    assert not any(line.startswith("rule heads") for line in lines), "hundreds of file names"
    short = say(workspace, small, "--dry-run", "heads", "--quiet")
    assert not any(line.startswith("Reason:") for line in short)


def test_a_run_ends_with_the_next_step(workspace: Workspace, small: dict[str, Any]) -> None:
    lines = say(workspace, small, "data", cold=True)
    assert not [line for line in lines if line.strip().startswith(JOB_LINES)]
    assert any(line.startswith("1 of 1 jobs") for line in lines), "how far the run is"
    assert len(lines) < 10, lines
    assert lines[-1].startswith("done; next: dpprobe run --cores all ")
    assert lines[-1].endswith("--configfile study.yaml")
    again = say(workspace, small, "data")
    assert again[-1] == lines[-1]
    assert any("Nothing to be done" in line for line in again)


def test_a_run_from_another_folder_on_the_same_results_is_named(
    workspace: Workspace, small: dict[str, Any], tmp_path: Path
) -> None:
    results = workspace.directory / "results"
    program = (
        "import sys; from pathlib import Path; from dpprobe.files.run_marks import mark_run\n"
        "mark_run([Path(sys.argv[1])]); print(flush=True); sys.stdin.read()"
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", program, str(results)],
        cwd=elsewhere,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        lines = say(workspace, small, "data")
        other.kill()
    told = [line for line in lines if line.startswith("dpprobe: warning: another run works on ")]
    assert len(told) == 1, lines
    assert f"{results} (in {elsewhere}, process {other.pid} on " in told[0]
    assert told[0].endswith("wait for that run, or give each study folders of its own")
    again = say(workspace, small, "data")
    assert not any("another run" in line for line in again)


def test_a_failure_is_reported_once_with_its_cause_last(
    workspace: Workspace, tmp_path: Path
) -> None:
    images = tmp_path / "images"
    for name in ("a", "b"):
        (images / name).mkdir(parents=True)
        for index in range(10):
            Image.new("L", (8, 8), index + 100 * (name == "b")).save(images / name / f"{index}.png")
    (images / "b/3.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    study = {
        "datasets": {"scans": {"source": "imagefolder", "path": str(images), "test_fraction": 0.2}},
        "backbones": {"pixels": {"family": "pixels"}},
        "methods": {"sgd": {"head": "sgd", "batch_size": 8}},
        "epsilons": [1],
        "delta": 1e-3,
    }
    wrong = {**study, "seeds": 0, "methods": {"sgd": {"head": "sgd", "epochs": 0}}}
    assert say(workspace, wrong, "data", code=1)[-2:] == [
        "dpprobe: study.yaml:14: methods.sgd.epochs: 0: must be a number above 0",
        "study.yaml:16: seeds: 0: must be a number of 1 or more",
    ]
    lines = say(workspace, study, "data", code=1)
    assert lines[-1] == "  log: results/logs/prepare_data/scans.log"
    assert lines[-2].startswith("dpprobe: split tables of scans: ")
    assert sum("3.png" in line for line in lines) == 1
    assert sum("split tables of scans: failed; the" in line for line in lines) == 1
    assert not [line for line in lines if "Traceback" in line or "WorkflowError" in line]
