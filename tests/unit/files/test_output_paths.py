"""Output paths given by a user: each command refuses a path that cannot be written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.bundles import write_example
from tests.support.command_line import run_main
from tests.support.shards import png
from tests.support.stored_releases import unpack_release

# Each command's words before the path, and the path's extension.
COMMANDS: dict[str, tuple[str, str]] = {
    "plan": ("plan --n 1000 --classes 3 --epsilon 1 --figure", ".svg"),
    "init": ("init images --force --output", ".yaml"),
    "predict": ("predict bundle images --output", ".csv"),
    "predict, parquet": ("predict bundle images --output", ".parquet"),
    "monitor": ("predict bundle images --monitor --monitor-report", ".json"),
    "explain": ("explain release/clinic_v1 --output", ".md"),
    "export": ("export bundle --onnx", ".onnx"),
    "answers": ("passport release/clinic_v1 --write-answers", ".yaml"),
    "passport": ("passport release/clinic_v1 --published 2026-01-01 --output", ""),
}
# Paths that cannot be written, and the cause that the error gives.
PATHS: dict[str, str] = {
    "link{}": "a link that leads to itself",
    "link{}/x{}": "a link that leads to itself",
    "/dev/null/x{}": "/dev/null: not a folder",
    "/proc/self/x{}": "/proc/self: cannot be written",
    "file/x{}": "file: not a folder",
    "folder{}": "a folder",
    "pipe{}": "a device, a pipe or a socket",
    "y" * 300 + "{}": "too long",
    "folder{}/" + "y" * 300 + "{}": "too long",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outputs")
    write_example(folder / "bundle")
    unpack_release(folder / "release")
    (folder / "file").write_text("no folder")
    for name in ("cat", "dog"):
        (folder / "images" / name).mkdir(parents=True)
        for number in range(10):
            (folder / "images" / name / f"{number}.png").write_bytes(png(number))
    for suffix in {suffix for _, suffix in COMMANDS.values()}:
        (folder / f"link{suffix}").symlink_to(f"link{suffix}")
        (folder / f"folder{suffix}").mkdir()
        (folder / f"folder{suffix}" / "notes").touch()
        os.mkfifo(folder / f"pipe{suffix}")
    return folder


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path[:12])
@pytest.mark.parametrize("command", COMMANDS)
def test_an_output_that_cannot_be_written_is_refused_in_one_line(
    place: Path, monkeypatch: pytest.MonkeyPatch, command: str, path: str
) -> None:
    monkeypatch.chdir(place)
    before = sorted(place.rglob("*"))
    words, suffix = COMMANDS[command]
    line = run_main(monkeypatch, *words.split(), path.format(suffix, suffix))
    assert isinstance(line, str)
    exists = command == "passport" and "is not overwritten" in line
    assert PATHS[path] in line or exists
    assert len(line.splitlines()) == 1
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize("command", ["plan", "init", "predict", "predict, parquet", "explain"])
def test_an_output_of_any_writable_name_is_written(
    place: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """The folder may not exist yet, and the name may be invalid UTF-8."""
    monkeypatch.chdir(place)
    words, suffix = COMMANDS[command]
    output = Path("made", os.fsdecode(b"caf\xe9") + command + suffix)
    assert run_main(monkeypatch, *words.split(), output) == 0
    assert output.stat().st_size > 100
