"""Offers and agreements of sites: which offers are accepted, and the terms of all sites."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.errors import ConfigError, DataError, PrivacyError
from dpprobe.json_values import canonical_json
from dpprobe.site_exchange import agreement as agreements
from dpprobe.site_exchange.agreement import Agreement, offer_path, read_offers, write_offer
from tests.unit.site_exchange.test_messages import ALL, MEMBERS, NAMES, SECRETS, SIGNERS, make_offer

KEY = "0123456789abcdef" * 4


def plain_json(values: Any) -> bytes:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def sign_offer(folder: Path, by: str, name: str = "north", **changes: Any) -> Path:
    """Writes any values as an offer of `name` that is signed by the site `by`."""
    values = make_offer(name).model_dump() | changes
    text = canonical_json({**values, "signature": agreements.sign_values(SIGNERS[by], values)})
    path = offer_path(folder, name)
    path.write_text(text)
    return path


def test_an_offer_is_signed_as_ed25519_of_plain_json_says(tmp_path: Path) -> None:
    path = write_offer(tmp_path / "new", make_offer("north"), SIGNERS["north"])
    assert path == tmp_path / "new/offer.north.json"
    values = json.loads(path.read_text())
    signature = values.pop("signature")
    public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(MEMBERS["north"]))
    public.verify(bytes.fromhex(signature), plain_json(values))
    raw = SIGNERS["north"].public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    assert MEMBERS["north"] == raw.hex()


@pytest.mark.parametrize(
    "changes", [{}, {"n": 1}, {"test_n": 0}, {"terms": {}}, {"key": KEY}], ids=str
)
def test_an_offer_of_possible_values_is_read(tmp_path: Path, changes: dict[str, Any]) -> None:
    sign_offer(tmp_path, "north", **changes)
    (offer,) = read_offers(tmp_path, MEMBERS)
    assert offer.model_dump() == make_offer("north").model_dump() | changes


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"n": 0}, "n: 0 instead of a number of 1 or more"),
        ({"n": 1.0}, "n: 1.0 instead of a whole number"),
        ({"n": "7"}, "n: '7' instead of a whole number"),
        ({"test_n": -1}, "test_n: -1 instead of a number of 0 or more"),
        ({"more": 1}, "more: unknown key"),
        ({"key": "AB" * 32}, "key: 'AB"),
        ({"key": "ab" * 31}, "key: 'ab"),
        ({"key": "ab" * 32 + "\n"}, "key: 'ab"),
        ({"terms": []}, "terms: [] instead of a mapping"),
        ({"site": 3}, "site: 3 instead of a string"),
        ({"site": "east"}, "not an offer of site north"),
        ({"format": "offer"}, "format: 'offer' instead of 'dpprobe-site-offer'"),
        ({"format_version": 2}, "of version 2, newer than this dpprobe's 1"),
        ({"format_version": 0}, "format_version: 0 instead of 1"),
    ],
)
def test_a_signature_makes_no_impossible_offer_readable(
    tmp_path: Path, changes: dict[str, Any], fault: str
) -> None:
    path = sign_offer(tmp_path, "north", **changes)
    with pytest.raises(DataError, match=re.escape(fault)) as caught:
        read_offers(tmp_path, MEMBERS)
    assert str(path) in str(caught.value)


def test_an_offer_that_another_site_signed_is_refused(tmp_path: Path) -> None:
    path = sign_offer(tmp_path, "east")
    with pytest.raises(PrivacyError, match=f"{path}: not signed by the key .* by telephone"):
        read_offers(tmp_path, MEMBERS)


def test_the_offers_of_members_alone_are_read_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ALL:
        write_offer(tmp_path, make_offer(name), SIGNERS[name])
    for names in (ALL, NAMES, ("west",), ()):
        offers = read_offers(tmp_path, {name: MEMBERS[name] for name in names})
        assert [offer.site for offer in offers] == sorted(names)
    assert read_offers(tmp_path / "elsewhere", MEMBERS) == []


SIZES = st.dictionaries(
    st.sampled_from(["s1", "s2", "s10", "east", "b"]),
    st.tuples(st.integers(1, 10**6), st.integers(0, 10**6)),
    min_size=1,
)


@given(sizes=SIZES, shuffled=st.randoms())
def test_an_agreement_adds_up_its_sites_in_any_order(sizes: dict[str, Any], shuffled: Any) -> None:
    offers = [make_offer(name, n=n, test_n=m) for name, (n, m) in sizes.items()]
    shuffled.shuffle(offers)
    agreement = Agreement.make(offers)
    assert agreement.names == tuple(sorted(sizes))
    assert agreement.n == sum(n for n, _ in sizes.values())
    assert agreement.test_n == sum(m for _, m in sizes.values())
    ordered = sorted(offers, key=lambda offer: offer.site)
    listed = plain_json([offer.model_dump() for offer in ordered])
    assert agreement.digest == hashlib.sha256(listed).hexdigest()


def test_each_site_gets_the_public_keys_of_the_other_sites() -> None:
    agreement = Agreement.make([make_offer(name) for name in ALL])
    public = {name: bytes.fromhex(SECRETS[name].public_key) for name in ALL}
    for name in ALL:
        others = {other: key for other, key in public.items() if other != name}
        assert agreement.other_keys(name) == others
    assert agreement.other_keys("nobody") == public


@pytest.mark.parametrize(
    ("terms", "pair", "named"),
    [
        ([{"a": 1}, {"a": 1}, {"a": 1, "z": 0, "b": None}], "s1 and s3", "b, z"),
        ([{"a": 1, "b": 2, "c": 3}, {"b": 3, "a": 1}, {"a": 2}], "s1 and s2", "b, c"),
        ([{"a": 1}, {"a": 1}, {}], "s1 and s3", "a"),
        ([{"a": [1, 2]}, {"a": [2, 1]}], "s1 and s2", "a"),
    ],
)
def test_terms_that_differ_or_are_missing_are_named(
    terms: list[dict[str, Any]], pair: str, named: str
) -> None:
    offers = [make_offer(f"s{place}", terms=each) for place, each in enumerate(terms, start=1)]
    for ordered in (offers, offers[::-1]):
        with pytest.raises(PrivacyError, match=f"^sites {pair} differ in {named}: all sites"):
            Agreement.make(ordered)


def test_terms_in_another_order_of_keys_are_equal() -> None:
    offers = [make_offer("a", terms={"x": 1, "y": 2}), make_offer("b", terms={"y": 2, "x": 1})]
    assert Agreement.make(offers).names == ("a", "b")


@pytest.mark.parametrize("key", [KEY[1:], KEY + "0", KEY.upper(), KEY + "\n", f" {KEY}", ""])
def test_a_member_s_key_has_64_lower_case_digits(key: str) -> None:
    with pytest.raises(ConfigError, match=r"^sites\.members\.b: .* no public key of 64 hexa"):
        agreements.check_member_keys({"a": KEY, "b": key})


def test_two_members_have_two_keys() -> None:
    agreements.check_member_keys({})
    agreements.check_member_keys({"a": KEY, "b": KEY[::-1]})
    with pytest.raises(ConfigError, match=r"^sites\.members\.a: another site has an equal key"):
        agreements.check_member_keys({"c": KEY[::-1], "a": KEY, "b": KEY})
