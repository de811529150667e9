"""The Flower app carries the files of sites, into their folder and nowhere else."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from dpprobe.site_exchange.agreement import offer_path
from tests.support.script_modules import load_script
from tests.unit.site_exchange.test_messages import open_exchange


@pytest.fixture
def files(repository: Path) -> ModuleType:
    return load_script(repository / "integrations/flower/dpprobe_flower/files.py")


def test_what_sites_write_is_carried_and_nothing_else(files: ModuleType, tmp_path: Path) -> None:
    exchange = open_exchange(tmp_path, "east")
    exchange.folder.mkdir()
    names = {offer_path(exchange.folder, "east").name, exchange.message_path(12, "east").name}
    for name in (*names, "notes.txt", ".sums-1.east.safetensors.partial", "secret.json"):
        (exchange.folder / name).write_bytes(name.encode())
    read = files.read_files(exchange.folder)
    assert set(read) == names
    assert set(files.read_files(exchange.folder, without=names)) == set()
    files.write_files(tmp_path / "other", read)
    assert {path.name for path in (tmp_path / "other").iterdir()} == names


def test_a_file_that_is_there_stays(files: ModuleType, tmp_path: Path) -> None:
    files.write_files(tmp_path, {"sums-1.east.safetensors": b"first"})
    files.write_files(tmp_path, {"sums-1.east.safetensors": b"second"})
    assert (tmp_path / "sums-1.east.safetensors").read_bytes() == b"first"


@pytest.mark.parametrize(
    "name", ["../offer.east.json", "sums-1.a/../../b.safetensors", "secret.json"]
)
def test_no_other_name_is_written(files: ModuleType, tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="not a file of dpprobe's sites"):
        files.write_files(tmp_path / "folder", {name: b"x"})
    assert not list((tmp_path / "folder").iterdir())
