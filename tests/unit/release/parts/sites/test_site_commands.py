"""`dpprobe site keys | sums | combine`: printed text and exit status."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dpprobe.release.parts.sites.several_sites import make_site_key
from dpprobe.release.verification.verify import verify_bundle
from dpprobe.site_exchange.agreement import name_public_key
from tests.support.command_line import run_main
from tests.support.refusals import check_tokens
from tests.support.release_study import study
from tests.support.site_study import TRAIN_ROWS, make_sites

NAMES = ("east", "north", "south")


def write_study(
    folder: Path,
    name: str,
    members: dict[str, str],
    sites: dict[str, Any] | None = None,
    *,
    dataset: dict[str, Any] | None = None,
    release: dict[str, Any] | None = None,
) -> Path:
    values = study(folder / name, method="sums").model_dump(mode="json")
    values["datasets"]["toy"] |= dataset or {}
    alone = values["releases"]["first"]
    asked = {
        "name": name,
        "members": members,
        "key": str(folder / name / "new.pem"),
        "exchange": str(folder / "exchange"),
        **(sites or {}),
    }
    values["releases"] = {"first": {**alone, "sites": asked, **(release or {})}, "alone": alone}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_sites(tmp_path)
    for name in NAMES:
        for split in ("train", "test"):
            place = tmp_path / name / "results/features/toy/pixels" / split
            place.parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / split).rename(place)
    return tmp_path


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int | str | None, str]:
    return run_main(monkeypatch, "site", *words), capsys.readouterr().out


def test_from_keys_to_a_verified_bundle(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    members = {name: f"{place}" * 64 for place, name in enumerate(NAMES)}
    for name in NAMES:
        path = write_study(folder, name, dict(members))
        status, said = run(monkeypatch, capsys, "keys", "first", "--configfile", str(path))
        assert status == 0
        line, told = said.splitlines()
        check_tokens(told, "releases.first.sites.members")
        members[name] = line.removeprefix(f"{name}: ")
        assert (folder / name / "new.pem").stat().st_mode & 0o077 == 0
    assert not (folder / "exchange").exists()
    for name, rows in zip(NAMES, TRAIN_ROWS, strict=True):
        path = write_study(folder, name, members)
        status, said = run(monkeypatch, capsys, "keys", "first", "--configfile", str(path))
        assert (status, said.count(f"{rows} training units, ")) == (0, 1)
    for name in NAMES[:-1]:
        status, said = run(
            monkeypatch, capsys, "sums", "first", "--configfile", str(folder / f"{name}.yaml")
        )
        assert status == 3
        assert said.startswith("dpprobe: waiting: release first: ")
    for name in reversed(NAMES):
        status, said = run(
            monkeypatch, capsys, "combine", "first", "--configfile", str(folder / f"{name}.yaml")
        )
        bundle = folder / name / "results/releases/first"
        assert (status, said.count("\n")) == (0, 1)
        check_tokens(said, bundle, f"dpprobe verify {bundle}")
        assert verify_bundle(bundle).passed


def test_missing_keys_of_a_study_are_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_study(folder, "east", dict.fromkeys(NAMES, "a" * 64))
    status, _ = run(monkeypatch, capsys, "sums", "alone", "--configfile", str(path))
    check_tokens(str(status), "release alone", "`sites`", "first")
    status, _ = run(monkeypatch, capsys, "keys", "first", "--configfile", str(path))
    assert status == 0
    status, _ = run(monkeypatch, capsys, "sums", "first", "--configfile", str(path))
    assert "east, north, south" in str(status) or status == 3


@pytest.mark.parametrize(
    ("action", "changes", "words"),
    [
        ("keys", {"dataset": {"split_by": "class"}}, "dataset toy: split_by: class"),
        ("sums", {"dataset": {"expect": {"classes": 7}}}, "expect.classes: 7, but there are"),
        ("combine", {"release": {"cohort": "2025", "horizon": 4}}, "`cohort`"),
    ],
)
def test_a_site_command_writes_no_files_if_the_study_check_fails(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    action: str,
    changes: dict[str, Any],
    words: str,
) -> None:
    key = folder / "east/new.pem"
    members = dict.fromkeys(NAMES, "a" * 64) | {"east": name_public_key(make_site_key(key))}
    path = write_study(folder, "east", members, **changes)
    status, _ = run(monkeypatch, capsys, action, "first", "--configfile", str(path))
    assert words in str(status)
    assert not (folder / "exchange").exists()
    assert not (folder / "east/data").exists()
