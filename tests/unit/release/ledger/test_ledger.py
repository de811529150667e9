"""The ledger books releases before noise is drawn, detects edits, and adds up epsilons."""

from __future__ import annotations

import itertools
import json
import math
import multiprocessing
import os
import re
import signal
import stat
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpprobe.errors import DataError, DiskError, DpprobeError, PrivacyError, WaitingError, may_pass
from dpprobe.json_values import canonical_json, hash_value
from dpprobe.privacy.accountants import compute_epsilon, gaussian_epsilon
from dpprobe.privacy.limits import round_up
from dpprobe.privacy.noise_calibration import calibrate
from dpprobe.privacy.plan import Mechanism, Plan, Selection
from dpprobe.privacy.risk import Risk
from dpprobe.privacy.target import Target
from dpprobe.release.ledger import ledger_file, ledger_prices
from dpprobe.release.ledger.ledger import Ledger, describe_ledger
from dpprobe.release.ledger.ledger_file import Booking, Part, Side
from dpprobe.release.ledger.ledger_limits import Limits
from dpprobe.release.ledger.ledger_prices import Spent, compose_bookings
from tests.support.mechanisms import exact_epsilon, gaussians
from tests.support.refusals import check_tokens, refusal_of, refuses

DELTA = 1e-5
FREE = Limits(delta=DELTA)
DIGEST = "d" * 64
FORK = multiprocessing.get_context("fork")


def gaussian(sigma: float, count: int = 1, name: str = "gradients") -> Mechanism:
    return replace(gaussians(sigma, count=count, name=name), sensitivity=2.0)


def part(side: Side, *mechanisms: Mechanism, selection: Selection | None = None) -> Part:
    price = compute_epsilon(mechanisms, DELTA, "pld", selection=selection)
    return Part(side=side, mechanisms=mechanisms, selection=selection, epsilon=price, delta=DELTA)


def booking(
    release: str = "lesions_v1", *parts: Part, unit: str = "image", split: str = "hash_20"
) -> Booking:
    return Booking(
        release=release,
        study="clinic",
        unit=unit,
        split=split,
        identity="i" * 64,
        parts=parts or (part("train", gaussian(5.0)),),
    )


def mu_epsilon(*sigmas: float) -> float:
    """Returns the exact epsilon of Gaussian mechanisms, from the definition."""
    return round_up(gaussian_epsilon(math.sqrt(sum(s**-2 for s in sigmas)), DELTA))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.of_dataset(tmp_path, "lesions")


@pytest.fixture
def three_lines(ledger: Ledger) -> Ledger:
    """Returns a ledger with an abandoned and an open entry; the reason has two-byte letters."""
    ledger.book_release(booking("first"), FREE)
    ledger.abandon_entry(1, "der Rechner fiel aus, nichts verließ ihn")
    ledger.book_release(booking("second"), FREE)
    return ledger


def test_another_process_reads_a_booking(ledger: Ledger) -> None:
    selection = Selection(mean=10, repeated=("gradients",))
    mechanisms = gaussian(20.0), gaussian(50.0, name="centre")
    plan = Plan(
        mechanisms=mechanisms,
        n=10**4,
        epsilon=2.0,
        delta=DELTA,
        accountant="pld",
        selection=selection,
        realised_epsilon=1.9,
    )
    tuned = Part(side="train", mechanisms=mechanisms, selection=selection, epsilon=1.9, delta=DELTA)
    assert Part.from_plan("train", plan) == tuned
    asked = replace(
        booking("tuned", tuned, part("test", gaussian(9.0, name="correct")), unit="patient"),
        column="who",
        same_units_as="other",
        place="lesions/tuned 1",
        sites="agreement",
    )
    entry = ledger.book_release(asked, FREE, datasets=["other"])
    assert entry.booking == asked
    assert (entry.number, entry.state) == (1, "open")
    assert Ledger(ledger.path).read_entries() == [entry]
    assert ledger.entry_of("tuned") == entry
    assert ledger.entry_of("other") is None
    assert ledger.entry_of("tune") is None


def test_the_limit_is_met_to_its_last_digit_and_not_exceeded(ledger: Ledger) -> None:
    limit = mu_epsilon(5.0, 5.0)
    ledger.book_release(booking("first"), Limits(delta=DELTA, max_epsilon=limit))
    ledger.close_entry(1, DIGEST)
    ledger.book_release(booking("second"), Limits(delta=DELTA, max_epsilon=limit))
    small = booking("third", part("train", gaussian(1000.0)))
    with refuses(PrivacyError, "third", f"max_epsilon {limit:g}"):
        ledger.book_release(small, Limits(delta=DELTA, max_epsilon=limit))
    ledger.book_release(small, FREE)
    assert len(ledger.read_entries()) == 3


@pytest.mark.parametrize("booked_first", [True, False])
def test_the_limit_of_a_joined_dataset_holds_at_its_own_delta(
    ledger: Ledger, booked_first: bool
) -> None:
    """`same_units_as` gives both datasets one total, with or without an earlier release."""
    moles = Ledger.of_dataset(ledger.path.parents[1], "moles")
    if booked_first:
        ledger.book_release(booking("first"), FREE)
    asked = replace(booking("second"), same_units_as="lesions")
    sigmas = [5.0] * (1 + booked_first)
    delta = 1e-8
    mu = math.sqrt(sum(sigma**-2 for sigma in sigmas))
    for room, fits in ((0.999, False), (1.001, True)):
        limit = Limits(delta=delta, max_epsilon=room * gaussian_epsilon(mu, delta))
        joined = {"lesions": limit, "unrelated": Limits(delta=DELTA, max_epsilon=0.01)}
        said = refusal_of(moles.check_room, asked, FREE, joined_limits=joined)
        assert (said is None) == fits
        if said is not None:
            check_tokens(str(said), "'second'", "max_epsilon", ledger.path, f"delta {delta:g}")
            with refuses(PrivacyError, "'second'", ledger.path):
                moles.book_release(asked, FREE, datasets=["lesions"], joined_limits=joined)
    moles.book_release(asked, FREE, datasets=["lesions"], joined_limits=joined)


@pytest.mark.parametrize("linked", ["lesions", "lesions/ledger.jsonl"])
def test_a_dataset_has_its_ledger_in_one_place(tmp_path: Path, linked: str) -> None:
    """Next to the link are other ledgers than next to its target."""
    far = Ledger.of_dataset(tmp_path / "far", "lesions")
    far.book_release(booking("first"), FREE)
    near = tmp_path / "near" / linked
    near.parent.mkdir(parents=True)
    near.symlink_to(tmp_path / "far" / linked)
    ledger = Ledger.of_dataset(tmp_path / "near", "lesions")
    for call in (ledger.book_release, ledger.check_room):
        with refuses(PrivacyError, near, tmp_path / "far" / linked, "move"):
            call(booking("second"), FREE)
    (tmp_path / "whole").symlink_to(tmp_path / "far")
    Ledger.of_dataset(tmp_path / "whole", "lesions").book_release(booking("second"), FREE)
    assert len(far.read_entries()) == 2


LOOSE: dict[str, Any] = {"max_epsilon": 100.0, "max_risk": Risk.from_dict({"advantage": 0.99})}
TIGHT: dict[str, Any] = {
    "max_epsilon": mu_epsilon(5.0),
    "max_risk": Risk.from_dict({"advantage": 0.08}),
}


@pytest.mark.parametrize("target", [1.0, 1.9])
def test_a_release_that_asks_for_the_whole_limit_is_booked(ledger: Ledger, target: float) -> None:
    """Plan and ledger compute epsilon on grids that may differ."""
    sampled = replace(gaussian(1.0, count=60), sample_rate=0.02)
    asked = Target(n=5000, epsilon=target, delta=DELTA)
    plan = calibrate([sampled], asked, cache=ledger.path.parent / "calibration")
    train = Part(
        side="train", mechanisms=plan.mechanisms, epsilon=plan.realised_epsilon, delta=DELTA
    )
    limits = Limits(delta=DELTA, max_epsilon=plan.realised_epsilon)
    ledger.book_release(booking("whole", train), limits)
    assert 0.99 * target <= ledger.compute_spent(DELTA).epsilon <= target


@pytest.mark.parametrize("number", [6, 7])
def test_many_splits_are_searched_and_beyond_all_parts_are_summed(number: int) -> None:
    sides = part("train", gaussian(9.0)), part("test", gaussian(10.0))
    spent = compose_bookings([booking(str(i), *sides, split=str(i)) for i in range(number)], DELTA)
    paid = [9.0] * 6 if number == 6 else [9.0, 10.0] * 7
    assert spent.epsilon == mu_epsilon(*paid)
    assert spent.exact == (number == 6)


def test_the_sum_is_at_the_delta_that_is_asked(ledger: Ledger) -> None:
    ledger.book_release(booking(), FREE)
    spent = [ledger.compute_spent(delta).epsilon for delta in (1e-3, DELTA, 1e-9)]
    assert spent[0] < spent[1] < spent[2]
    with refuses(PrivacyError, "delta 1e-11", "1e-10 to 1"):
        ledger.compute_spent(1e-11)
    whole = part("train", gaussian(5.0))
    with refuses(PrivacyError, "epsilon inf"):
        replace(whole, epsilon=math.inf)
    with pytest.raises(PrivacyError, match="delta 1e-11"):
        replace(whole, delta=1e-11)


def test_a_private_file_only_grows_and_each_line_holds_the_hash_of_the_last(ledger: Ledger) -> None:
    written = [b""]
    umask = os.umask(0)
    try:
        ledger.book_release(booking(), FREE)
    finally:
        os.umask(umask)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in ledger.path.parent.iterdir()}
    assert modes == {"ledger.jsonl": 0o600, "ledger.lock": 0o600}
    written.append(ledger.path.read_bytes())
    ledger.close_entry(1, DIGEST)
    written.append(ledger.path.read_bytes())
    assert all(b.startswith(a) and b.endswith(b"\n") for a, b in itertools.pairwise(written))
    first, second = (json.loads(line) for line in written[-1].splitlines())
    assert first["previous"] == "0" * 64
    assert second["previous"] == first["hash"]
    assert {first["format"], second["format"]} == {"dpprobe-ledger"}
    assert [first["event"], second["event"]] == ["book", "close"]


def test_reading_a_ledger_creates_no_files(ledger: Ledger) -> None:
    assert ledger.read_entries() == []
    assert not ledger.path.parent.exists()
    with pytest.raises(DataError, match=r"ledger\.lock: No such file"):
        ledger.abandon_entry(1, "a name that was mistyped")
    assert not ledger.path.parent.exists()


def test_every_altered_byte_is_noticed(three_lines: Ledger) -> None:
    whole = three_lines.path.read_bytes()
    for place, byte in enumerate(whole):
        # the lowest bit flipped and, in turn, another case (of an exponent), a newline, a space ...
        turn = (byte ^ 0x80, byte ^ 0x20, ord("\n"), byte ^ 0x20, ord(" "), byte ^ 0x20, 0)
        for other in {byte ^ 1, turn[place % len(turn)]} - {byte}:
            altered = bytearray(whole)
            altered[place] = other
            three_lines.path.write_bytes(altered)
            with refuses(DataError, three_lines.path, "backup"):
                three_lines.read_entries()
    line = len(whole.splitlines()[0]) + 1
    three_lines.path.write_bytes(whole[: line - 9] + b"x" + whole[line - 8 :])
    with pytest.raises(DataError, match=r"ledger\.jsonl, line 1: damaged"):
        three_lines.book_release(booking("third"), FREE)


def test_missing_duplicate_and_swapped_ledger_lines_are_detected(three_lines: Ledger) -> None:
    a, b, c = three_lines.path.read_bytes().splitlines(keepends=True)
    for lines in ([b, c], [a, c], [a, a, b, c], [a, c, b], [a, b"\n", b, c], [a, b, c, c]):
        three_lines.path.write_bytes(b"".join(lines))
        with pytest.raises(DataError, match="damaged"):
            three_lines.read_entries()
    # The known limit: whole lines that are cut off at the end leave a shorter ledger.
    three_lines.path.write_bytes(a)
    assert [entry.state for entry in three_lines.read_entries()] == ["open"]


def test_a_record_that_does_not_fit_is_refused_though_its_hashes_are_right(
    three_lines: Ledger,
) -> None:
    whole = three_lines.path.read_bytes()
    last = json.loads(whole.splitlines()[-1])
    (first,) = last["booking"]["parts"]
    parts: list[Any] = [3, [3], *([first | {"epsilon": each}] for each in (0, -1.0))]

    def append(**changes: Any) -> None:
        record = {**last, "previous": last["hash"], **changes}
        del record["hash"]
        line = canonical_json({**record, "hash": hash_value(record)}).encode()
        three_lines.path.write_bytes(whole + line + b"\n")

    cases: Any = (
        {"number": 2},
        {"number": 4},
        {"event": "close", "number": 1, "digest": DIGEST},
        {"event": "close", "number": 9, "digest": DIGEST},
        {"event": "send", "number": 1},
        {"event": "send", "number": 2},
        {"event": "other"},
        *(
            {"number": 3, "booking": each}
            for each in ({}, 3, *(last["booking"] | {"parts": each} for each in parts))
        ),
    )
    for changes in cases:
        append(**changes)
        with pytest.raises(DataError, match="line 4: damaged"):
            three_lines.read_entries()
    three_lines.path.write_bytes(whole)
    three_lines.close_entry(2, DIGEST)
    whole = three_lines.path.read_bytes()
    last = json.loads(whole.splitlines()[-1])
    append(event="abandon", reason="which somebody may have seen")
    with refuses(DataError, "line 5", "'abandon'", "entry 2"):
        three_lines.read_entries()
    for version in (0, 3):
        append(event="book", number=3, format_version=version)
        with refuses(DataError, "line 5", f"version {version}", "1 or 2"):
            three_lines.read_entries()


def test_a_line_cut_at_every_length_is_as_if_never_written(
    three_lines: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """A crash between the write and the flush may leave any prefix of the line."""
    before = three_lines.path.read_bytes()
    three_lines.book_release(booking("third"), FREE)
    line = three_lines.path.read_bytes()[len(before) :]
    for length in range(1, len(line) - 1):
        three_lines.path.write_bytes(before + line[:length])
        assert [entry.number for entry in three_lines.read_entries()] == [1, 2]
    for length in (1, 100, len(line) - 2):
        three_lines.path.write_bytes(before + line[:length])
        caplog.clear()
        entry = three_lines.book_release(booking("other"), FREE)
        assert entry.number == 3
        check_tokens(caplog.text, three_lines.path, "last line")
        assert three_lines.path.read_bytes().startswith(before)
        assert [entry.booking.release for entry in three_lines.read_entries()][2:] == ["other"]
    # A file system may reserve blocks without writing them: they contain zeros.
    three_lines.path.write_bytes(before + bytes(512))
    assert len(three_lines.read_entries()) == 2
    three_lines.path.write_bytes(b'{"booking":{"id')  # the first line may be torn too
    assert three_lines.read_entries() == []
    assert three_lines.book_release(booking(), FREE).number == 1
    assert len(three_lines.read_entries()) == 1


def test_a_line_without_its_newline_counts(
    three_lines: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """The line may be a booking whose newline was damaged: counting it errs on the safe side."""
    whole = three_lines.path.read_bytes()
    three_lines.path.write_bytes(whole[:-1])
    assert len(three_lines.read_entries()) == 2
    three_lines.close_entry(2, DIGEST)
    assert three_lines.path.read_bytes().startswith(whole)
    assert [entry.state for entry in three_lines.read_entries()] == ["abandoned", "closed"]
    assert caplog.text == ""


def test_a_damaged_last_line_without_its_newline_is_refused(three_lines: Ledger) -> None:
    """It may be a booking, so it must not be removed like a line that a crash cut short."""
    whole = three_lines.path.read_bytes()
    at = whole.rindex(b"second")
    for damaged in (0xFF, ord("S")):
        three_lines.path.write_bytes(whole[:at] + bytes([damaged]) + whole[at + 1 : -1])
        before = three_lines.path.read_bytes()
        with refuses(DataError, three_lines.path, "line 3", "backup"):
            three_lines.book_release(booking("other"), FREE)
        assert three_lines.path.read_bytes() == before


def test_a_booking_is_on_the_disk_before_it_returns(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[tuple[str, int]] = []

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        flushed.append((path.name, path.stat().st_size if path.is_file() else 0))

    monkeypatch.setattr(os, "fsync", fsync)
    ledger.book_release(booking(), FREE)
    size = ledger.path.stat().st_size
    assert [name for name, _ in flushed] == [ledger.path.parents[1].name, "ledger.jsonl", "lesions"]
    assert flushed[1] == ("ledger.jsonl", size)


def test_a_full_disk_adds_no_ledger_entry(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.book_release(booking("first"), FREE)
    write = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda descriptor, text: write(descriptor, text[:40]))
        with refuses(DiskError, ledger.path):
            ledger.book_release(booking("second"), FREE)
    assert [entry.booking.release for entry in ledger.read_entries()] == ["first"]
    assert ledger.book_release(booking("second"), FREE).number == 2


def slowly(bookings: Sequence[Booking], delta: float) -> Spent:
    """Composes after a pause, in which a second writer could book if the lock did not stop it."""
    time.sleep(0.2)
    return compose_bookings(bookings, delta)


def _book(path: Path, name: str, limit: float, start: Any, results: Any) -> None:
    ledger_prices.compose_bookings = slowly
    start.wait()
    try:
        Ledger(path).book_release(booking(name), Limits(delta=DELTA, max_epsilon=limit))
        results.put("booked")
    except PrivacyError as error:
        results.put(str(error))


def test_of_two_processes_at_once_a_limit_for_one_admits_one(ledger: Ledger) -> None:
    start, results = FORK.Barrier(2), FORK.Queue()
    workers = [
        FORK.Process(target=_book, args=(ledger.path, name, mu_epsilon(5.0), start, results))
        for name in ("first", "second")
    ]
    for worker in workers:
        worker.start()
    said = sorted((results.get(timeout=60) for _ in workers), key=len)
    for worker in workers:
        worker.join()
    assert said[0] == "booked"
    assert "above max_epsilon" in said[1]
    assert len(ledger.read_entries()) == 1


def test_threads_of_one_process_wait_for_each_other(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_prices, "compose_bookings", slowly)
    refused = []

    def book(name: str) -> None:
        try:
            ledger.book_release(booking(name), Limits(delta=DELTA, max_epsilon=mu_epsilon(5.0)))
        except PrivacyError as error:
            refused.append(error)

    threads = [threading.Thread(target=book, args=(str(i),)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 2
    assert len(ledger.read_entries()) == 1


def _die_after_writing(path: Path, flushed: bool) -> None:
    """Books a release and kills the process right before or right after the line is flushed."""
    fsync = os.fsync

    def die(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == path:
            if flushed:
                fsync(descriptor)
            os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = die  # type: ignore[assignment]
    Ledger(path).book_release(booking("killed"), FREE)


@pytest.mark.parametrize("flushed", [False, True])
def test_a_killed_booking_frees_the_lock_and_counts_once_its_line_is_whole(
    ledger: Ledger, flushed: bool
) -> None:
    worker = FORK.Process(target=_die_after_writing, args=(ledger.path, flushed))
    worker.start()
    worker.join(timeout=60)
    assert worker.exitcode == -signal.SIGKILL
    (entry,) = ledger.read_entries()
    assert (entry.booking.release, entry.state) == ("killed", "open")
    assert ledger.book_release(booking("next"), FREE).number == 2


# Printed entries and totals of a ledger, and the changes that a user may make.


REASON = "the job died before its noise"


@pytest.mark.parametrize("reason", ["", "1234", " 1234 ", "two\nlines", "tab\there", "\x1b[2Jx"])
def test_a_reason_is_one_printable_line_of_five_characters(ledger: Ledger, reason: str) -> None:
    ledger.book_release(booking(), FREE)
    with refuses(PrivacyError, "5 characters"):
        ledger.abandon_entry(1, reason)
    assert ledger.read_entries()[0].state == "open"
    ledger.abandon_entry(1, " 12345 ")
    assert ledger.read_entries()[0].reason == "12345"


def test_an_entry_that_is_not_there_or_not_open_is_named(ledger: Ledger) -> None:
    for name in ("first", "second"):
        ledger.book_release(booking(name), FREE)
    ledger.close_entry(1, "d" * 64)
    ledger.abandon_entry(2, REASON)
    folder = str(ledger.path.parent)
    with refuses(PrivacyError, ledger.path, "entry 3", f"`dpprobe ledger {folder}`"):
        ledger.close_entry(3, "d" * 64)
    for call, given in ((ledger.abandon_entry, REASON), (ledger.close_entry, "e" * 64)):
        check_tokens(str(refusal_of(call, 1, given)), "entry 1", "closed", "d" * 64)
        check_tokens(str(refusal_of(call, 2, given)), "entry 2", "abandoned", REASON)
    before = ledger.path.read_bytes()
    ledger.close_entry(1, "d" * 64)  # twice with one digest
    assert ledger.path.read_bytes() == before


def test_sums_that_were_sent_count_for_good(ledger: Ledger) -> None:
    """Entries of version 1 do not say whether sums were sent, so they count as if sent."""
    for number, name in enumerate(("sent", "unsent", "alone"), start=1):
        sites = None if name == "alone" else "agreement"
        assert not ledger.book_release(replace(booking(name), sites=sites), FREE).sent
        assert f"--abandon {number}" in describe_ledger(ledger, delta=None)
    ledger.record_sending(1)
    before = ledger.path.read_bytes()
    ledger.record_sending(1)
    assert ledger.path.read_bytes() == before
    lines, last = [json.loads(line) for line in before.splitlines()], "0" * 64
    earlier = Ledger.of_dataset(ledger.path.parents[1], "earlier")
    earlier.path.parent.mkdir()
    for values in lines[:3]:
        kept = values | {"format_version": 1, "previous": last}
        del kept["hash"]
        last = hash_value(kept)
        with earlier.path.open("ab") as stream:
            stream.write(canonical_json({**kept, "hash": last}).encode() + b"\n")
    earlier.record_sending(2)
    for one, states in ((ledger, [True, False, False]), (earlier, [True, True, False])):
        assert [entry.sent for entry in one.read_entries()] == states
        for number, (name, sent) in enumerate(zip(("sent", "unsent"), states, strict=False), 1):
            if sent:
                with refuses(PrivacyError, f"entry {number}", one.path, "sent", "another name"):
                    one.abandon_entry(number, REASON)
                assert f"`dpprobe site sums {name}`" in describe_ledger(one, delta=None)
            else:
                message = one.path.parent / f"site-{name}" / "sums-centre.safetensors"
                message.parent.mkdir(exist_ok=True)
                message.touch()  # a restored ledger may lack the line of the sending
                with refuses(PrivacyError, f"entry {number}", "sent", "another name"):
                    one.abandon_entry(number, REASON)
                message.unlink()
                one.abandon_entry(number, REASON)
            assert f"--abandon {number}" not in describe_ledger(one, delta=None)
    with refuses(PrivacyError, "entry 2", "abandoned"):
        ledger.record_sending(2)


def test_a_folder_with_a_space_is_quoted_for_the_shell(tmp_path: Path) -> None:
    ledger = Ledger.of_dataset(tmp_path, "my data")
    ledger.book_release(booking("first"), FREE)
    assert f"`dpprobe ledger '{ledger.path.parent}' --abandon 1" in describe_ledger(
        ledger, delta=None
    )


def test_an_empty_ledger_says_that_no_release_is_recorded(ledger: Ledger) -> None:
    empty = describe_ledger(ledger, delta=None)
    assert "\n" not in empty
    check_tokens(empty, ledger.path)
    ledger.book_release(booking("first"), FREE)
    ledger.abandon_entry(1, REASON)
    text = describe_ledger(ledger, delta=None)
    check_tokens(text.splitlines()[-1], "epsilon 0", "abandoned")
    assert ledger.list_added() == []


def read_table(text: str) -> list[list[str]]:
    """Returns the cells of a printed table, whose columns are aligned with their titles."""
    head, *rows = text.split("\n\n")[1].splitlines()
    starts = [match.start() for match in re.finditer(r"(?:^|(?<=  ))\S", head)]
    ends = [*starts[1:], None]
    return [[row[a:b].strip() for a, b in zip(starts, ends, strict=True)] for row in (head, *rows)]


def test_each_entry_is_a_row_with_its_prices_and_state(ledger: Ledger) -> None:
    train, test = part("train", gaussian(4.0)), replace(part("test", gaussian(30.0)), delta=1e-4)
    ledger.book_release(booking("of_both", train, test), FREE)
    ledger.book_release(booking("of_test_units_only", test), FREE)
    ledger.book_release(booking("third", train), FREE)
    ledger.close_entry(1, "d" * 64)
    ledger.abandon_entry(2, REASON)
    text = describe_ledger(ledger, delta=DELTA)
    (still_open,) = [line for line in text.splitlines() if ": entry " in line]
    check_tokens(still_open, "third", "entry 3", "open")
    titles, *rows = read_table(text)
    assert titles == ["entry", "release", "state", "booked", "training unit", "test unit", "reason"]
    trained = f"epsilon {train.epsilon:g}, delta 1e-05"
    tested = f"epsilon {test.epsilon:g}, delta 0.0001"
    for row in rows:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", row.pop(3)), row
    assert rows == [
        ["1", "of_both", "closed", trained, tested, ""],
        ["2", "of_test_units_only", "abandoned", "-", tested, REASON],
        ["3", "third", "open", trained, "-", ""],
    ]


def test_totals_are_printed_by_side_of_each_split_and_for_any_unit(ledger: Ledger) -> None:
    """Totals use the largest delta of the counted releases, or a requested delta."""
    test = replace(part("test", gaussian(10.0)), delta=1e-3)
    ledger.book_release(booking("a", part("train", gaussian(5.0)), test), FREE)
    ledger.book_release(booking("b", part("train", gaussian(5.0)), split="seed_2"), FREE)
    ledger.book_release(booking("c", part("train", gaussian(1.0))), FREE)
    ledger.abandon_entry(3, REASON)
    for asked, delta in ((None, 1e-3), (1e-6, 1e-6)):
        lines = describe_ledger(ledger, delta=asked).split("\n\n")[2].splitlines()
        check_tokens(lines[0], f"delta {delta:g}", "2 entries", "image")
        wanted = {
            "a training unit of split hash_20": 1 / 5,
            "a test unit of split hash_20": 1 / 10,
            "a training unit of split seed_2": 1 / 5,
            "any unit": math.sqrt(2) / 5,  # in the training set of both splits
        }
        assert len(lines) == 1 + len(wanted)
        for line, (who, mu) in zip(lines[1:], wanted.items(), strict=True):
            found = re.fullmatch(rf"  {who}: epsilon (\S+) \(exact\)", line)
            assert found, line
            price = exact_epsilon(mu, delta)
            last_digit = 10.0 ** (math.floor(math.log10(price)) - 5)
            assert -1e-9 <= float(found[1]) - price <= last_digit, "never below the price"


def test_a_bound_is_called_one(ledger: Ledger) -> None:
    chain = [replace(booking(str(n)), place=f"lesions/v1 {n}") for n in (1, 2)]
    for each in chain:
        ledger.book_release(each, FREE)
    text = describe_ledger(ledger, delta=DELTA)
    shared = exact_epsilon(2 / 5)  # values of 1 / sigma add up
    for who in ("a training unit of split hash_20", "any unit"):
        found = re.search(rf"{who}: epsilon (\S+) \(upper", text)
        assert found, text
        assert float(found[1]) == pytest.approx(shared, rel=3e-5)


def test_ledgers_that_are_added_are_named_with_the_joint_total(tmp_path: Path) -> None:
    ledgers = [Ledger.of_dataset(tmp_path, name) for name in "abc"]
    for ledger, same in zip(ledgers, (None, "a", "a"), strict=True):
        ledger.book_release(replace(booking("v1"), same_units_as=same), FREE)
    text = describe_ledger(ledgers[1], delta=DELTA)
    found = re.search(r"of (.*), .* 3 entries, epsilon (\S+)", text)
    assert found, text
    assert found[1] == "a, c"
    assert float(found[2]) == pytest.approx(exact_epsilon(math.sqrt(3) / 5), rel=3e-5)
    assert "1 entry" in text, "its own total too"
    alone = Ledger.of_dataset(tmp_path, "d")
    alone.book_release(booking("v1"), FREE)
    assert "same_units_as" not in describe_ledger(alone, delta=DELTA)


@pytest.mark.parametrize("kind", [DiskError, WaitingError])
def test_a_job_whose_entry_stays_open_is_not_tried_again(kind: type[DpprobeError]) -> None:
    """A retry would be refused, and its log would overwrite the reason."""
    error = kind("the disk is full")
    with pytest.raises(kind) as told, ledger_file.tell_of_entry("3 of x.jsonl"):
        raise error
    waits = kind is WaitingError  # its entry is resumed
    said = "" if waits else ". Entry 3 of x.jsonl stays open, and counts"
    assert str(told.value) == f"the disk is full{said}"
    assert (may_pass(error), may_pass(told.value)) == (True, waits)
