"""Downloads from a server that misbehaves: what is said, what is on disk, and that a good attempt
afterwards succeeds."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import logging
import os
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpprobe.data import dataset_preparation, downloads, torchvision_datasets
from dpprobe.data.download_receipt import Fetched
from dpprobe.data.downloads import Checksum, fetch_file
from dpprobe.data.registry import dataset_options
from dpprobe.errors import DataError, DownloadError
from tests.support.misbehaving_server import (
    Answer,
    Cut,
    Fault,
    Server,
    Silent,
    Slow,
    Unsized,
    make_quick,
    serve,
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
RIGHT = Checksum("sha256", SHA256)
WAIT = downloads.WAIT  # before `make_quick` replaces it


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    make_quick(monkeypatch, attempts=3)


@pytest.fixture
def server() -> Iterator[Server]:
    with serve() as running:
        yield running


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "downloads" / "data.zip"


def files(path: Path) -> dict[str, int]:
    """Reads a folder: name -> bytes."""
    return {each.name: each.stat().st_size for each in path.parent.iterdir()}


def get(url: str, path: Path, **options: Any) -> Fetched:
    return fetch_file(url, path, **{"checksum": RIGHT, **options})


def refused(url: str, path: Path, **options: Any) -> str:
    with pytest.raises(DownloadError) as caught:
        get(url, path, **options)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(("data.zip: http://", str(path.parent)))
    return str(caught.value)


def succeeds(server: Server, path: Path) -> None:
    """A good attempt gives the whole file and leaves nothing beside it."""
    server.put("/data.zip", CONTENT)
    get(server.url("/data.zip"), path)
    assert path.read_bytes() == CONTENT
    assert files(path) == {"data.zip": len(CONTENT)}


PARTIAL = {".data.zip.partial": 1000}


def test_a_file_comes_whole_and_is_described(server: Server, path: Path) -> None:
    url = server.put("/data.zip", CONTENT)
    fetched = get(url, path, name="part/data.zip", revision="v1")
    assert fetched == Fetched(
        name="part/data.zip", bytes=300_000, sha256=SHA256, url=url, revision="v1"
    )
    assert path.read_bytes() == CONTENT
    assert files(path) == {"data.zip": 300_000}


@pytest.mark.parametrize(
    ("faults", "ranges", "sent"),
    [
        ([Cut(100_000), Cut(50_000)], True, [100_000, 50_000, 150_000]),
        ([Cut(100_000)], False, [100_000, 300_000]),
        ([Unsized()], True, [300_000]),
        *(([Answer(status)] * 2, True, None) for status in (429, 500, 502, 503, 504)),
    ],
)
def test_a_fault_that_passes_costs_only_what_is_missing(
    server: Server, path: Path, faults: list[Fault], ranges: bool, sent: list[int] | None
) -> None:
    get(server.put("/data.zip", CONTENT, faults=faults, ranges=ranges), path)
    assert path.read_bytes() == CONTENT
    assert len(server.visits) == len(sent or faults) + (sent is None)
    assert sent in (None, server.sent("/data.zip"))


def test_what_an_earlier_process_left_is_gone_on_with(server: Server, path: Path) -> None:
    url = server.put("/data.zip", CONTENT, faults=[Cut(1000), Cut(0), Cut(0)])
    text = refused(url, path)
    assert "the connection broke, after 3 tries" in text
    assert "1000 bytes were downloaded, and the next attempt continues from there" in text
    assert files(path) == PARTIAL
    succeeds(server, path)
    assert server.sent("/data.zip")[-1] == 299_000


def test_a_splice_within_one_attempt_is_found_by_the_checksum(server: Server, path: Path) -> None:
    def replaced() -> Iterator[Fault]:
        yield Cut(1000)
        server.resources["/data.zip"].content = CONTENT

    get(server.put("/data.zip", OTHER, faults=replaced()), path)
    assert path.read_bytes() == CONTENT
    assert server.sent("/data.zip") == [1000, 299_000, 300_000]


def test_a_partial_file_larger_than_the_servers_is_dropped(server: Server, path: Path) -> None:
    url = server.put("/data.zip", OTHER + OTHER, faults=[Cut(400_000), Cut(0), Cut(0)])
    refused(url, path)
    server.put("/data.zip", CONTENT)
    get(url, path)
    assert server.visits[-2].status == 416
    assert path.read_bytes() == CONTENT


def test_what_was_whole_when_a_process_died_is_only_verified(server: Server, path: Path) -> None:
    url = server.put("/data.zip", CONTENT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(downloads, "_verify", _died)
        with pytest.raises(KeyboardInterrupt):
            get(url, path)
    assert files(path)[".data.zip.partial"] == 300_000
    get(url, path)
    assert path.read_bytes() == CONTENT
    assert [visit.status for visit in server.visits] == [200, 416]


def _died(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("kind", "label"), [("sha256", "SHA-256"), ("md5", "MD5"), ("git", "git checksum")]
)
def test_a_wrong_checksum_is_named_and_kept_apart(
    server: Server, path: Path, kind: Any, label: str
) -> None:
    right = Checksum(kind, CHECKSUMS[kind].upper())
    url = server.put("/data.zip", OTHER)
    text = refused(url, path, checksum=right)
    assert f": {label} " in text
    assert f" instead of {CHECKSUMS[kind].upper()}" in text
    assert "if the corrected checksum matches, .data.zip.partial is reused" in text
    assert files(path) == {".data.zip.partial": 300_000}
    assert len(server.visits) == 1
    server.put("/data.zip", CONTENT)
    assert get(url, path, checksum=right).sha256 == SHA256
    assert files(path) == {"data.zip": 300_000}


def test_a_corrected_checksum_takes_what_has_arrived(server: Server, path: Path) -> None:
    url = server.put("/data.zip", CONTENT)
    refused(url, path, checksum=Checksum("sha256", "0" * 64))
    assert get(url, path).sha256 == SHA256
    assert files(path) == {"data.zip": 300_000}
    assert server.sent("/data.zip") == [300_000, 0]


@pytest.mark.parametrize(
    "kind", ["text/html", "application/octet-stream"], ids=["named", "disguised"]
)
def test_a_web_page_in_place_of_a_file(server: Server, path: Path, kind: str) -> None:
    answer = web_page()
    page = Answer(200, b"\xef\xbb\xbf\n" + answer.body, {"Content-Type": kind})
    text = refused(server.put("/data.zip", CONTENT, faults=[page]), path)
    assert "the address returns a web page instead of the file" in text
    assert files(path) == {}
    succeeds(server, path)


@pytest.mark.parametrize("status", [401, 403, 404, 410, 416])
def test_what_no_retry_helps_is_said_at_once(server: Server, path: Path, status: int) -> None:
    text = refused(server.put("/data.zip", CONTENT, faults=[Answer(status)]), path)
    assert f": {status} " in text
    assert len(server.visits) == 1
    assert files(path) == {}
    succeeds(server, path)


def test_a_fault_that_stays_ends_in_an_error(server: Server, path: Path) -> None:
    url = server.put("/data.zip", CONTENT, faults=itertools.repeat(Answer(503)))
    text = refused(url, path)
    assert "503 Service Unavailable, after 3 tries" in text
    assert len(server.visits) == 3
    assert files(path) == {}
    succeeds(server, path)


@pytest.mark.parametrize("seconds", [20, 86400])
def test_retry_after_is_honoured_within_reason(
    server: Server, path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    fault = Answer(429, headers={"Retry-After": str(seconds)})
    url = server.put("/data.zip", CONTENT, faults=[fault])
    if seconds == 20:
        get(url, path)
        assert waits == [20]
    else:
        assert "86400 s" in refused(url, path)
        assert len(server.visits) == 1


def test_a_folder_that_cannot_be_made_is_one_line(server: Server, path: Path) -> None:
    path.parent.write_bytes(b"")
    with pytest.raises(
        DownloadError, match=r"data\.zip: cannot be written \(File exists\); correct"
    ):
        get(server.put("/data.zip", CONTENT), path)


def test_a_server_that_falls_silent(
    server: Server, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "TIMEOUT", 0.1)
    text = refused(server.put("/data.zip", CONTENT, faults=itertools.repeat(Silent())), path)
    assert "the server fell silent, after 3 tries" in text
    monkeypatch.undo()
    succeeds(server, path)


def test_a_host_that_does_not_exist(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    text = refused("http://no-such-host.invalid/data.zip", path)
    assert "name or service not known, after 3 tries" in text


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
    ("place", "words"),
    [("/data.zip", "redirects endlessly"), ("file:///etc/hostname", "to a non-http address")],
)
def test_redirects_that_lead_nowhere(server: Server, path: Path, place: str, words: str) -> None:
    answer = Answer(302, headers={"Location": place})
    assert words in refused(server.put("/data.zip", b"", faults=itertools.repeat(answer)), path)


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


def test_two_processes_do_not_write_one_file(server: Server, path: Path) -> None:
    path.parent.mkdir()
    with downloads._Partial(path):
        text = refused(server.put("/data.zip", CONTENT), path)
    assert "another process is fetching this file" in text
    succeeds(server, path)


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


def test_a_wrong_checksum_is_not_fetched_for_ever(server: Server, path: Path) -> None:
    """Each attempt is put together from two parts, as the connection always breaks once."""
    faults: list[Fault] = [Cut(1000), Slow(len(CONTENT), 0.0)] * 10
    text = refused(
        server.put("/data.zip", CONTENT, faults=faults), path, checksum=Checksum("sha256", "0" * 64)
    )
    assert f"instead of {'0' * 64}" in text
    assert server.sent("/data.zip") == [1000, 299_000] * 2


def test_a_disk_that_fills_under_the_receipt_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(torchvision_datasets, "download", lambda *_: [])
    monkeypatch.setattr("dpprobe.records.write_record", full)
    options = dataset_options({"source": "torchvision", "name": "MNIST"})
    with pytest.raises(DataError, match="the disk filled up while files were fetched; free space"):
        dataset_preparation.download_dataset(options, tmp_path / "mnist")
    assert list((tmp_path / "mnist").iterdir()) == []
