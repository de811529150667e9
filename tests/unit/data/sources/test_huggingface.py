"""Datasets of the Hugging Face Hub, downloaded from a local stand-in of the Hub."""

from __future__ import annotations

import hashlib
import io
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dpprobe.data import dataset_preparation
from dpprobe.data.options import DatasetOptions
from dpprobe.data.registry import dataset_options
from dpprobe.data.sources import huggingface
from dpprobe.data.table import SplitTable, read_info
from dpprobe.errors import ConfigError, DataError, DownloadError, WrongDownloadError
from tests.support.hub_server import COMMIT, STRANGER, TOKEN, Hub, Repository, ask_only, serve
from tests.support.misbehaving_server import make_quick
from tests.support.refusals import refuses
from tests.support.shards import png
from tests.support.sources import read_folder, write_parquet

REPO = "someone/leaves"
TRAIN = ("data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet")
TEST = "data/test-00000-of-00001.parquet"
ROWS = 40


def table(first: int, *, several: bool = False) -> bytes:
    """Returns a parquet file that follows the Hub's image convention."""
    stream, rows = io.BytesIO(), range(first, first + ROWS)
    images = [{"bytes": png(row), "path": f"ILSVRC2012_val_{row:08d}_x.JPEG"} for row in rows]
    labels = [[row % 2, 1] if several else row % 2 for row in range(ROWS)]
    write_parquet(stream, labels, None if several else ["leaf", "stone"], image=images)
    return stream.getvalue()


FILES = {"README.md": b"A card.", TRAIN[0]: table(101), TRAIN[1]: table(201), TEST: table(1)}


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(huggingface, "WAITS", (0.0, 0.0))
    make_quick(monkeypatch, attempts=3)
    with serve({REPO: Repository(dict(FILES))}) as running:
        ask_only(running.url, monkeypatch)
        yield running


def options_of(**values: Any) -> huggingface.Options:
    written = {
        "source": "huggingface",
        "repo": REPO,
        "revision": COMMIT,
        "train": "data/train-*.parquet",
        "test": "data/test-*.parquet",
    }
    options = dataset_options(written | values)
    assert isinstance(options, huggingface.Options)
    return options


def run(options: DatasetOptions, tmp_path: Path) -> tuple[SplitTable, SplitTable]:
    options.check_files()
    dataset_preparation.download_dataset(options, tmp_path / "downloads")
    dataset_preparation.prepare_dataset(
        options, tmp_path / "tables", downloaded=tmp_path / "downloads"
    )
    return tuple(SplitTable(tmp_path / "tables" / f"{name}.parquet") for name in ("train", "test"))  # type: ignore[return-value]


def refused(options: DatasetOptions, directory: Path, error: type[Exception]) -> str:
    """Returns the error of a download; checks that no receipt marks the download as finished."""
    with pytest.raises(error) as caught:
        dataset_preparation.download_dataset(options, directory)
    assert not (directory / "receipt.json").exists()
    message = str(caught.value)
    assert "\n" not in message
    assert TOKEN not in message
    return message


def test_a_repository_becomes_split_tables(hub: Hub, tmp_path: Path) -> None:
    run(options_of(expect={"train": 2 * ROWS, "test": ROWS, "classes": 2}), tmp_path)
    written = json.loads((tmp_path / "tables/dataset.json").read_text())
    assert written["revision"] == COMMIT
    assert written["source"]["source"] == "huggingface"
    assert written["source"]["repo"] == REPO
    receipt = json.loads((tmp_path / "downloads/receipt.json").read_text())
    hashes = {part["name"]: part["sha256"] for part in receipt["files"]}
    for name in (*TRAIN, TEST):
        assert hashes[f"repository/{name}"] == hashlib.sha256(FILES[name]).hexdigest()
    # Files that no pattern names are not downloaded.
    assert "README.md" not in hub.served


def test_masks_are_refused_and_left_out(hub: Hub, tmp_path: Path) -> None:
    names = [f"{number}{end}.png" for number in range(ROWS // 2) for end in ("", "_mask")]
    images = [{"bytes": png(n), "path": name} for n, name in enumerate(names)]
    stream = io.BytesIO()
    labels = [number // 2 % 2 for number in range(ROWS)]
    write_parquet(stream, labels, ["leaf", "stone"], image=images)
    hub.repositories[REPO].files[TRAIN[0]] = stream.getvalue()
    keys: dict[str, Any] = {"train": TRAIN[0], "test": None}
    with refuses(ConfigError, "companions: [mask]", f"{ROWS // 2} of {ROWS}"):
        run(options_of(**keys), tmp_path)
    tables = run(options_of(**keys, companions=["mask"]), tmp_path)
    assert sum(table.rows for table in tables) == ROWS // 2


def test_a_second_run_continues_where_the_first_gave_up(hub: Hub, tmp_path: Path) -> None:
    size = len(FILES[TRAIN[1]])
    hub.breaks[TRAIN[1]] = (10, 1000)
    refused(options_of(), tmp_path, DownloadError)
    assert read_folder(tmp_path)[f"repository/{TRAIN[0]}"] == FILES[TRAIN[0]]
    assert f"repository/{TRAIN[1]}" not in read_folder(tmp_path)
    had = hub.served[TRAIN[1]]
    assert 0 < had < size
    hub.breaks.clear()
    dataset_preparation.download_dataset(options_of(), tmp_path)
    assert hub.served[TRAIN[1]] == size
    assert hub.served[TRAIN[0]] == len(FILES[TRAIN[0]])


def change(**parts: Any) -> Callable[[Hub, pytest.MonkeyPatch], None]:
    """Returns a function that changes the repository."""
    return lambda hub, _: vars(hub.repositories[REPO]).update(parts)


def fail(failures: list[int]) -> Callable[[Hub, pytest.MonkeyPatch], None]:
    return lambda hub, _: hub.failures.extend(failures)


def ask_as_a_stranger(hub: Hub, patch: pytest.MonkeyPatch) -> None:
    change(gated=True)(hub, patch)
    patch.setenv("HF_TOKEN", STRANGER)


Spoil = Callable[[Hub, pytest.MonkeyPatch], Any]
PAGE = f"https://huggingface.co/datasets/{REPO}"
NO_LOGIN = "set HF_TOKEN for a private dataset"
# The options, the fault, the error, facts in its message, and the number of requests for a commit.
REFUSED: dict[str, tuple[dict[str, Any], Spoil, type[Exception], list[str], int]] = {
    # the list of files is public, the first file is not
    "gated": (
        {},
        change(gated=True),
        ConfigError,
        ["gated, and no token is set", f"accept the licence at {PAGE}", "`hf auth login`"],
        2,
    ),
    "terms not accepted": (
        {},
        ask_as_a_stranger,
        ConfigError,
        ["gated, and the token's account has not accepted it", f"accept the licence at {PAGE}"],
        2,
    ),
    "wrong token": (
        {},
        lambda _, patch: patch.setenv("HF_TOKEN", "hf_wrong"),
        ConfigError,
        ["status 401", f"write a commit of {PAGE}/commits/main", "correct the token in HF_TOKEN"],
        1,
    ),
    "no commit": (
        {"revision": "f" * 40},
        change(),
        ConfigError,
        [f"{REPO} at {'f' * 40}: the Hub refuses access (status 404)", NO_LOGIN],
        0,
    ),
    "no name": (
        {"repo": "other/none"},
        change(),
        ConfigError,
        [f"other/none at {COMMIT}", "datasets/other/none/commits/main", "correct the name"],
        1,
    ),
    "no file": (
        {"test": "data/validation-*"},
        change(),
        ConfigError,
        [f"no file data/validation-*; it has {TEST}, {TRAIN[0]}, {TRAIN[1]}: correct the pattern"],
        1,
    ),
    "offline": (
        {},
        lambda _, patch: patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True),
        ConfigError,
        ["HF_HUB_OFFLINE is set", "unset it", "`source: parquet`"],
        0,
    ),
    **{
        f"another commit {stated}": (
            {},
            change(stated=stated),
            DownloadError,
            [f"answered with commit {told}, but {COMMIT} was requested; {remedy}"],
            1,
        )
        for stated, told, remedy in (
            *(
                (other, other, f"write {other} if you mean that commit")
                for other in (f"{COMMIT[:-1]}8", "f" * 40)
            ),
            (COMMIT[:12], COMMIT[:12], "run again, or correct HF_ENDPOINT"),
            ("", "(none)", "run again, or correct HF_ENDPOINT"),
        )
    },
    **{
        f"{status} always": (
            {},
            fail([status] * 3),
            DownloadError,
            [f"does not answer (status {status}) after 3 attempts; check the network"],
            3,
        )
        for status in (503, 429)
    },
    **{
        f"{status} once": ({}, fail([status]), ConfigError, [f"(status {status})", NO_LOGIN], 1)
        for status in (401, 404)
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_hugging_face_error_states_the_remedy_and_writes_no_files(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    values, spoil, error, facts, requests = REFUSED[name]
    spoil(hub, monkeypatch)
    message = refused(options_of(**values), tmp_path / "deep/folder", error)
    assert message.startswith(values.get("repo", REPO))
    assert [fact for fact in facts if fact not in message] == [], message
    assert "hf_wrong" not in message
    assert STRANGER not in message
    assert read_folder(tmp_path) == {}
    assert sum(COMMIT in each for each in hub.requests) == requests, hub.requests


@pytest.mark.parametrize("failures", [[], [503, 429], [500, 408]])
def test_a_hub_that_recovers_is_asked_again(hub: Hub, tmp_path: Path, failures: list[int]) -> None:
    hub.failures.extend(failures)
    dataset_preparation.download_dataset(options_of(), tmp_path)
    left = read_folder(tmp_path)
    left.pop("receipt.json")
    assert left == {f"repository/{name}": FILES[name] for name in (*TRAIN, TEST)}
    # one request for the list, two for each of three files: its checksum and its bytes
    assert sum(COMMIT in each for each in hub.requests) == 7 + len(failures), hub.requests


def test_a_file_of_both_splits_is_fetched_once(hub: Hub, tmp_path: Path) -> None:
    dataset_preparation.download_dataset(options_of(train="*.parquet"), tmp_path)
    assert hub.served == {name: len(FILES[name]) for name in (*TRAIN, TEST)}
    receipt = json.loads((tmp_path / "receipt.json").read_text())
    # sorted by name within a pattern
    names = [part["name"] for part in receipt["files"]]
    assert names == [f"repository/{name}" for name in (TEST, *TRAIN)]


@pytest.mark.parametrize("path", ["../../leaves.parquet", "/leaves.parquet", "a/../leaves.parquet"])
def test_a_file_outside_the_repository_is_not_fetched(hub: Hub, tmp_path: Path, path: str) -> None:
    hub.repositories[REPO].files = FILES | {path: FILES[TEST]}
    folder = tmp_path / "deep/folder"
    message = refused(options_of(test="*leaves.parquet"), folder, DownloadError)
    assert f"{REPO}: file {path!r} lies outside the repository" in message
    assert sorted(read_folder(tmp_path)) == [f"deep/folder/repository/{name}" for name in TRAIN]


@pytest.mark.parametrize(("in_git", "kind"), [(False, "SHA-256"), (True, "git checksum")])
def test_a_file_with_another_checksum_is_kept_apart_and_fetched_again(
    hub: Hub, tmp_path: Path, in_git: bool, kind: str
) -> None:
    data = bytearray(FILES[TEST])
    data[len(data) // 2] ^= 1
    hub.corrupt[TEST] = bytes(data)
    hub.repositories[REPO].in_git = frozenset({TEST} if in_git else ())
    message = refused(options_of(), tmp_path, WrongDownloadError)
    blob = b"blob %d\0" % len(data)
    found, right = (
        hashlib.sha1(blob + each).hexdigest() if in_git else hashlib.sha256(each).hexdigest()
        for each in (bytes(data), FILES[TEST])
    )
    assert f"{Path(TEST).name}: {hub.url}/datasets/{REPO}/resolve/{COMMIT}/{TEST}" in message
    assert f"{kind} {found} instead of {right}" in message
    left = read_folder(tmp_path)
    assert left.pop("repository/data/.test-00000-of-00001.parquet.partial") == bytes(data)
    assert left == {f"repository/{name}": FILES[name] for name in TRAIN}
    hub.corrupt.clear()
    dataset_preparation.download_dataset(options_of(), tmp_path)
    assert read_folder(tmp_path)[f"repository/{TEST}"] == FILES[TEST]


@pytest.mark.parametrize("revision", ["main", "", "0" * 12, "0" * 39, "0" * 41, "A" * 40, "g" * 40])
def test_a_revision_is_a_whole_commit(revision: str) -> None:
    """Git writes a commit as 40 lowercase hexadecimal digits."""
    with pytest.raises(ConfigError, match=f"revision: '{revision}' is not a commit.*40 hexadec"):
        options_of(revision=revision)


@pytest.mark.parametrize("repo", ["a", "a/", "/b", "a/b/c", "a b/c", "https://h/a/b", ""])
def test_a_repository_has_an_owner_and_a_name(repo: str) -> None:
    with pytest.raises(ConfigError, match="repo: "):
        options_of(repo=repo)


def test_files_are_fetched_again_only_if_other_files_are_asked_for() -> None:
    accepted = {"url": "http://h/x.json", "sha256": "0" * 64}
    fetched = options_of().download_params()
    others: tuple[dict[str, Any], ...] = (
        {"repo": "some.one/l-e_aves"},
        {"revision": "a" * 40},
        {"train": "t"},
        {"test": None},
        {"accepted_labels": accepted},
    )
    for changed in others:
        other = options_of(**changed)
        assert other.download_params() != fetched, changed
        assert other.preparation_params() != options_of().preparation_params(), changed
    relabelled: tuple[dict[str, Any], ...] = (
        {"several_labels": True},
        {"limit": {"train": 5}},
        {"class_names": ["a", "b"]},
    )
    for changed in relabelled:
        other = options_of(**changed)
        assert other.download_params() == fetched, changed
        assert other.preparation_params() != options_of().preparation_params(), changed
        assert other.image_params() == options_of().image_params(), changed


def test_limits_and_accepted_labels_of_test_rows_need_a_test_split() -> None:
    accepted = {"url": "http://h/x.json", "sha256": "0" * 64}
    for changed, named in (
        ({"limit": {"test": 5}}, r"limit\.test: .*remove limit\.test"),
        ({"accepted_labels": accepted}, "accepted_labels: .*no `test`; name the test files"),
    ):
        options_of(**changed).check_files()
        with pytest.raises(ConfigError, match=named):
            options_of(**changed, test=None).check_files()
    options_of(limit={"train": 5}, test=None).check_files()


def test_what_is_known_before_a_download_is_what_is_written() -> None:
    assert options_of().has_test()
    assert not options_of(test=None).has_test()
    assert options_of(class_names=["a", "b", "c"], expect={"classes": 2}).count_classes() == 3
    assert options_of(expect={"classes": 2}).count_classes() == 2
    assert options_of().count_classes() is None
    assert (options_of().multi_label(), options_of(several_labels=True).multi_label()) == (0, 1)


@pytest.mark.parametrize("place", ["variable", "login"])
def test_a_token_is_only_for_the_hub(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    hub.repositories[REPO].gated = True
    if place == "variable":
        monkeypatch.setenv("HF_TOKEN", TOKEN)
    else:
        (tmp_path / "token").write_text(TOKEN)
    dataset_preparation.download_dataset(options_of(), tmp_path / "downloads")
    # Large files are on another host, which must not receive the token.
    assert not hub.store_saw_token
    assert TOKEN.encode() not in (tmp_path / "downloads/receipt.json").read_bytes()


def test_no_network_ends_in_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        ask_only(f"http://127.0.0.1:{port}", monkeypatch)
        message = refused(options_of(), tmp_path, DownloadError)
    assert "check the network" in message


def real_json() -> bytes:
    """Returns labels for three in four images, and for more images than the split has."""
    return json.dumps([[] if row % 4 == 0 else [row % 2, 1] for row in range(ROWS + 7)]).encode()


def local(tmp_path: Path, labels: Any) -> DatasetOptions:
    for name in (TRAIN[0], TEST):
        path = tmp_path / Path(name).name
        path.write_bytes(FILES[name])
    (tmp_path / "real.json").write_text(labels if isinstance(labels, str) else json.dumps(labels))
    written = {
        "source": "parquet",
        "train": str(tmp_path / Path(TRAIN[0]).name),
        "test": str(tmp_path / Path(TEST).name),
        "accepted_labels": {"file": str(tmp_path / "real.json")},
    }
    return dataset_options(written)


FORM, UNREAD = "not a list of lists; name a file with the structure", "cannot be read"


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        # The test images are numbered from 1 to 40.
        (
            [[0]] * (ROWS - 1),
            f"test row {ROWS - 1}: .* images 1 to {ROWS - 1}, but no image {ROWS}; name",
        ),
        ([[0]] * 3 + [[7]] * ROWS, "image 4: label 7 is not a number from 0 to 1"),
        ([[0]] * 3 + [[1, 2]] * ROWS, "image 4: label 2 is not a number from 0 to 1"),
        ([[-1]] * ROWS, "image 1: label -1 is not"),
        ([[True]] * ROWS, "image 1: label True is not"),
        ([[1.0]] * ROWS, r"image 1: label 1\.0 is not"),
        ([["0"]] * ROWS, "image 1: label '0' is not"),
        ([[0], *[3] * (ROWS - 1)], FORM),
        ([None] * ROWS, FORM),
        ([0] * ROWS, FORM),
        ({"1": [0]}, FORM),
        ("{", UNREAD),
        ("[[0]", UNREAD),
        ("", UNREAD),
    ],
)
def test_accepted_labels_that_do_not_fit_are_refused(
    tmp_path: Path, labels: Any, said: str
) -> None:
    with pytest.raises(DataError, match=said) as caught:
        dataset_preparation.prepare_dataset(local(tmp_path, labels), tmp_path / "tables")
    assert ("real.json" in str(caught.value)) != ("test row" in str(caught.value))
    assert not (tmp_path / "tables/dataset.json").exists()


def test_accepted_labels_are_next_to_the_test_rows_without_their_address(
    hub: Hub, tmp_path: Path
) -> None:
    labels = real_json()
    hub.repositories["other/labels"] = Repository({"real.json": labels})
    accepted = {
        "url": f"{hub.url}/store/other/labels/real.json",
        "sha256": hashlib.sha256(labels).hexdigest(),
    }
    options = options_of(accepted_labels=accepted)
    secret = options_of(accepted_labels={**accepted, "url": accepted["url"] + "?t=hidden"})
    assert secret.download_params() == options.download_params()
    assert secret.preparation_params() == options.preparation_params()
    train, test = run(secret, tmp_path)
    # The test images are numbered from 1.
    assert test.read_accepted() == json.loads(labels)[:ROWS]
    assert train.read_accepted() == [[]] * train.rows
    assert read_info(tmp_path / "tables/dataset.json").accepted
    for name in ("tables/dataset.json", "downloads/receipt.json"):
        assert "hidden" not in (tmp_path / name).read_text()
    # Another file leads to other tables.
    third = options_of(accepted_labels={**accepted, "sha256": "0" * 64})
    assert third.download_params() != options.download_params()
    assert third.preparation_params() != options.preparation_params()
    for wrong in ("http://me:hidden@h/real.json", "ftp://h/real.json"):
        with pytest.raises(ConfigError, match=r"accepted_labels\.url") as caught:
            options_of(accepted_labels={**accepted, "url": wrong})
        assert "hidden" not in str(caught.value)
