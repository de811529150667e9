"""A message about a failed job cites a log only if the job wrote one."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from snakemake_logger_plugin_dpprobe.failures import Failures
from tests.conftest import REPOSITORY


def test_a_job_that_never_started_has_no_log_to_read(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    record = {"log": [str(log)], "rule_name": "train_heads", "jobid": 1}
    assert "log" not in Failures().describe_at_once(None, record)
    log.write_text("12:00:00 ERROR x\n")
    assert Failures().describe_at_once(None, record).endswith(f"; log: {log}")


def test_slurm_s_status_cites_a_log_that_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(REPOSITORY / "profiles/slurm"))
    for name in ("scheduler", "answer", "states"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    states = importlib.import_module("states")

    record = {"name": "dpprobe.train.a", "log": "logs/slurm/7.log"}
    monkeypatch.setattr(states.scheduler, "read_record", lambda _: record)
    monkeypatch.setattr(states, "exit_code", lambda _: None)
    told = states.explain("7", states.scheduler.IMPOSSIBLE, "BadConstraints")
    assert told.endswith("it would wait for ever: BadConstraints")
    Path("logs/slurm").mkdir(parents=True)
    Path("logs/slurm/7.log").touch()
    assert states.explain("7", "FAILED", "-").endswith("; log: logs/slurm/7.log")
