"""bench/throughput.py: what it measures, what it leaves out, and what the page takes of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import throughput
from dpprobe.errors import DataError
from dpprobe.exhibits.published import read_published
from dpprobe.files.json_files import read_json, write_json
from reproduction import facts
from reproduction.record import read_throughput


def test_every_published_row_has_its_network() -> None:
    numbers = read_published().select_numbers(paper="mehta_2022", table="8")
    rows = {number.row for number in numbers}
    by_row = {network.row: name for name, network in throughput.NETWORKS.items() if network.row}
    assert by_row.keys() == rows
    (entry,) = (e for e in facts.read().entries if (e.paper, e.table) == ("mehta_2022", "8"))
    assert {row: names[0] for row, names in entry.networks.items()} == by_row
    others = {name for names in entry.networks.values() for name in names[1:]}
    assert all(throughput.NETWORKS[name].row is None for name in others)
    assert entry.command is not None
    assert "bench/throughput.py published" in entry.command
    # the page finds a rate by the published column
    assert {number.column for number in numbers} == {*throughput.WAYS, "speed_up"}


def test_a_small_network_is_measured_both_ways(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # in a thread: the import of all libraries in two processes takes longer than the steps
    monkeypatch.setattr(
        throughput, "ProcessPoolExecutor", lambda number, **_: ThreadPoolExecutor(number)
    )
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)  # of this process, for good
    output = tmp_path / "throughput.json"
    write_json(output, {"another": {}})
    words = ["vit_tiny", "--rows", "1", "--rounds", "1", "--batch", "8"]
    throughput.main([*words, "--output", str(output)])
    kept = read_json(output)
    assert set(kept) == {"another", "vit_tiny"}  # what was measured earlier stays
    entry = kept["vit_tiny"]
    assert entry["rates"].keys() == {"full", "last"}
    # the forward pass is a part of the whole step
    assert 0 < entry["rates"]["full"] < entry["rates"]["last"]
    assert (entry["model"], entry["side"], entry["row"]) == ("vit_tiny_patch16_224", 224, None)
    settings = "DP-LAMB, float32, 1 images at once, 8 a step, medians of 1 rounds"
    assert entry["settings"] == settings
    assert entry["machine"].startswith("1 of ")
    assert "last layer over full" in capsys.readouterr().out


def test_work_that_would_take_the_memory_is_refused_before_it_begins() -> None:
    case = throughput.Case("vit_tiny", "full", 1, 1, "cpu", "float32", 1, "lamb")
    throughput.check_memory(1000, case)
    with pytest.raises(RuntimeError, match="takes about 1000000 GB beside activations"):
        throughput.check_memory(10**15, case)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["resnet"], "no network 'resnet'"),
        (["--device", "cuda"], "torch sees no GPU"),
    ],
)
def test_unknown_networks_and_absent_gpus_are_named(
    words: list[str],
    error: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit):
        throughput.main(words)
    assert error in capsys.readouterr().err


def test_energy_is_that_of_whole_packages_and_only_where_it_can_be_read(tmp_path: Path) -> None:
    assert throughput.read_joules(tmp_path) == {}
    energies = {"intel-rapl:0": "2500000", "intel-rapl:1": "7", "intel-rapl:0:0": "9"}
    for name, energy in energies.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(f"{energy}\n")
    assert throughput.read_joules(tmp_path) == {"intel-rapl:0": 2.5, "intel-rapl:1": 7e-6}
    (tmp_path / "intel-rapl:1/energy_uj").write_text("no number")
    assert throughput.read_joules(tmp_path) == {}


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "throughput.json"
    assert read_throughput(path) == {}
    for text in ("no JSON", "[1]", '{"vit": {"model": "m"}}'):
        path.write_text(text)
        with pytest.raises(DataError, match=r"run bench/throughput\.py again"):
            read_throughput(path)
