"""Downloads from a server that misbehaves: what is said, what is on disk, and that a good attempt
afterwards succeeds."""

from __future__ import annotations

import errno
import fcntl
import functools
import hashlib
import itertools
import json
import logging
import random
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from dpprobe.data import dataset_preparation, downloads, torchvision_datasets
from dpprobe.data.download_receipt import RECEIPT, Fetched, Receipt, check_receipt, write_receipt
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
)
from tests.support.misbehaving_server import page as web_page
from tests.support.stored_records import check_values, to_plain

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


def redirect(place: str) -> list[Fault]:
    return [Answer(302, headers={"Location": place})] * 40


WRONG, LATER = Checksum("sha256", "0" * 64), {"Retry-After": "601"}
PAGE = b"\xef\xbb\xbf\n" + web_page().body
# What goes wrong with a first attempt, and options of the server's file and of the attempt.
SCENARIOS: dict[str, tuple[Sequence[Fault], dict[str, Any]]] = {
    "whole": ([], {"name": "part/data.zip", "revision": "v1"}),
    "unsized": ([Unsized()], {}),
    "cut": ([Cut(100_000), Cut(50_000)], {}),
    "no ranges": ([Cut(100_000)], {"ranges": False}),
    "cut for good": ([Cut(1000), Cut(0), Cut(0)], {}),
    "larger": ([Cut(400_000), Cut(0), Cut(0)], {"content": OTHER + OTHER}),
    **{f"{status} twice": ([Answer(status)] * 2, {}) for status in (429, 500, 502, 503, 504)},
    **{f"{status} thrice": ([Answer(status)] * 3, {}) for status in (408, 425, 429, 503, 529)},
    **{str(status): ([Answer(status)], {}) for status in (401, 403, 404, 410, 416, 499)},
    **{
        f"another {kind}": ([], {"content": OTHER, "checksum": Checksum(kind, right.upper())})  # type: ignore[arg-type]
        for kind, right in CHECKSUMS.items()
    },
    "corrected": ([], {"checksum": WRONG}),
    "of two parts": ([Cut(1000), Slow(len(CONTENT), 0.0)] * 10, {"checksum": WRONG}),
    "page": ([Answer(200, PAGE, {"Content-Type": "text/html"})], {}),
    "disguised": ([Answer(200, PAGE, {"Content-Type": "application/octet-stream"})], {}),
    "later": ([Answer(429, headers=LATER)], {}),
    "silent": ([Silent()] * 3, {}),
    "endless": (redirect("/data.zip"), {}),
    "local": (redirect("file:///etc/hostname"), {}),
}


def test_each_fault_has_its_answer_and_a_good_attempt_follows(
    server: Server, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer, what is left beside the file, and the requests of both attempts."""
    answers = {}
    for name, (faults, given) in SCENARIOS.items():
        server.visits.clear()
        of_file = {key: given[key] for key in ("ranges",) if key in given}
        url = server.put("/data.zip", given.get("content", CONTENT), faults=faults, **of_file)
        asked = {key: given[key] for key in given.keys() - {"content", "ranges"}}
        monkeypatch.setattr(downloads, "TIMEOUT", 0.1 if name == "silent" else 5)
        try:
            answer: Any = vars(get(url, path, **asked))
        except DownloadError as error:
            answer = error
        assert "\n" not in str(answer)
        left = files(path)
        monkeypatch.setattr(downloads, "TIMEOUT", 5)
        succeeds(server, path)
        path.unlink()
        visits = [[visit.status, visit.sent] for visit in server.visits]
        shown = json.dumps(to_plain([answer, left, visits]))
        shown = shown.replace(str(path.parent), "FOLDER").replace(server.url(""), "http://HOST")
        answers[name] = json.loads(shown)
    check_values("downloads", answers)


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
        patch.setattr(downloads, "_verify", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            get(url, path)
    assert files(path)[".data.zip.partial"] == 300_000
    get(url, path)
    assert path.read_bytes() == CONTENT
    assert [visit.status for visit in server.visits] == [200, 416]


def test_retry_after_is_waited_for(
    server: Server, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    fault = Answer(429, headers={"Retry-After": "600"})
    get(server.put("/data.zip", CONTENT, faults=[fault]), path)
    assert waits == [600]


def test_a_folder_that_cannot_be_made_is_one_line(server: Server, path: Path) -> None:
    path.parent.write_bytes(b"")
    with pytest.raises(
        DownloadError, match=r"data\.zip: cannot be written \(File exists\); correct"
    ):
        get(server.put("/data.zip", CONTENT), path)


def test_a_host_that_does_not_exist(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    monkeypatch.setattr(socket, "getaddrinfo", Mock(side_effect=unknown))
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
    with downloads._Partial(path):
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
    monkeypatch.setattr(downloads._Partial, "write", FULL)
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
    monkeypatch.setattr("dpprobe.records.write_record", FULL)
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
