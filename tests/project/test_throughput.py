"""Every published row that bench/throughput.py measures has its network."""

from __future__ import annotations

import throughput
from dpprobe.exhibits.published import read_published
from reproduction import facts


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
    # the page finds a rate by its published column
    assert {number.column for number in numbers} == {*throughput.WAYS, "speed_up"}
