"""Messages of sites: swapped, replayed, missing, doubled or damaged messages are refused."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from safetensors import safe_open
from safetensors.numpy import save

from dpprobe.errors import DataError, PrivacyError
from dpprobe.release.ledger.site_folder import has_sent, lock_folder, site_folder
from dpprobe.site_exchange import agreement as agreements
from dpprobe.site_exchange import messages as exchanges
from dpprobe.site_exchange.agreement import Agreement, Offer, offer_path, read_offers, write_offer
from dpprobe.site_exchange.messages import Exchange, Secret, describe_sum, pack_sums, unpack_sums
from dpprobe.site_exchange.shared_sums import Sum

NAMES, ALL = ("east", "north"), ("north", "west", "east")
SIGNERS = {name: Ed25519PrivateKey.from_private_bytes(name.encode().ljust(32)) for name in ALL}
MEMBERS = {name: agreements.name_public_key(key) for name, key in SIGNERS.items()}
SECRETS = {
    name: Secret(key=X25519PrivateKey.from_private_bytes(seed), noise=seed[::-1])
    for name in ALL
    for seed in [name.encode().rjust(32)]
}


def make_offer(name: str, **changes: Any) -> Offer:
    terms = {"epsilon": "1", "class list": ["a", "b"]}
    key = SECRETS[name if name in SECRETS else "east"].public_key
    values = {"terms": terms, "n": 10, "test_n": 4, "key": key}
    return Offer.model_validate({"site": name, **values, **changes})


def open_exchange(
    folder: Path, name: str, names: Sequence[str] = NAMES, **changes: Any
) -> Exchange:
    agreement = Agreement.make([make_offer(each, **changes) for each in names])
    return Exchange(
        agreement=agreement,
        site=name,
        folder=folder / "all",
        private=folder / name,
        members=MEMBERS,
        signer=SIGNERS[name],
        record_sending=lambda: None,
    )


def make_sum(value: int, *, size: int = 5, **changes: Any) -> Sum:
    facts: dict[str, Any] = {"name": "gram", "step": 0.5, "deviation": 9.0, "symmetric": False}
    return Sum(numbers=np.full(size, value), **facts | changes)


def send(folder: Path, **sums: Any) -> None:
    for name, value in zip(NAMES, (3, 4), strict=True):
        several = sums.get(name, [make_sum(value)])
        open_exchange(folder, name).send_sums([], several, SECRETS[name])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / name).mkdir()
    return tmp_path


def test_the_total_equals_the_sum_of_all_sites_and_one_message_reveals_nothing(
    folder: Path,
) -> None:
    exchange = open_exchange(folder, "east")
    assert (exchange.read_rounds(), exchange.list_missing(1)) == ([], ["north"])
    counts = range(2, 14)  # as text, 10 sorts before 2
    for name, value in zip(NAMES, (3, 4), strict=True):
        sums = [make_sum(value * n, size=n, deviation=n) for n in counts]
        open_exchange(folder, name).send_sums([], sums, SECRETS[name])
    for _ in ("added up", "read again"):
        (totals,) = exchange.read_rounds()
        for n, total in zip(counts, totals, strict=True):
            np.testing.assert_array_equal(total.numbers, np.full(n, 7 * n))
            assert (total.name, total.step, total.deviation) == ("gram", 0.5, n)
    _, masked = exchange.read_message(exchange.message_path(1, "east"), "east")
    for n, one in zip(counts, masked, strict=True):
        assert not np.isin(one.numbers, (3 * n, 4 * n, 7 * n)).any()
    # with equal masks, the difference of two sums of one name would be exact
    masks = {int((one.numbers - 3 * n)[0]) for n, one in zip(counts, masked, strict=True)}
    assert len(masks) == len(counts)


def test_a_site_that_lost_its_copy_of_a_sent_message_sends_no_other_message(folder: Path) -> None:
    send(folder)
    exchange = open_exchange(folder, "east")
    sent, path = exchange.private / "sums-1.safetensors", exchange.message_path(1, "east")
    before = path.read_bytes()
    path.write_bytes(before[:40])  # a damaged copy is not a message of this site
    with pytest.raises(DataError, match=r"damaged .*; remove it"):
        exchange.check_messages()
    path.unlink()
    exchange.send_sums([], [make_sum(3)], SECRETS["east"])
    sent.unlink()
    for change in ("is missing", "is not the one"):
        with pytest.raises(PrivacyError, match=f"{change} in .*release with another name"):
            exchange.check_messages()
        with pytest.raises(PrivacyError, match=f"{change} in .*release with another name"):
            exchange.send_sums([], [make_sum(100)], SECRETS["east"])
        path.unlink()
        exchange.send_sums([], [make_sum(100)], SECRETS["east"])
        path.write_bytes(before)
    path.unlink()
    sent.unlink()  # the same sums after the same totals
    assert exchange.send_sums([], [make_sum(3)], SECRETS["east"]).read_bytes() == before


def test_no_message_is_sent_before_the_ledger_records_it(folder: Path) -> None:
    recorded: list[bool] = []

    def record(fault: Exception | None = None) -> None:
        recorded.append(has_sent(folder / "east") or (folder / "all").exists())
        if fault is not None:
            raise fault

    exchange = open_exchange(folder, "east")
    refused = replace(exchange, record_sending=partial(record, DataError("the disk is full")))
    with pytest.raises(DataError, match="the disk is full"):
        refused.send_sums([], [make_sum(3)], SECRETS["east"])
    assert not has_sent(exchange.private)
    recording = replace(exchange, record_sending=record)
    for _ in ("sent", "sent again"):
        recording.send_sums([], [make_sum(3)], SECRETS["east"])
    assert recorded == [False, False]


def test_masks_and_noise_belong_to_the_totals_before(folder: Path) -> None:
    """Sites whose totals of a round differ are told so, and their messages reveal nothing."""
    send(folder)
    east, north = (open_exchange(folder, name) for name in NAMES)
    rounds, zeros = east.read_rounds(), make_sum(0)
    total = north.private / "total-1.safetensors"
    total.write_bytes((east.private / total.name).read_bytes())
    other = [[each.replace_numbers(each.numbers + 1) for each in rounds[0]]]
    assert exchanges.hash_totals(east.agreement, rounds) == exchanges.hash_totals(
        north.agreement, north.read_rounds()
    )
    with pytest.raises(PrivacyError, match="1 rounds are complete, and these sums do not follow"):
        north.send_sums(other, [zeros], SECRETS["north"])
    path = east.send_sums(rounds, [zeros], SECRETS["east"])
    _, (masked,) = east.read_message(path, "east")
    total.write_bytes(pack_sums(other[0], {"sums": [*map(describe_sum, other[0])]}))
    with pytest.raises(PrivacyError, match=r"sums-2\.east.*other totals of earlier rounds"):
        north.send_sums(other, [zeros], SECRETS["north"])
    path.unlink()
    sent = north.send_sums(other, [zeros], SECRETS["north"])
    _, (cancelling,) = north.read_message(sent, "north")
    assert (masked.numbers + cancelling.numbers != 0).all()
    with pytest.raises(PrivacyError, match=r"sums-2\.north.*other totals of earlier rounds"):
        east.read_rounds()


def test_files_of_others_move_no_site_to_another_round(folder: Path) -> None:
    """Otherwise one noise would cover the sums of two messages, and their difference is exact."""
    exchange = open_exchange(folder, "east")
    exchange.folder.mkdir()
    for name in NAMES:  # others write files of round 1 while the site computes its sums
        exchange.message_path(1, name).touch()
        assert exchange.read_rounds() == []
        with pytest.raises(DataError, match=f"{name}.*damaged"):
            exchange.send_sums([], [make_sum(3)], SECRETS["east"])
        exchange.message_path(1, name).unlink()
    with pytest.raises(PrivacyError, match="round 2: 0 rounds are complete.*nothing is sent"):
        exchange.send_sums([[make_sum(7)]], [make_sum(3)], SECRETS["east"])
    assert not list(exchange.private.glob("sums-*"))


def test_a_total_stays_whatever_its_sites_send_later(folder: Path) -> None:
    send(folder)
    exchange = open_exchange(folder, "east")
    ((before,),) = exchange.read_rounds()
    other = folder / "again"
    other.mkdir()
    again = replace(open_exchange(folder, "north"), private=other)
    exchange.message_path(1, "north").unlink()
    again.send_sums([], [make_sum(50)], SECRETS["north"])
    ((after,),) = exchange.read_rounds()
    np.testing.assert_array_equal(before.numbers, after.numbers)
    shutil.rmtree(exchange.folder)
    ((after,),) = exchange.read_rounds()
    np.testing.assert_array_equal(before.numbers, after.numbers)


def test_one_process_of_a_site_works_at_a_time(folder: Path) -> None:
    program = (
        "from pathlib import Path; import sys\n"
        "from dpprobe.release.ledger.site_folder import lock_folder\n"
        "with lock_folder(Path(sys.argv[1])): print('locked')"
    )
    command = [sys.executable, "-c", program, str(folder / "east")]
    with lock_folder(folder / "new/east"):
        assert (folder / "new/east").stat().st_mode & 0o777 == 0o700
        assert (folder / "new/east/lock").stat().st_mode & 0o777 == 0o600
    with lock_folder(folder / "east"):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "another process of this site is at work" in done.stderr
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "locked\n"


def test_swapped_and_replayed_messages_are_refused(folder: Path) -> None:
    send(folder)
    exchange = open_exchange(folder, "east")
    east, north = (exchange.message_path(1, name) for name in NAMES)
    whole = north.read_bytes()
    shutil.copyfile(east, north)  # from another site
    with pytest.raises(PrivacyError, match=r"not signed by the key that `sites.members` has"):
        exchange.read_rounds()
    north.write_bytes(whole)
    exchange.send_sums(exchange.read_rounds(), [make_sum(3)], SECRETS["east"])
    shutil.copyfile(north, exchange.message_path(2, "north"))
    with pytest.raises(PrivacyError, match=r"of another round \(1, not 2\)"):
        exchange.read_rounds()
    later = open_exchange(folder, "east", n=11)
    with pytest.raises(PrivacyError, match="of another agreement"):
        later.check_messages()


DEEP = b'{"a":' * 900 + b"1" + b"}" * 900
NOT_JSON_FOR_ALL = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"\xff\xfe",
    b"[" * 10**5,
    DEEP,
    b'{"n": NaN}',
    b'{"n": 1e999}',
    b'{"n": 1, "n": 1}',
    b'{"n": ' + b"9" * 5000 + b"}",
    b'{"\\ud800": 1}',
    b'{"sums": 3}',
]


def write_sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)  # a sparse file of 1 TiB


def link_fifo(path: Path) -> None:
    os.mkfifo(f"{path}.1")
    path.symlink_to(f"{path.name}.1")


HOSTILE: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "socket": lambda path: socket.socket(socket.AF_UNIX).bind(str(path)),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "link to a fifo": link_fifo,
    "folder": Path.mkdir,
    "huge": write_sparse,
    "loop": lambda path: path.symlink_to(path),
    **{repr(each[:12]): partial(Path.write_bytes, data=each) for each in NOT_JSON_FOR_ALL},
}


@pytest.mark.parametrize("write", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize(
    "place", ["offer", "message", "own message", "secret", "offered", "agreement"]
)
def test_whatever_lies_in_place_of_a_file_is_refused_at_once(
    place: str, write: Callable[[Path], object], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    for name in NAMES:
        write_offer(folder / "all", make_offer(name), SIGNERS[name])
    send(folder)
    exchange = open_exchange(Path(), "east")
    north, east = (exchange.message_path(1, name) for name in ("north", "east"))
    path, read = {
        "offer": (offer_path(Path("all"), "north"), lambda: read_offers(Path("all"), MEMBERS)),
        "message": (north, exchange.read_rounds),
        "own message": (east, exchange.check_messages),
        "secret": (Path("east/secret.json"), lambda: exchanges.read_secret(Path("east"))),
        "offered": (Path("east/offered.json"), lambda: exchanges.read_offered(Path("east"))),
        "agreement": (Path("east/agreement.json"), lambda: exchanges.read_agreement(Path("east"))),
    }[place]
    path.unlink(missing_ok=True)
    write(path)
    if path.is_symlink() and not path.exists():  # treated like a missing file
        with suppress(DataError):
            read()
        return
    with pytest.raises((DataError, PrivacyError), match=path.name) as caught:
        read()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", NOT_JSON_FOR_ALL[2:], ids=repr)
def test_a_member_s_signature_makes_no_description_readable(folder: Path, text: bytes) -> None:
    send(folder)
    exchange = open_exchange(folder, "east")
    content = save({"0": np.zeros(5, np.int64)}, metadata={"dpprobe": text.decode("latin-1")})
    exchange.message_path(1, "north").write_bytes(content)
    with pytest.raises(DataError, match=r"sums-1\.north.*damaged"):
        exchange.read_rounds()


def list_places(values: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = values.items() if isinstance(values, dict) else enumerate(values)
    for key, value in inner:
        if isinstance(value, dict | list):
            yield from list_places(value, (*place, key))
        else:
            yield (*place, key)


def change_value(values: Any, place: tuple[Any, ...]) -> None:
    *parents, last = place
    for key in parents:
        values = values[key]
    value = values[last]
    text = isinstance(value, str)
    values[last] = (f"{value[:-1]}{'0' if value[-1] != '0' else '1'}") if text else value + 1


def change_fact(
    values: dict[str, Any], place: tuple[Any, ...], *, signed: bool, lost: bool = False
) -> None:
    """Changes or removes a value of a file; with `signed`, its site signs the change."""
    if lost:
        reduce(lambda inner, key: inner[key], place[:-1], values).pop(place[-1])
    else:
        change_value(values, place)
    if signed and place != ("signature",):
        del values["signature"]
        values["signature"] = agreements.sign_values(SIGNERS["north"], values)


OFFER = {**make_offer("north").model_dump(), "signature": "00" * 64}


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("place", list_places(OFFER), ids=str)
def test_each_field_of_an_offer_is_held_by_its_signature_and_by_the_agreement(
    place: tuple[Any, ...], signed: bool, folder: Path
) -> None:
    """Signing another offer leads to another agreement, whose messages all other sites refuse."""
    for name in NAMES:
        write_offer(folder, make_offer(name), SIGNERS[name])
    before = Agreement.make(read_offers(folder, MEMBERS)).digest
    path = offer_path(folder, "north")
    values = json.loads(path.read_text())
    change_fact(values, place, signed=signed)
    path.write_text(json.dumps(values))
    try:
        after = Agreement.make(read_offers(folder, MEMBERS)).digest
    except (DataError, PrivacyError):
        return
    assert signed
    assert after != before


# Words of the refusal for each changed fact that its site signed.
MESSAGE_FACTS: dict[tuple[Any, ...], str] = {
    ("format",): "of another format (dpprobe-site-sum0,",
    ("format_version",): "of version 3, newer than",
    ("agreement",): "of another agreement (",
    ("site",): "of another site (nort0, not north)",
    ("round",): "of another round (2, not 1)",
    ("transcript",): "computed from other totals",
    ("signature",): "not signed by the key",
    ("sums", 0, "name"): "sums differ: gra0 (",
    ("sums", 0, "step"): "sums differ: gram (5 numbers of 1.5",
    ("sums", 0, "deviation"): "sums differ: gram (5 numbers of 0.5, noise 10)",
    ("sums", 0, "symmetric"): "a value in its sums has a wrong type",
    ("sums", 0, "sha256"): "the file's numbers have changed",
}
FIRST = ("format_version", "symmetric", "sha256")  # checked before the signature


@pytest.mark.parametrize(("signed", "lost"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("place", MESSAGE_FACTS, ids=str)
def test_each_field_of_a_message_is_held_by_its_signature_and_by_the_round(
    place: tuple[Any, ...], signed: bool, lost: bool, folder: Path
) -> None:
    send(folder)
    exchange = open_exchange(folder, "east")
    path = exchange.message_path(1, "north")
    values, sums = unpack_sums(path, "again")
    change_fact(values, place, signed=signed, lost=lost)
    path.write_bytes(pack_sums(sums, values))
    said = MESSAGE_FACTS[place]
    if not signed and place[-1] not in FIRST:
        said = "not signed by the key"
    elif lost and place[-1] not in ("transcript", "signature", "sha256"):
        said = f"damaged ('{place[-1]}')" if "sums" in place else f"of another {place[0]} (None,"
    with pytest.raises((DataError, PrivacyError), match=re.escape(said)):
        exchange.read_rounds()
    assert not list(exchange.private.glob("total-*"))


WRONG_NUMBERS: list[list[dict[str, Any]]] = [[{}, {}], []]
WRONG_TYPES: list[list[dict[str, Any]]] = [
    [{"step": "0.5"}],
    [{"symmetric": 0}],
    [{"name": 3}],
    [{}, {"deviation": "9"}],
]
OTHERS: list[tuple[list[dict[str, Any]], type[Exception], str]] = [
    *(
        ([fact], PrivacyError, "the sites' sums differ")
        for fact in ({"size": 6}, {"step": 0.25}, {"name": "targets"}, {"deviation": 8.0})
    ),
    *((sums, PrivacyError, "sent different numbers of sums") for sums in WRONG_NUMBERS),
    *((sums, DataError, "a value in its sums has a wrong type") for sums in WRONG_TYPES),
]


@pytest.mark.parametrize(("others", "error", "said"), OTHERS, ids=str)
def test_other_sums_are_refused(
    folder: Path, others: list[dict[str, Any]], error: type[Exception], said: str
) -> None:
    send(folder, north=[make_sum(4, **other) for other in others])
    with pytest.raises(error, match=said):
        open_exchange(folder, "east").read_rounds()


@pytest.mark.parametrize("numbers", [np.zeros(5), np.zeros(5, np.int32), np.zeros((5, 1), int)])
def test_a_member_s_signature_makes_no_other_array_a_sum(folder: Path, numbers: Any) -> None:
    send(folder)
    exchange = open_exchange(folder, "east")
    path = exchange.message_path(1, "north")
    values, (one,) = unpack_sums(path, "again")
    for whole in ([], [one]):
        sums = [*whole, one.replace_numbers(numbers)]
        values["sums"] = [*map(describe_sum, sums)]
        change_fact(values, ("round",), signed=True)
        path.write_bytes(pack_sums(sums, values))
        with pytest.raises(DataError, match="numbers are not whole"):
            exchange.read_rounds()


def plain_hash(values: Any) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def draw_mask(use: str, one: str, other: str, size: int) -> Any:
    """Computes the mask of two sites by the protocol: X25519, HKDF, and AES-256 in counter mode."""
    shared = SECRETS[one].key.exchange(SECRETS[other].key.public_key())
    pair = " ".join(sorted((one, other)))
    info = f"dpprobe mask; sites {pair}; {use}".encode()
    key = HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(shared)
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(8 * size))
    return np.frombuffer(stream, "<i8")


def describe(name: str, numbers: Any, **facts: Any) -> dict[str, Any]:
    digest = hashlib.sha256(np.asarray(numbers, "<i8").tobytes()).hexdigest()
    return {"name": name, **facts, "sha256": digest}


def test_messages_of_three_sites_are_as_the_protocol_says(folder: Path) -> None:
    """Signature, hashes, transcript and masks are recomputed only with cryptography libraries."""
    (folder / "west").mkdir()
    facts: dict[str, Any] = {"step": 0.5, "deviation": 9.0, "symmetric": False}
    totals: list[list[Sum]] = []
    for number in (1, 2):
        told = [[describe("gram", one.numbers, **facts) for one in each] for each in totals]
        transcript = plain_hash([open_exchange(folder, "west", ALL).agreement.digest, *told])
        for place, name in enumerate(ALL, start=1):
            exchange = open_exchange(folder, name, ALL)
            assert len(exchange.read_rounds()) == number - 1
            others = sorted({*ALL} - {*ALL[: place - 1]} - {name})
            assert sorted(exchange.list_missing(number)) == others
            assert not exchange.has_sent(number)
            assert has_sent(exchange.private) == (number > 1)
            sums = [make_sum(place * size, size=size) for size in (1, 4)]
            path = exchange.send_sums(totals, sums, SECRETS[name])
            assert path == folder / f"all/sums-{number}.{name}.safetensors"
            assert exchange.has_sent(number)
            with safe_open(path, framework="numpy") as file:
                sent = [file.get_tensor(str(index)) for index in range(2)]
                values = json.loads(file.metadata()["dpprobe"])
            signed = bytes.fromhex(values.pop("signature"))
            text = json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
            SIGNERS[name].public_key().verify(signed, text)
            assert values == {
                "format": "dpprobe-site-sums",
                "format_version": 2,
                "agreement": exchange.agreement.digest,
                "site": name,
                "round": number,
                "transcript": transcript,
                "sums": [describe("gram", each, **facts) for each in sent],
            }
            for index, (masked, exact) in enumerate(zip(sent, sums, strict=True)):
                use = f"transcript {transcript}; sum {index} gram"
                expected = exact.numbers.copy()
                for other in {*ALL} - {name}:
                    mask = draw_mask(use, name, other, expected.size)
                    expected += mask if name < other else -mask
                np.testing.assert_array_equal(masked, expected)
        for name in ALL:
            totals = open_exchange(folder, name, ALL).read_rounds()
            for size, total in zip((1, 4), totals[-1], strict=True):
                np.testing.assert_array_equal(total.numbers, np.full(size, 6 * size))
    private = [path for name in ALL for path in (folder / name).iterdir()]
    assert not any(path.stat().st_mode & 0o077 for path in private)


class ExchangeOfSites(RuleBasedStateMachine):
    """Three sites that send, lose, restore and repeat messages in any order.

    Nobody may ever see two messages of one site and round, and every total must be the plain sum.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        for name in (*ALL, "all"):
            (self.folder / name).mkdir()
        self.seen: dict[str, bytes] = {}
        self.totals: list[int] = []
        self.restored: set[str] = set()

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def number_of(self, name: str, before: int) -> int:
        """Returns the number that a site sends, from all earlier totals as in a step of a fit."""
        return 3 * before + ALL.index(name) + 1

    @rule(name=st.sampled_from(ALL))
    def work(self, name: str) -> None:
        exchange = open_exchange(self.folder, name, ALL)
        with suppress(*([PrivacyError] if name in self.restored else [])):
            rounds = exchange.read_rounds()
            for number, (total,) in enumerate(rounds):
                if number == len(self.totals):
                    before = self.totals[-1] if self.totals else 0
                    self.totals.append(sum(self.number_of(each, before) for each in ALL))
                np.testing.assert_array_equal(total.numbers, np.full(5, self.totals[number]))
            before = self.totals[len(rounds) - 1] if rounds else 0
            sums = [make_sum(self.number_of(name, before))]
            exchange.send_sums(rounds, sums, SECRETS[name])

    @rule(name=st.sampled_from(ALL), value=st.integers(-50, 50))
    def repeat_with_other_sums(self, name: str, value: int) -> None:
        exchange = open_exchange(self.folder, name, ALL)
        rounds = exchange.read_rounds()
        if exchange.has_sent(len(rounds) + 1):
            with suppress(PrivacyError):
                exchange.send_sums(rounds, [make_sum(value)], SECRETS[name])

    @rule(name=st.sampled_from(ALL), number=st.integers(1, 3))
    def lose_a_message(self, name: str, number: int) -> None:
        (self.folder / f"all/sums-{number}.{name}.safetensors").unlink(missing_ok=True)

    @rule(name=st.sampled_from(ALL))
    def lose_totals(self, name: str) -> None:
        """Deletes totals, as after a crash: they are added up again from the messages."""
        for path in (self.folder / name).glob("total-*"):
            path.unlink()
        self.restored.add(name)

    @rule(name=st.sampled_from(ALL))
    def restore_the_beginning(self, name: str) -> None:
        for path in (self.folder / name).iterdir():
            path.unlink()
        self.restored.add(name)

    @invariant()
    def a_site_has_one_message_per_round(self) -> None:
        for path in (self.folder / "all").glob("sums-*"):
            before = self.seen.setdefault(path.name, path.read_bytes())
            assert path.read_bytes() == before, f"{path.name} was sent twice, with other sums"


ExchangeOfSites.TestCase.settings = settings(max_examples=25, stateful_step_count=25)
TestExchangeOfSites = ExchangeOfSites.TestCase


NOISE, KEY = "00" * 32, "0123456789abcdef" * 4


def test_a_secret_is_read_as_it_was_written_down(folder: Path) -> None:
    assert exchanges.read_secret(folder / "x") is None
    (folder / "secret.json").write_text(json.dumps({"noise": NOISE, "key": KEY}))
    secret = exchanges.read_secret(folder)
    assert secret is not None
    public = X25519PrivateKey.from_private_bytes(bytes.fromhex(KEY)).public_key()
    assert secret.public_key == public.public_bytes_raw().hex()
    assert secret.noise == bytes(32)


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"noise": "00" * 31, "key": KEY}, "its noise key is truncated"),
        ({"noise": "00" * 33, "key": KEY}, "its noise key is truncated"),
        ({"noise": NOISE}, "'key'"),
        ({"key": KEY}, "'noise'"),
        ({"noise": NOISE, "key": KEY[2:]}, "32 bytes"),
        ([], "list"),
    ],
)
def test_a_damaged_secret_ends_the_release(folder: Path, values: Any, fault: str) -> None:
    (folder / "secret.json").write_text(json.dumps(values))
    with pytest.raises(DataError, match=rf"secret\.json: damaged \(.*{fault}.*another name") as one:
        exchanges.read_secret(folder)
    assert KEY[2:] not in str(one.value)


def test_the_first_agreement_is_kept(folder: Path) -> None:
    assert exchanges.read_agreement(folder) is None
    first = Agreement.make([make_offer(name, n=place + 1) for place, name in enumerate(ALL)])
    for each in (first, Agreement.make(first.offers[1:])):
        exchanges.keep_agreement(folder, each)
        assert exchanges.read_agreement(folder) == first
    assert (folder / "agreement.json").stat().st_mode & 0o077 == 0


def test_a_release_of_sites_has_a_folder_next_to_the_ledger(folder: Path) -> None:
    assert site_folder(folder, "v1") == folder / "site-v1"
    assert not has_sent(folder / "site-v1")


def test_secrets_are_private_and_noise_is_fixed_by_them(folder: Path) -> None:
    secret = Secret.draw()
    assert secret.key not in (SECRETS["east"].key,)
    assert secret.noise.hex() not in repr(secret)
    exchanges.write_secret(folder / "east", secret)
    assert (folder / "east/secret.json").stat().st_mode & 0o077 == 0
    read = exchanges.read_secret(folder / "east")
    assert read is not None
    assert (read.public_key, read.noise) == (secret.public_key, secret.noise)
    gram = make_sum(3)
    first, again = (each.open_noise("a" * 64, 0, gram) for each in (secret, read))
    others = [
        secret.open_noise("b" * 64, 0, gram),
        secret.open_noise("a" * 64, 1, gram),
        secret.open_noise("a" * 64, 0, make_sum(3, name="targets")),
        secret.open_noise("a" * 64, 0, make_sum(4)),
        Secret.draw().open_noise("a" * 64, 0, gram),
    ]
    numbers = first.draw_numbers(50, 1e6)
    np.testing.assert_array_equal(numbers, again.draw_numbers(50, 1e6))
    for other in others:
        assert (other.draw_numbers(50, 1e6) != numbers).all()
