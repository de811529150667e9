"""The record of a fine-tuned network."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpprobe.files.plain_files import sha256_file
from dpprobe.results import network_record as networks
from dpprobe.results.cell_record import CellName


def _write_network(folder: Path) -> None:
    folder.mkdir()
    for name in networks.PAYLOAD_FILES:
        (folder / name).write_text(name)
    record = networks.NetworkRecord(
        cell=CellName(dataset="d", backbone="b", method="m", epsilon="1"),
        index=0,
        fingerprint="f",
        device="cpu",
        options={},
        chosen={},
        trained=3,
        steps=1,
        seconds=1.0,
        files={name: sha256_file(folder / name) for name in networks.PAYLOAD_FILES},
    )
    record.write(*(folder / name for name in networks.NETWORK_FILES))


@pytest.mark.parametrize("name", networks.NETWORK_FILES)
def test_a_network_is_whole_with_each_of_its_files(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "seed-0"
    _write_network(folder)
    assert networks.whole_network_record(folder) is not None
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-1])
    assert networks.whole_network_record(folder) is None
    assert [name in line for line in caplog.messages] == [True], "damage is told, by its file"
    caplog.clear()
    (folder / name).unlink()
    assert networks.whole_network_record(folder) is None
    assert caplog.messages == [], "a network that was not trained yet is no damage"


def test_each_seed_has_its_folder() -> None:
    folder = networks.network_folder("r/networks", ("d", "b", "m", "0.5"), 2)
    assert folder == Path("r/networks/d/b/m/eps-0.5/seed-2")
