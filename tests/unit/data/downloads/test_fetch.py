"""Downloads from a faulty server: the message, the remaining files, and a later success."""

from __future__ import annotations

import errno
import fcntl
import functools
import hashlib
import itertools
import json
import logging
import random
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from dpprobe.data import dataset_preparation
from dpprobe.data.downloads import fetch as downloads
from dpprobe.data.downloads.download_receipt import (
    RECEIPT,
    Fetched,
    Receipt,
    check_receipt,
    write_receipt,
)
from dpprobe.data.downloads.fetch import Checksum, fetch_file
from dpprobe.data.registry import dataset_options
from dpprobe.data.sources import torchvision_datasets
from dpprobe.errors import DataError, DownloadError, WrongDownloadError
from tests.support.misbehaving_server import (
    Answer,
    Cut,
    Fault,
    Server,
    Silent,
    Slow,
    Unsized,
    make_quick,
)
from tests.support.misbehaving_server import page as web_page

CONTENT = random.Random(0).randbytes(300_000)
OTHER = random.Random(1).randbytes(300_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
CHECKSUMS = {
    "sha256": SHA256,
    "md5": hashlib.md5(CONTENT).hexdigest(),
    "git": hashlib.sha1(b"blob 300000\0" + CONTENT).hexdigest(),  # as `git hash-object` prints
}
RIGHT, FULL = Checksum("sha256", SHA256), Mock(side_effect=OSError(errno.ENOSPC, "it is full"))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    make_quick(monkeypatch, attempts=3)
    monkeypatch.setattr(downloads, "TIMEOUT", 5)  # busy machines are slow, not silent


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "downloads" / "data.zip"


def files(path: Path) -> dict[str, int]:
    """Maps the name of each file in a folder to its size in bytes."""
    return {each.name: each.stat().st_size for each in path.parent.iterdir()}


def get(url: str, path: Path, **options: Any) -> Fetched:
    return fetch_file(url, path, **{"checksum": RIGHT, **options})


def refused(
    url: str, path: Path, *, error: type[DownloadError] | None = None, **options: Any
) -> str:
    with pytest.raises(DownloadError) as caught:
        get(url, path, **options)
    # A WrongDownloadError is permanent; other errors may go away.
    assert error in (None, caught.type)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(("data.zip: http://", str(path.parent)))
    return str(caught.value)


def succeeds(server: Server, path: Path) -> None:
    """Checks that a good attempt downloads the whole file and leaves no other file."""
    server.put("/data.zip", CONTENT)
    get(server.url("/data.zip"), path)
    assert path.read_bytes() == CONTENT
    assert files(path) == {"data.zip": len(CONTENT)}


PAGE = b"\xef\xbb\xbf\n" + web_page().body
WRONG = Checksum("sha256", "0" * 64)
PARTIAL = ".data.zip.partial"


@pytest.mark.parametrize(
    ("faults", "ranges", "visits"),
    [
        ([], True, [(200, 300_000)]),
        ([Unsized()], True, [(200, 300_000)]),
        ([Slow(100_000, 0.0)], True, [(200, 300_000)]),
        # Only missing bytes are requested; a server without range requests sends everything again.
        ([Cut(100_000), Cut(50_000)], True, [(200, 100_000), (206, 50_000), (206, 150_000)]),
        ([Cut(100_000)], False, [(200, 100_000), (200, 300_000)]),
        *(
            ([Answer(status)] * 2, True, [(status, 0), (status, 0), (200, 300_000)])
            for status in (408, 425, 429, 500, 502, 503, 504, 529)
        ),
    ],
)
def test_a_file_arrives_whole_whatever_happens_on_the_way(
    server: Server, path: Path, faults: list[Fault], ranges: bool, visits: list[tuple[int, int]]
) -> None:
    url = server.put("/data.zip", CONTENT, faults=faults, ranges=ranges)
    fetched = get(url, path, name="part/data.zip", revision="v1")
    assert path.read_bytes() == CONTENT
    assert files(path) == {"data.zip": 300_000}
    assert [(visit.status, visit.sent) for visit in server.visits] == visits
    assert fetched == Fetched(
        name="part/data.zip", bytes=300_000, sha256=SHA256, url=url, revision="v1"
    )
    assert (get(url, path).name, get(url, path).revision) == ("data.zip", None)


@pytest.mark.parametrize(
    ("faults", "content", "kept", "said", "afterwards"),
    [
        ([Cut(1000), Cut(0), Cut(0)], CONTENT, 1000, "1000 bytes were", [206]),
        # The file became smaller, so the cached bytes belong to another file.
        ([Cut(400_000), Cut(0), Cut(0)], OTHER + OTHER, 400_000, "0.4 MB were", [416, 200]),
    ],
)
def test_received_bytes_are_kept_for_the_next_attempt(
    server: Server,
    path: Path,
    faults: list[Fault],
    content: bytes,
    kept: int,
    said: str,
    afterwards: list[int],
) -> None:
    text = refused(server.put("/data.zip", content, faults=faults), path, error=DownloadError)
    assert "the connection broke, after 3 tries" in text
    assert f"{said} downloaded, and the next attempt continues from there; run again" in text
    assert path.with_name(PARTIAL).read_bytes() == content[:kept]
    assert files(path) == {PARTIAL: kept}
    server.visits.clear()
    succeeds(server, path)
    assert [visit.status for visit in server.visits] == afterwards


# The reason phrases of RFC 9110 and RFC 8470, section 5.2; no standard has 529 and 499. Python
# before 3.13 has another phrase for 416.
STATED = (
    "401 Unauthorized,403 Forbidden,404 Not Found,408 Request Timeout,410 Gone,425 Too Early,"
    "429 Too Many Requests,499,500 Internal Server Error,503 Service Unavailable,529"
)
PHRASES = {int(each[:3]): each for each in STATED.split(",")}
PHRASES[416] = f"416 {HTTPStatus(416).phrase}"


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503, 529])
def test_faults_that_may_pass_are_tried_three_times(
    server: Server, path: Path, status: int
) -> None:
    url = server.put("/data.zip", CONTENT, faults=[Answer(status)] * 3)
    text = refused(url, path, error=DownloadError)
    assert text == (
        f"data.zip: {url}: {PHRASES[status]}, after 3 tries; run again later, or correct the "
        "address"
    )
    assert [visit.status for visit in server.visits] == [status] * 3
    assert files(path) == {}
    succeeds(server, path)


def test_a_server_without_end_is_left(
    server: Server, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "MOST_UNSTATED", 1000)
    monkeypatch.setattr(downloads, "CHUNK_BYTES", 4096)
    url = server.put("/data.zip", CONTENT, faults=[Unsized()])
    assert "more than 1000 bytes, and the server states no size" in refused(
        url, path, error=WrongDownloadError
    )
    assert sum(files(path).values()) <= 2 * 4096
    succeeds(server, path)  # with its length stated by the server


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        (401, "a login; write the login for this host into ~/.netrc"),
        (403, "accept the licence or ask for access"),
        (404, "it was moved or removed: correct the address"),
        *((status, f"{PHRASES[status]}: correct the address") for status in (410, 416, 499)),
    ],
)
def test_permanent_download_errors_are_not_retried(
    server: Server, path: Path, status: int, remedy: str
) -> None:
    text = refused(
        server.put("/data.zip", CONTENT, faults=[Answer(status)]), path, error=WrongDownloadError
    )
    assert text.startswith(f"data.zip: {server.url('/data.zip')}: {PHRASES[status]}: ")
    assert remedy in text
    assert [visit.status for visit in server.visits] == [status]
    assert files(path) == {}
    succeeds(server, path)


@pytest.mark.parametrize("kind", CHECKSUMS)
def test_another_file_than_declared_is_refused_and_kept_apart(
    server: Server, path: Path, kind: Any
) -> None:
    declared = CHECKSUMS[kind].upper()
    url = server.put("/data.zip", OTHER)
    text = refused(url, path, checksum=Checksum(kind, declared), error=WrongDownloadError)
    label, found = {
        "sha256": ("SHA-256", hashlib.sha256(OTHER)),
        "md5": ("MD5", hashlib.md5(OTHER)),
        "git": ("git checksum", hashlib.sha1(b"blob 300000\0" + OTHER)),
    }[kind]
    assert f"{label} {found.hexdigest()} instead of {declared}. The file was changed" in text
    assert text.endswith(f"if the corrected checksum matches, {PARTIAL} is reused")
    assert path.with_name(PARTIAL).read_bytes() == OTHER
    assert files(path) == {PARTIAL: 300_000}
    # The cached bytes are not those of the server's current file, so all is downloaded again.
    server.put("/data.zip", CONTENT)
    get(url, path, checksum=Checksum(kind, declared))
    assert path.read_bytes() == CONTENT
    assert server.sent("/data.zip") == [300_000, 0, 300_000]


@pytest.mark.parametrize(
    ("faults", "visits"),
    [
        ([], [(200, 300_000)]),
        # A resumed file may mix two versions, so it is downloaded again, but only once.
        ([Cut(1000), Slow(300_000, 0.0)] * 10, [(200, 1000), (206, 299_000)] * 2),
    ],
)
def test_a_corrected_checksum_needs_no_second_download(
    server: Server, path: Path, faults: list[Fault], visits: list[tuple[int, int]]
) -> None:
    url = server.put("/data.zip", CONTENT, faults=faults)
    refused(url, path, checksum=WRONG, error=WrongDownloadError)
    assert [(visit.status, visit.sent) for visit in server.visits] == visits
    server.visits.clear()
    succeeds(server, path)
    assert [(visit.status, visit.sent) for visit in server.visits] == [(416, 0)]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (web_page().body, "text/html"),
        (PAGE, "application/octet-stream"),
        (b"  <HTML lang=en>", "application/zip"),
    ],
)
def test_a_web_page_is_reported_and_not_kept(
    server: Server, path: Path, body: bytes, kind: str
) -> None:
    answer = Answer(200, body, {"Content-Type": kind})
    url = server.put("/data.zip", CONTENT, faults=[answer])
    text = refused(url, path, error=WrongDownloadError)
    assert "returns a web page instead of the file" in text
    assert "open the address in a browser" in text
    assert files(path) == {}
    succeeds(server, path)


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_asks_for_a_long_wait_is_left_alone(
    server: Server, path: Path, status: int
) -> None:
    """The server asks for more than ten minutes, in seconds of Retry-After (RFC 9110, 10.2.3)."""
    later = Answer(status, headers={"Retry-After": "601"})
    text = refused(server.put("/data.zip", CONTENT, faults=[later]), path, error=DownloadError)
    assert f"{PHRASES[status]}: the server asks to wait for 601 s; run again after" in text
    assert len(server.visits) == 1
    server.put("/data.zip", CONTENT, faults=[Cut(1000), later])
    assert "601 s; 1000 bytes were downloaded, and the next" in refused(
        server.url("/data.zip"), path
    )
    succeeds(server, path)


def test_a_silent_server_is_not_waited_for_long(
    server: Server, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "TIMEOUT", 0.1)
    url = server.put("/data.zip", CONTENT, faults=[Silent()] * 3)
    text = refused(url, path, error=DownloadError)
    assert "the server stopped responding, after 3 tries" in text
    assert len(server.visits) == 3
    assert files(path) == {}
    monkeypatch.setattr(downloads, "TIMEOUT", 5)
    succeeds(server, path)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("/data.zip", "redirects endlessly; correct the address"),
        ("file:///etc/hostname", "redirects to a non-http address; correct the address"),
        ("ftp://h/data.zip", "redirects to a non-http address; correct the address"),
    ],
)
def test_invalid_redirects_are_not_retried(
    server: Server, path: Path, place: str, said: str
) -> None:
    faults = [Answer(302, headers={"Location": place})] * 40
    text = refused(server.put("/data.zip", CONTENT, faults=faults), path, error=WrongDownloadError)
    assert said in text
    # requests follows up to 30 redirects (DEFAULT_REDIRECT_LIMIT)
    assert len(server.visits) == (31 if place == "/data.zip" else 1)
    assert files(path) == {}
    succeeds(server, path)


def test_a_splice_within_one_attempt_is_found_by_the_checksum(server: Server, path: Path) -> None:
    def replaced() -> Iterator[Fault]:
        yield Cut(1000)
        server.resources["/data.zip"].content = CONTENT

    get(server.put("/data.zip", OTHER, faults=replaced()), path)
    assert path.read_bytes() == CONTENT
    assert server.sent("/data.zip") == [1000, 299_000, 300_000]


def test_what_was_whole_when_a_process_died_is_only_verified(server: Server, path: Path) -> None:
    url = server.put("/data.zip", CONTENT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hashlib.new", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            get(url, path)
    assert files(path)[".data.zip.partial"] == 300_000
    get(url, path)
    assert path.read_bytes() == CONTENT
    assert [visit.status for visit in server.visits] == [200, 416]


def test_a_folder_that_cannot_be_made_is_one_line(server: Server, path: Path) -> None:
    path.parent.write_bytes(b"")
    with pytest.raises(DownloadError, match=r"data\.zip: cannot be written \(File exists\); check"):
        get(server.put("/data.zip", CONTENT), path)


def test_redirects_are_followed_without_the_login(server: Server, path: Path) -> None:
    server.put("/there.zip", CONTENT)
    there = server.url("/there.zip", host="localhost")
    answer = Answer(302, headers={"Location": there})
    url = server.put("/data.zip", b"", faults=[answer])
    get(url, path, headers={"Authorization": "Bearer secret"})
    assert path.read_bytes() == CONTENT
    first, second = server.visits
    assert first.headers["Authorization"] == "Bearer secret"
    assert "Authorization" not in second.headers


def test_a_given_login_is_not_replaced_by_netrc(
    server: Server, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password hidden\n")
    monkeypatch.setenv("NETRC", str(netrc))
    url = server.put("/data.zip", CONTENT)
    get(url, path, headers={"Authorization": "Bearer secret"})
    path.unlink()
    get(url, path)
    assert server.visits[0].headers["Authorization"] == "Bearer secret"
    assert server.visits[1].headers["Authorization"].startswith("Basic ")


@pytest.mark.parametrize(
    "fault",
    [Answer(404), Answer(500), web_page(), Cut(10), Answer(429, headers={"Retry-After": "9999"})],
)
def test_secrets_stay_out_of_messages_logs_and_records(
    server: Server, path: Path, caplog: pytest.LogCaptureFixture, fault: Fault
) -> None:
    caplog.set_level(logging.DEBUG, logger="dpprobe")
    server.put("/data.zip", CONTENT, faults=itertools.repeat(fault))
    url = server.url("/data.zip", host="user:hunter2@127.0.0.1") + "?token=hunter3"
    texts = [refused(url, path)]
    texts += [each.read_text() for each in path.parent.glob("*.json")]
    texts += [each.read_text() for each in path.parent.glob(".*.json")]
    server.put("/data.zip", CONTENT)
    fetched = get(url, path)
    assert fetched.url == server.url("/data.zip") + "?..."
    texts += [each.read_text() for each in path.parent.glob(".*.json")]
    texts += [caplog.text, json.dumps(fetched.__dict__)]
    assert "hunter" not in "".join(texts)


def test_two_processes_do_not_write_one_file(
    server: Server, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.parent.mkdir()
    with downloads.PartialFile(path):
        text = refused(server.put("/data.zip", CONTENT), path)
    assert "another process is fetching this file" in text
    succeeds(server, path)
    partial = path.with_name(".data.zip.partial")
    path.unlink()
    for again in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fcntl, "flock", functools.partial(lose, partial, again))
            assert "another process is fetching" in refused(server.url("/data.zip"), path)
    partial.unlink()
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOLCK, "no locks")))
    succeeds(server, path)
    path.unlink()
    monkeypatch.setattr(downloads.PartialFile, "write", FULL)
    with pytest.raises(OSError, match="it is full"):
        get(server.url("/data.zip"), path)


def lose(path: Path, again: bool, *_: object) -> None:
    path.unlink()
    if again:
        path.touch()


def test_a_file_with_the_right_checksum_is_kept_without_a_request(
    server: Server, path: Path
) -> None:
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    for kind, value in CHECKSUMS.items():
        checksum = Checksum(kind, value)  # type: ignore[arg-type]
        assert get(server.url("/data.zip"), path, checksum=checksum).sha256 == SHA256
    assert server.visits == []


def test_a_file_with_another_checksum_is_fetched_again(server: Server, path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(OTHER)
    refused(server.put("/data.zip", CONTENT, faults=[Answer(404)]), path)
    assert path.read_bytes() == OTHER
    succeeds(server, path)


def test_a_disk_that_fills_under_the_receipt_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torchvision_datasets, "download", lambda *_: [])
    monkeypatch.setattr("dpprobe.files.records.write_record", FULL)
    options = dataset_options({"source": "torchvision", "name": "MNIST"})
    with pytest.raises(DataError, match="the disk filled up while files were fetched; free space"):
        dataset_preparation.download_dataset(options, tmp_path / "mnist")
    assert list((tmp_path / "mnist").iterdir()) == []


FETCHED = Fetched(name="data.zip", bytes=300_000, sha256=SHA256, url="https://example.org/data.zip")


def test_a_receipt_says_what_was_fetched(tmp_path: Path) -> None:
    (tmp_path / FETCHED.name).write_bytes(CONTENT)
    write_receipt(tmp_path, [FETCHED], params={"name": "x"})
    receipt = check_receipt(tmp_path, params={"name": "x"})
    assert receipt == Receipt(files=(FETCHED,), params={"name": "x"}, revision=None)
    for known, told in (("v1", "v1"), ("v2", None), (None, None)):
        files = [FETCHED.model_copy(update={"revision": each}) for each in ("v1", known)]
        write_receipt(tmp_path, files, params=None)
        assert check_receipt(tmp_path, params=None).revision == told
    with pytest.raises(DataError, match=rf"options of this .* changed.*delete .*{RECEIPT}"):
        check_receipt(tmp_path, params={"name": "y"})


def test_a_receipt_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / FETCHED.name
    write_receipt(tmp_path, [FETCHED], params=None)
    for content, found in ((CONTENT[:-1], "299999 bytes"), (CONTENT + b"x", "300001 bytes")):
        path.write_bytes(content)
        with pytest.raises(DataError, match=rf"{found}, but 300000 .* delete .*{RECEIPT}"):
            check_receipt(tmp_path, params=None)
    path.unlink()
    with pytest.raises(DataError, match=rf"missing, but 300000 .* delete .*{RECEIPT}"):
        check_receipt(tmp_path, params=None)
    (tmp_path / RECEIPT).unlink()
    with pytest.raises(DataError, match=rf"{RECEIPT}: unreadable .*; delete it and run again"):
        check_receipt(tmp_path, params=None)
