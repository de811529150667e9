"""Times of Snakemake's benchmarks."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpprobe.errors import DataError
from dpprobe.results.benchmark_times import read_benchmark

HEAD = "s\tmax_rss\tcpu_time\n"


def test_a_benchmark_is_the_mean_of_its_repetitions(tmp_path: Path) -> None:
    path = tmp_path / "job.tsv"
    path.write_text(f"{HEAD}2.0\t1\t7\n4.0\t1\t9\n")
    assert read_benchmark(path, "s") == 3.0
    assert read_benchmark(path, "cpu_time") == 8.0
    for text in ("", HEAD, f"{HEAD}many\t1\t2\n", "h:m:s\n1\n"):
        path.write_text(text)
        with pytest.raises(DataError, match=r"job\.tsv: not a benchmark"):
            read_benchmark(path, "s")
