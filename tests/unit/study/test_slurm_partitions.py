"""Slurm's partitions are read from a fake `sinfo`."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpprobe.errors import DpprobeError
from dpprobe.study.slurm_partitions import Partitions, ask_partitions, read_partitions

LISTED = """\
mixed|lscratch:100
main*|(null)
mixed|lscratch:100,gpu:a100:4(S:0-1)
  cards|gpu:2
network|gpu_mem:40
"""


def test_partitions_with_gpus_are_known_by_their_nodes_devices() -> None:
    partitions = read_partitions(LISTED)
    assert partitions == Partitions(with_gpus=frozenset({"mixed", "cards"}), default="main")
    assert read_partitions("") == Partitions(with_gpus=frozenset(), default=None)


@pytest.mark.parametrize(
    ("wanted", "named", "has"),
    [
        (None, "main", False),
        ("cards", "cards", True),
        ("main,cards", "main,cards", True),
        ("network", "network", False),
        ("nowhere", "nowhere", False),
    ],
)
def test_a_job_uses_the_named_or_the_default_slurm_partition(
    monkeypatch: pytest.MonkeyPatch, wanted: str | None, named: str, has: bool
) -> None:
    monkeypatch.delenv("SBATCH_PARTITION", raising=False)
    partitions = read_partitions(LISTED)
    assert partitions.name_partition(wanted) == named
    assert partitions.has_gpus(wanted) is has
    assert not read_partitions("").has_gpus(None)
    monkeypatch.setenv("SBATCH_PARTITION", "mixed")
    assert partitions.name_partition(wanted) == wanted or wanted is None
    assert partitions.has_gpus(None), "sbatch reads this variable"


@pytest.fixture
def sinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "sinfo"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return path


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo a line >&2; echo sinfo: fatal: no cluster >&2; exit 1", "fatal: no cluster"),
        ("exit 3", "exit code 3"),
        ("exec sleep 60", "no answer"),
        ("sleep 60; exit 1", "no answer"),
        (None, "command not found"),
        ("\0", "cannot be started: Exec format error"),
    ],
)
def test_why_slurm_does_not_answer(
    sinfo: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, said: str
) -> None:
    monkeypatch.setattr("dpprobe.study.slurm_partitions.TIMEOUT", 0.5)
    sinfo.write_text(script if script == "\0" else f"#!/bin/sh\n{script}\n")
    if script is None:
        monkeypatch.setenv("PATH", "/nowhere")
    if script == "\0":  # otherwise the search in PATH continues
        monkeypatch.setenv("PATH", str(sinfo.parent))
    with pytest.raises(DpprobeError, match=f"^sinfo: {said}"):
        ask_partitions()


def test_a_user_s_wishes_hide_no_partition(sinfo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINFO_PARTITION", "main")
    sinfo.write_text('#!/bin/sh\necho "cards$SINFO_PARTITION*|gpu:2"\n')
    assert ask_partitions() == Partitions(with_gpus=frozenset({"cards"}), default="cards")
