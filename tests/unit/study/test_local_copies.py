"""Folders of local copies have the paths of Snakemake 9.27 and its plugins fs and s3."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpprobe.study.local_copies import VARIABLE, enter_copies, leave_copies, note_copies


@pytest.mark.parametrize(
    ("provider", "prefix", "copies"),
    [
        ("fs", "/mnt/bucket", ".snakemake/storage/fs/mnt/bucket"),
        ("s3", "s3://bucket/folder/", ".snakemake/storage/s3/bucket/folder"),
        ("fs", "", ".snakemake/storage/fs"),
    ],
)
def test_a_providers_copies_are_below_its_name_and_prefix(
    monkeypatch: pytest.MonkeyPatch, provider: str, prefix: str, copies: str
) -> None:
    monkeypatch.setenv(VARIABLE, "")  # restored after the test
    note_copies(Path(".snakemake/storage"), provider, prefix)
    assert enter_copies("results") == f"{copies}/results"
    assert leave_copies(Path(copies, "results")) == Path("results")


def test_folders_keep_their_paths_without_a_storage_provider(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert enter_copies("results") == "results"
    assert leave_copies(Path("results")) == Path("results")
