"""Three sites with three folders make one release and refuse any other messages."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpprobe.errors import ConfigError, PrivacyError, WaitingError
from dpprobe.files.plain_files import sha256_file
from dpprobe.heads.registry import method_options
from dpprobe.privacy.accountants import compute_epsilon
from dpprobe.privacy.releases import add_rounded_noise
from dpprobe.release import bundle
from dpprobe.release.make import ReleaseTask
from dpprobe.release.parts.sites import several_sites
from dpprobe.release.parts.sites.several_sites import SeveralSites
from dpprobe.release.verification.verify import verify_bundle
from dpprobe.site_exchange import messages as exchanges
from dpprobe.site_exchange import shared_sums
from dpprobe.site_exchange.agreement import sign_values
from dpprobe.site_exchange.masks import mask_numbers
from tests.support.edited_bundles import failed
from tests.support.feature_stores import write_split
from tests.support.programs import run_program
from tests.support.refusals import refuses
from tests.support.release_study import CLASSES, DIMENSION, write_features
from tests.support.site_study import HEADER, TRAIN_ROWS, Site, make_sites


def take_turns(sites: list[Site], **changes: Any) -> int:
    """Runs each site in turn until all have their bundle; returns the number of turns."""
    for turn in range(1, 30):
        waiting = 0
        for site in sites:
            try:
                site.task(**changes).run()
            except WaitingError:
                waiting += 1
        if not waiting:
            return turn
    raise AssertionError("the sites wait for each other")


@pytest.mark.parametrize(
    ("options", "rounds"),
    [
        ({"method": "covariance"}, 3),
        ({"method": "covariance", "sites": {"aggregator": "north"}}, 3),
        ({"method": "covariance", "of_patients": True}, 3),
        (
            {
                "method": "covariance",
                "evaluate": {"epsilon": 2},
                "calibrate": {"epsilon": 2},
                "monitor": {"epsilon": 2},
            },
            13,
        ),
    ],
)
def test_three_sites_make_one_verified_release(
    tmp_path: Path, options: dict[str, Any], rounds: int
) -> None:
    sites = make_sites(tmp_path, **options)
    for site in sites:
        site.task().make_offer()
    take_turns(sites)
    bundles = [bundle.read_bundle(site.task().output) for site in sites]
    first = bundles[0]
    for read in bundles:
        assert read.weights.tobytes() == first.weights.tobytes()
        assert failed(verify_bundle(read.folder)) == []
    said = first.statement["sites"]
    assert (said["names"], said["packed_by"]) == (["east", "north", "south"], "east")
    assert first.statement["n"] == (150 if "of_patients" in options else 300)
    messages = list((tmp_path / "exchange/first").glob("sums-*"))
    assert len(messages) == rounds * len(sites)
    for site in sites:
        (entry,) = site.ledger.read_entries()
        assert entry.state == "closed"
        assert not (site.private / "secret.json").exists()
        before = (site.task().output / "head.safetensors").read_bytes()
        site.task().run()
        assert (site.task().output / "head.safetensors").read_bytes() == before


def with_public_file(site: Site, rows: np.ndarray) -> ReleaseTask:
    """Returns a site's release of a head around public rows, with a private copy of their file."""
    path = site.folder / "films.npy"
    np.save(path, rows.astype(np.float32))
    task = site.task()
    around = {"kind": "centred", "public": str(path)}
    head = method_options({"head": "feature_covariance", "normalize": around, "steps": 2})
    methods = {**task.study.methods, "covariance": head}
    return replace(task, study=task.study.model_copy(update={"methods": methods}))


def test_three_sites_with_one_public_file_make_one_release(tmp_path: Path) -> None:
    """Each site has its own copy of the file, with equal hashes."""
    rows = np.random.default_rng(3).normal(size=(50, DIMENSION))
    tasks = {}
    sites = make_sites(tmp_path, method="covariance")
    for site in sites:
        tasks[site.name] = with_public_file(site, rows)
        tasks[site.name].make_offer()
    for _ in range(20):
        for site in sites:
            with suppress(WaitingError):
                with_public_file(site, rows).run()
    bundles = [bundle.read_bundle(task.output) for task in tasks.values()]
    assert len({read.weights.tobytes() for read in bundles}) == 1
    assert failed(verify_bundle(bundles[0].folder)) == []
    assert sha256_file(tmp_path / "east/films.npy") in json.dumps(bundles[0].statement)


def test_a_site_with_another_public_file_is_refused_before_anything_is_booked(
    tmp_path: Path,
) -> None:
    sites = make_sites(tmp_path, method="covariance")
    rows = np.random.default_rng(3).normal(size=(50, DIMENSION))
    others = {"north": rows + 1e-6}
    tasks = [with_public_file(site, others.get(site.name, rows)) for site in sites]
    for task in tasks:
        task.make_offer()
    for task, site in zip(tasks, sites, strict=True):
        with refuses(PrivacyError, "north", "public files"):
            task.run()
        assert site.ledger.read_entries() == []


def agree(sites: list[Site], **changes: Any) -> None:
    for site in sites:
        site.task(**changes).make_offer()


def run_until_waiting(site: Site, *tokens: object, **changes: Any) -> None:
    with refuses(WaitingError, "first", *tokens):
        site.task(**changes).run()


def read_message(site: Site, number: int = 1) -> bytes:
    return (site.exchange / f"first/sums-{number}.{site.name}.safetensors").read_bytes()


def test_a_site_waits_for_offers_and_then_for_sums_and_has_booked_before_it_sends(
    tmp_path: Path,
) -> None:
    sites = make_sites(tmp_path, method="sums")
    east, north, south = sites
    run_until_waiting(east, "east, north, south", "`dpprobe site keys`")
    agree([east, north])
    run_until_waiting(east, "south", "`dpprobe site keys`")
    assert [site.ledger.read_entries() for site in sites] == [[], [], []]
    agree([south])
    run_until_waiting(east, "round 1", "north, south", "`dpprobe site sums`")
    (entry,) = east.ledger.read_entries()
    assert entry.state == "open"
    assert [part.mechanisms[0].name for part in entry.booking.parts] == ["class_sums"]
    assert not list((east.task().output.parent).glob("*"))
    before = read_message(east)
    run_until_waiting(east, "round 1", "north, south", "`dpprobe site sums`")
    assert read_message(east) == before
    take_turns(sites)
    assert all(len(site.ledger.read_entries()) == 1 for site in sites)


@pytest.mark.parametrize(
    ("of_patients", "changes", "named"),
    [
        (False, {"epsilon": 1, "delta": 1e-5}, "delta, epsilon:"),
        (True, {"more": {"unit_column": "visit"}}, "differ in unit_column:"),
        (True, {"more": {"filters": {"who": ["a"]}}}, "filters:"),
    ],
)
def test_sites_with_other_options_do_not_begin(
    tmp_path: Path, of_patients: bool, changes: dict[str, Any], named: str
) -> None:
    patients = {"of_patients": True} if of_patients else {}
    sites = make_sites(tmp_path, method="sums", **patients)
    tasks = [site.task(**(changes if site.name == "north" else {})) for site in sites]
    for task in tasks:
        task.make_offer()
    for site, task in zip(sites, tasks, strict=True):
        with refuses(PrivacyError, "north", named):
            task.run()
        assert site.ledger.read_entries() == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"more": {"split_by": "class"}}, ("split_by", "class")),
        ({"cohort": "2025", "horizon": 4}, ("sites", "cohort")),
        ({"method": "search"}, ("sites", "search")),
    ],
)
def test_a_fault_of_the_release_stops_a_site_before_its_offer_and_before_it_books(
    tmp_path: Path, changes: dict[str, Any], words: tuple[object, ...]
) -> None:
    """Unchecked studies are refused, too: a split by class priced at epsilon 1 costs 2.21."""
    sites = make_sites(tmp_path, **changes)
    with refuses(ConfigError, *words):
        sites[0].task().make_offer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpprobe.release.make.release_faults", lambda *_, **__: [])
        agree(sites)
    with refuses(ConfigError, *words):
        sites[0].task().run()
    assert sites[0].ledger.read_entries() == []


def test_another_secret_key_or_ledger_stops_a_site(tmp_path: Path) -> None:
    sites = make_sites(tmp_path, method="sums")
    east, north, _ = sites
    agree(sites)
    with refuses(ConfigError, "members.east", "key"):
        east.task(sites={"key": str(north.folder / "site.pem")}).run()
    own = exchanges.read_secret(east.private)
    assert own is not None
    for secret in (exchanges.Secret.draw(), None):
        (east.private / "secret.json").unlink()
        if secret is not None:
            exchanges.write_secret(east.private, secret)
        with refuses(PrivacyError, east.private, "secret", "`dpprobe site keys`"):
            east.task().run()
        assert east.ledger.read_entries() == []
        exchanges.write_secret(east.private, own)
    run_until_waiting(east, "round 1", "north, south", "`dpprobe site sums`")
    east.ledger.path.unlink()
    for work in (east.task().run, east.task().make_offer):
        with refuses(PrivacyError, east.private, "ledger", "release first"):
            work()


def test_the_joint_price_of_test_units_has_the_penalty_of_shares(tmp_path: Path) -> None:
    sites = make_sites(tmp_path, evaluate={"epsilon": 2}, monitor={"epsilon": 2})
    agree(sites)
    priced = sites[0].task().plan_release().test_price
    assert priced is not None
    assert len(priced.mechanisms) > 1
    alone = compute_epsilon(priced.mechanisms, priced.delta, "pld")
    assert priced.realised_epsilon > alone


def test_a_site_cannot_change_its_offer_after_all_sites_agreed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = make_sites(tmp_path, method="sums")
    east, *others = sites
    agree(sites)
    with refuses(PrivacyError, "offer", "options"):
        east.task(epsilon=1).run()
    transport = east.task().transport
    assert isinstance(transport, SeveralSites)
    assert transport.agree().n
    for name, value in (("own_n", 1), ("own_test_n", 1), ("terms", {})):
        with monkeypatch.context() as patch:
            patch.setattr(transport, name, value)
            with refuses(PrivacyError, "offer"):
                transport.agree()
    run_until_waiting(east, "`dpprobe site sums`")
    with refuses(PrivacyError, "entry 1", "options"):
        east.task(epsilon=1).run()
    with refuses(PrivacyError, "entry 1"):
        east.task(epsilon=1).make_offer()
    agree([east])  # the same offer again
    # offers that another site replaces later are ignored, and its sums are refused
    north = others[0]
    (north.private / "secret.json").unlink()
    agree([north])
    run_until_waiting(east, "`dpprobe site sums`")
    with refuses(PrivacyError, "agreement"):
        north.task().run()
    assert north.ledger.read_entries() == []


@pytest.mark.parametrize("step", ["keep_offered", "write_offer", None])
def test_data_replaced_after_the_offer_need_another_offer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str | None
) -> None:
    """The offers of other rows are equal, because no other site may learn a hash of data.

    An offer that is killed at a step before it is complete, or has no hash of data because an
    earlier version wrote it, is made again.
    """
    sites = make_sites(tmp_path, method="sums")
    north = sites[1]
    agree(sites)
    offered = north.private / "offered.json"
    assert offered.stat().st_mode & 0o077 == 0
    names = [f"other-{row}" for row in range(TRAIN_ROWS[1])]
    labels = np.arange(len(names)) % len(CLASSES)
    shutil.rmtree(north.folder / "train")
    rows = np.eye(len(names), DIMENSION)
    write_split(north.folder / "train", rows, labels, ids=names, **HEADER)
    with refuses(PrivacyError, "release first", "(data)", "`dpprobe site keys`"):
        north.task().run()
    if step is not None:
        with monkeypatch.context() as patch:
            patch.setattr(several_sites, step, lambda *_: pytest.fail("killed"))
            with pytest.raises(pytest.fail.Exception):
                agree([north])
    if step == "keep_offered":
        with refuses(PrivacyError, "release first", "(data)", "`dpprobe site keys`"):
            north.task().run()
    offered.unlink()
    with refuses(PrivacyError, north.private, "hash of the data", "`dpprobe site keys`"):
        north.task().run()
    assert north.ledger.read_entries() == []
    before = (north.exchange / "first/offer.north.json").read_bytes()
    agree([north])
    assert (north.exchange / "first/offer.north.json").read_bytes() == before
    for site in sites[:2]:
        run_until_waiting(site, "south")
    exchanges.keep_offered(north.private, "0" * 64)
    for work in (north.task().make_offer, partial(open_exchange, north)):
        with refuses(PrivacyError, "release first", "data"):
            work()
    assert exchanges.read_offered(north.private) == "0" * 64, "kept for what is booked"


def test_an_agreement_that_was_kept_holds_for_what_is_booked(tmp_path: Path) -> None:
    """A crash between booking and saving is harmless, but changed offers are then ignored."""
    sites = make_sites(tmp_path, method="sums")
    east, north, _ = sites
    agree(sites)
    run_until_waiting(east, "`dpprobe site sums`")
    for path in (*east.private.glob("sums-*"), *(east.exchange / "first").glob("sums-*")):
        path.unlink()
    (east.private / "agreement.json").unlink()
    run_until_waiting(east, "`dpprobe site sums`")
    (entry,) = east.ledger.read_entries()
    assert str(entry.booking.sites).endswith("; 1 of 3 may collude")
    for path in (*east.private.glob("sums-*"), *(east.exchange / "first").glob("sums-*")):
        path.unlink()
    (east.private / "agreement.json").unlink()
    (north.private / "secret.json").unlink()
    agree([north])
    with refuses(PrivacyError, "entry 1", east.ledger.path, "agreement"):
        east.task().run()


@pytest.mark.parametrize("lost", ["private folder", "restored folder", "end of the ledger"])
def test_a_lost_folder_or_an_earlier_ledger_does_not_free_sums_that_have_left(
    tmp_path: Path, lost: str
) -> None:
    sites = make_sites(tmp_path, method="sums")
    east = sites[0]
    agree(sites)
    backup = shutil.copytree(east.private, tmp_path / "backup")
    run_until_waiting(east, "`dpprobe site sums`")
    (entry,) = east.ledger.read_entries()
    assert entry.sent
    if lost == "end of the ledger":
        booked, sent = east.ledger.path.read_bytes().splitlines(keepends=True)
        assert json.loads(sent)["event"] == "send"
        east.ledger.path.write_bytes(booked)
    else:
        shutil.rmtree(east.private)
    if lost == "restored folder":
        shutil.copytree(backup, east.private)
    with refuses(PrivacyError, "entry 1", east.ledger.path, "sent", "another name"):
        east.ledger.abandon_entry(1, "the folder was lost")
    assert [each.is_counted for each in east.ledger.read_entries()] == [True]


def test_an_entry_whose_sums_have_left_cannot_be_abandoned(tmp_path: Path) -> None:
    sites = make_sites(tmp_path, method="sums")
    east, north, south = sites
    agree(sites)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            exchanges.Exchange, "send_sums", lambda *_: pytest.fail("died before it was sent")
        )
        with pytest.raises(pytest.fail.Exception):
            east.task().run()
    east.ledger.abandon_entry(1, "died before it sent anything")
    run_until_waiting(east, "`dpprobe site sums`")
    assert [entry.state for entry in east.ledger.read_entries()] == ["abandoned", "open"]
    with refuses(PrivacyError, "entry 2", east.ledger.path, "name"):
        east.ledger.abandon_entry(2, "the third hospital left")
    run_until_waiting(north, "`dpprobe site sums`")
    south.task().run()
    assert [entry.state for entry in east.ledger.read_entries()] == ["abandoned", "open"]
    # the other sites can still get the messages of a site that has finished
    sent = south.exchange / "first/sums-1.south.safetensors"
    sent.unlink()
    run_until_waiting(north, "round 1", "south", "`dpprobe site sums`")
    south.task().run()
    take_turns(sites)
    assert north.ledger.read_entries()[0].state == "closed"


def open_exchange(site: Site) -> exchanges.Exchange:
    transport = site.task().transport
    assert isinstance(transport, SeveralSites)
    return transport.agree().exchange


def change_message(site: Site, number: int) -> None:
    """Lets a malicious site replace one of its own messages by another signed message."""
    exchange = open_exchange(site)
    path = exchange.message_path(number, site.name)
    values, sums = exchange.read_message(path, site.name)
    shift = 10**12 * (np.arange(sums[0].numbers.size) < DIMENSION)
    changed = [each.replace_numbers(each.numbers + shift) for each in sums]
    values["sums"] = [*map(exchanges.describe_sum, changed)]
    values["signature"] = sign_values(exchange.signer, values)
    path.write_bytes(exchanges.pack_sums(changed, values))


def read_sums(victim: Site, others: list[Site], *, masks: bool) -> np.ndarray:
    """Returns the numbers in round 3's message; `masks=False` removes masks that others know."""
    exchange = open_exchange(victim)
    values, (sums,) = exchange.read_message(exchange.message_path(3, victim.name), victim.name)
    numbers = sums.numbers
    for other in [] if masks else others:
        secret = exchanges.read_secret(other.private)
        assert secret is not None
        public = exchange.agreement.other_keys(other.name)[victim.name]
        numbers = mask_numbers(
            numbers,
            f"transcript {values['transcript']}; sum 0 {sums.name}",
            site=other.name,
            key=secret.key,
            others={victim.name: public},
        )
    return numbers


def test_a_restored_private_folder_reveals_no_difference_of_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new total moves the victim's gradient; reusing the noise would reveal by how much."""
    exact: list[np.ndarray] = []
    shares: list[float] = []

    def record(noise: Any, numbers: np.ndarray, share: float, *, symmetric: bool) -> None:
        exact.append(numbers.copy().ravel())
        shares.append(share)
        add_rounded_noise(noise, numbers, share, symmetric=symmetric)

    east, north, south = sites = make_sites(tmp_path, method="covariance")
    agree(sites)
    for site in sites:
        run_until_waiting(site, "round", "`dpprobe site sums`")
    run_until_waiting(east, "round 2", "north")
    backup = tmp_path / "backup"
    shutil.copytree(east.private, backup)
    run_until_waiting(north, "round 3", "east, south")
    monkeypatch.setattr(shared_sums, "add_rounded_noise", record)

    def restore_and_run() -> tuple[bytes, np.ndarray, np.ndarray]:
        shutil.rmtree(east.private)
        shutil.copytree(backup, east.private)
        run_until_waiting(east, "round 3")
        masked, unmasked = (read_sums(east, [north, south], masks=each) for each in (True, False))
        return read_message(east, 3), masked, unmasked

    message, *first = restore_and_run()
    with refuses(PrivacyError, "sums-3.east.safetensors", "name"):
        restore_and_run()
    change_message(north, 2)
    with refuses(PrivacyError, "sums-3.east.safetensors", "name"):
        restore_and_run()
    # the attacker deletes the files by which sites would refuse
    (east.exchange / "first/sums-3.east.safetensors").unlink()
    with refuses(PrivacyError, "sums-3.north.safetensors"):
        restore_and_run()
    (north.exchange / "first/sums-3.north.safetensors").unlink()
    _, *second = restore_and_run()
    moved = exact[-1] - exact[0]
    assert moved.all()
    masked, unmasked = (late - early - moved for early, late in zip(first, second, strict=True))
    assert np.abs(masked).min() > 2**40
    assert 0 not in unmasked
    assert 0.3 < unmasked.std() / (2**0.5 * shares[0]) < 2.5
    # the same totals again make the same message
    (north.exchange / "first/sums-2.north.safetensors").unlink()
    (east.exchange / "first/sums-3.east.safetensors").unlink()
    run_until_waiting(north, "round 3")
    assert restore_and_run()[0] == message


def test_other_data_stop_a_site_between_two_rounds(tmp_path: Path) -> None:
    sites = make_sites(tmp_path, method="covariance")
    agree(sites)
    for site in sites:
        run_until_waiting(site, "`dpprobe site sums`")
    write_features(sites[0].folder, shift=1.0)
    with refuses(PrivacyError, "release first", "entry 1", "data"):
        sites[0].task().run()


@pytest.mark.slow
def test_a_site_that_dies_at_any_step_continues_with_the_same_message(tmp_path: Path) -> None:
    """SIGKILL before any kind of disk change: the rerun sends the same bytes and books once.

    The exchange gets a message only after the ledger has the release.
    """
    walk = run_program([sys.executable, "-m", "tests.support.site_kill_walk", tmp_path])
    whole, *killed = map(json.loads, walk.stdout.splitlines())
    assert whole["entries"] == ["closed"]
    assert len(killed) > 15
    assert {each["status"] for each in killed} == {-signal.SIGKILL}
    for each in killed:
        assert each["killed"]["message"] in (None, whole["message"]), each["step"]
        assert each["killed"]["sent"] == [True] or each["killed"]["message"] is None
        assert each["again"] == 0, each["step"]
        result = {name: each[name] for name in ("message", "head", "entries")}
        assert result == {name: whole[name] for name in result}, each["step"]
        assert not each["secret"], each["step"]
    assert any(each["killed"]["message"] is None for each in killed)
    assert any(each["killed"]["message"] is not None for each in killed)


# A site waits for the others up to the stated time, and only while its entry counts.


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
def test_a_run_waits_until_the_limit_or_an_abandoned_entry(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    entries: list[int | None],
    minutes: float | None,
    error: type[Exception] | None,
    tries: int,
) -> None:
    transport, numbers = object.__new__(several_sites.SeveralSites), iter(entries)
    tried: list[int] = []
    vars(transport).update(
        release=SimpleNamespace(name="first"),
        private=tmp_path / "private",
        folder=tmp_path / "none",
        options=SimpleNamespace(wait_minutes=1),
        read_entry=lambda: (number := next(numbers)) and SimpleNamespace(number=number),
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
