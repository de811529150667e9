"""The Hub's source, against a stand-in of the Hub: what arrives, what is refused, what is left."""

from __future__ import annotations

import hashlib
import io
import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import errors

from dpprobe.data import dataset_preparation, huggingface
from dpprobe.data.options import DatasetOptions
from dpprobe.data.registry import dataset_options
from dpprobe.data.table import SplitTable, read_info
from dpprobe.errors import ConfigError, DataError, DownloadError
from tests.support.hub_server import COMMIT, TOKEN, Hub, Repository, ask_only, serve
from tests.support.misbehaving_server import make_quick
from tests.support.shards import png
from tests.support.sources import read_folder, write_parquet
from tests.support.stored_records import check_values, to_plain

REPO = "someone/leaves"
TRAIN = ("data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet")
TEST = "data/test-00000-of-00001.parquet"
ROWS = 40


def table(first: int, *, several: bool = False) -> bytes:
    """A parquet file in the Hub's image convention."""
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


def options_of(**values: Any) -> DatasetOptions:
    written = {
        "source": "huggingface",
        "repo": REPO,
        "revision": COMMIT,
        "train": "data/train-*.parquet",
        "test": "data/test-*.parquet",
    }
    return dataset_options(written | values)


def run(options: DatasetOptions, tmp_path: Path) -> tuple[SplitTable, SplitTable]:
    options.check_files()
    dataset_preparation.download_dataset(options, tmp_path / "downloads")
    dataset_preparation.prepare_dataset(
        options, tmp_path / "tables", downloaded=tmp_path / "downloads"
    )
    return tuple(SplitTable(tmp_path / "tables" / f"{name}.parquet") for name in ("train", "test"))  # type: ignore[return-value]


def refused(options: DatasetOptions, directory: Path, error: type[Exception]) -> str:
    """The message of a refused download; nothing may be left that looks finished."""
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
    # What no pattern names stays where it is.
    assert "README.md" not in hub.served


def test_a_second_run_goes_on_where_the_first_gave_up(hub: Hub, tmp_path: Path) -> None:
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
    """Changes the repository."""
    return lambda hub, _: vars(hub.repositories[REPO]).update(parts)


def fail(failures: list[int]) -> Callable[[Hub, pytest.MonkeyPatch], None]:
    return lambda hub, _: hub.failures.extend(failures)


def corrupt(hub: Hub, _: pytest.MonkeyPatch) -> None:
    data = bytearray(FILES[TEST])
    data[len(data) // 2] ^= 1
    hub.corrupt[TEST] = bytes(data)


def corrupt_in_git(hub: Hub, patch: pytest.MonkeyPatch) -> None:
    change(in_git=frozenset({TEST}))(hub, patch)
    corrupt(hub, patch)


Spoil = Callable[[Hub, pytest.MonkeyPatch], Any]
REFUSALS: dict[str, tuple[dict[str, Any], Spoil]] = {
    "gated": ({}, change(gated=True)),
    "both": ({"train": "*.parquet"}, change()),
    "wrong token": ({}, lambda _, patch: patch.setenv("HF_TOKEN", "hf_wrong")),
    "no commit": ({"revision": "f" * 40}, change()),
    "no name": ({"repo": "other/none"}, change()),
    "no file": ({"test": "data/validation-*"}, change()),
    **{
        name: ({"test": "*leaves.parquet"}, change(files=FILES | {path: FILES[TEST]}))
        for name, path in (("leaves", "../../leaves.parquet"), ("absolute", "/leaves.parquet"))
    },
    "corrupt": ({}, corrupt),
    "corrupt in git": ({}, corrupt_in_git),
    **{
        f"commit {at}": ({}, change(stated=commit))
        for at, commit in enumerate((f"{COMMIT[:-1]}8", COMMIT[:12], "", "f" * 40))
    },
    **{
        str(failures): ({}, fail(failures))
        for failures in ([503] * 3, [429] * 3, [401], [404], [503, 429], [500, 408])
    },
    "offline": (
        {},
        lambda _, patch: patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True),
    ),
}


def test_each_refusal_has_its_remedy_and_leaves_nothing_that_looks_finished(
    hub: Hub, tmp_path: Path
) -> None:
    answers = {}
    for name, (values, spoil) in REFUSALS.items():
        hub.repositories = {REPO: Repository(dict(FILES))}
        hub.requests.clear()
        folder = tmp_path / name / "deep/folder"
        answer: Any = None
        with pytest.MonkeyPatch.context() as patch:
            spoil(hub, patch)
            try:
                dataset_preparation.download_dataset(options_of(**values), folder)
            except (ConfigError, DownloadError) as error:
                answer = to_plain(error).replace(hub.url, "HUB").replace(str(folder), "FOLDER")
                answer = re.sub(r"\S+ instead of [0-9a-f]+", "X instead of Y", answer)
                assert "hf_wrong" not in answer
                assert not (folder / "receipt.json").exists()
        left = sorted(read_folder(tmp_path / name))
        answers[name] = [answer, left, sum(COMMIT in each for each in hub.requests)]
        hub.failures.clear()
        if hub.corrupt:
            hub.corrupt.clear()
            dataset_preparation.download_dataset(options_of(), folder)
            assert read_folder(folder)[f"repository/{TEST}"] == FILES[TEST]
    check_values("huggingface_refusals", answers)


@pytest.mark.parametrize("place", ["variable", "login"])
def test_a_token_is_for_the_hub_alone(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    hub.repositories[REPO].gated = True
    if place == "variable":
        monkeypatch.setenv("HF_TOKEN", TOKEN)
    else:
        (tmp_path / "token").write_text(TOKEN)
    dataset_preparation.download_dataset(options_of(), tmp_path / "downloads")
    # The store of large files is another host: a token is not for it.
    assert not hub.store_saw_token
    assert TOKEN.encode() not in (tmp_path / "downloads/receipt.json").read_bytes()


def test_only_faults_that_may_pass_are_retried() -> None:
    def answered(status: int) -> Exception:
        response = httpx2.Response(status, request=httpx2.Request("GET", "http://h"))
        return errors.HfHubHTTPError("x", response=response)

    retried = [status for status in range(400, 600) if huggingface._may_pass(answered(status))]
    assert retried == [408, 429, *range(500, 600)]
    passing = [httpx2.ConnectTimeout("x"), httpx2.ReadError("x"), errors.FileMetadataError("x")]
    lasting = [OSError("x"), ValueError("x"), errors.HFValidationError("x")]
    assert [*map(huggingface._may_pass, (*passing, *lasting))] == [True] * 3 + [False] * 3


def test_no_network_ends_in_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        ask_only(f"http://127.0.0.1:{port}", monkeypatch)
        message = refused(options_of(), tmp_path, DownloadError)
    assert "check the network" in message


def test_labels_of_another_form_than_stated(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="several_labels: false"):
        run(options_of(several_labels=True), tmp_path)
    hub.repositories[REPO].files = {"all.parquet": table(1, several=True)}
    written = {"train": "all.parquet", "test": None, "class_names": ["a", "b"]}
    with pytest.raises(DataError, match="several_labels: true"):
        run(options_of(**written), tmp_path)
    options = options_of(**written, several_labels=True)
    train, _ = run(options, tmp_path)
    assert train.multi_label


def real_json() -> bytes:
    """Three images in four have labels; the list is longer than the split."""
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


ACCEPTED: list[Any] = [
    [[0]] * (ROWS - 1),
    [[0]] * 3 + [[7]] * ROWS,
    [[1]] * 3 + [[2]] * ROWS,
    [[-1]] * ROWS,
    [[True]] * ROWS,
    [[1.0]] * ROWS,
    [[0], *[3] * (ROWS - 1)],
    [["0"]] * ROWS,
    [None] * ROWS,
    [0] * ROWS,
    {"1": [0]},
    "{",
    "[[0]",
    "",
]


def test_accepted_labels_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    answers = []
    for labels in ACCEPTED:
        with pytest.raises(DataError) as caught:
            dataset_preparation.prepare_dataset(local(tmp_path, labels), tmp_path / "tables")
        assert not (tmp_path / "tables/dataset.json").exists()
        said = re.sub(r"read \(.*\)", "read (...)", to_plain(caught.value))
        answers.append(said.replace(str(tmp_path), "FOLDER"))
    for path in ("leaf.png", "ILSVRC2012_val_0000000.JPEG", "ILSVRC2012_val_00000000.JPEG", None):
        rows = pq.read_table(tmp_path / Path(TEST).name)
        images = [{**row, "path": path} for row in rows.column("image").to_pylist()]
        changed = rows.set_column(0, "image", pa.array(images, rows.column("image").type))
        pq.write_table(changed, tmp_path / "later.parquet")
        files = (str(tmp_path / Path(TEST).name), str(tmp_path / "later.parquet"))
        options = local(tmp_path, [[0]] * 300).model_copy(update={"test": files})
        with pytest.raises(DataError) as caught:
            dataset_preparation.prepare_dataset(options, tmp_path / "tables")
        answers.append(str(caught.value))
    check_values("accepted_labels", answers)


def test_accepted_labels_are_beside_the_test_rows_without_their_address(
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
    # Another file makes other tables.
    third = options_of(accepted_labels={**accepted, "sha256": "0" * 64})
    assert third.download_params() != options.download_params()
    assert third.preparation_params() != options.preparation_params()
    for wrong in ("http://me:hidden@h/real.json", "ftp://h/real.json"):
        with pytest.raises(ConfigError, match=r"accepted_labels\.url") as caught:
            options_of(accepted_labels={**accepted, "url": wrong})
        assert "hidden" not in str(caught.value)
