"""A site waits for the others as long as is said, and no longer than its entry counts."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpprobe.errors import PrivacyError, WaitingError
from dpprobe.release.parts.sites import several_sites


@pytest.mark.parametrize(
    ("entries", "minutes", "error", "tries"),
    [
        ([None, None, 1, 1], 1, None, 4),
        ([1, 1, 1], 1, None, 3),
        ([1, None], 1, PrivacyError, 1),
        ([1, 2], 1, PrivacyError, 1),
        ([None, 1, None], 1, PrivacyError, 2),
        ([None, 1, 2], 1, PrivacyError, 2),
        ([None] * 99, 0, WaitingError, 1),
        ([1] * 99, 0.1, WaitingError, 4),
        ([1] * 99, None, WaitingError, 31),
    ],
)
def test_a_run_waits_as_long_as_is_said_and_ends_where_its_entry_is_abandoned(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    entries: list[int | None],
    minutes: float | None,
    error: type[Exception] | None,
    tries: int,
) -> None:
    transport, numbers = object.__new__(several_sites.SeveralSites), iter(entries)
    tried: list[int] = []
    forgotten: list[int] = []
    vars(transport).update(
        task=SimpleNamespace(name="first", forget_agreed=lambda: forgotten.append(1)),
        private=tmp_path / "private",
        folder=tmp_path / "none",
        agreement=1,
        exchange=2,
        options=SimpleNamespace(wait_minutes=1),
        _read_entry=lambda: (number := next(numbers)) and SimpleNamespace(number=number),
    )
    clock = SimpleNamespace(monotonic=lambda: 2.0 * max(0, len(tried) - 1), sleep=lambda _: None)
    monkeypatch.setattr(several_sites, "time", clock)

    def work() -> None:
        tried.append(1)
        if len(tried) < len(entries):
            raise WaitingError("not yet")

    with pytest.raises(error) if error else nullcontext():
        transport.run(work, minutes)
    assert len(tried) == tries
    assert len(forgotten) == tries - (error is not PrivacyError)
    assert bool({"agreement", "exchange"} & vars(transport).keys()) == (not forgotten)
