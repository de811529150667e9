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
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import errors
from PIL import Image

from dpprobe.data import dataset_preparation, huggingface
from dpprobe.data.options import DatasetOptions
from dpprobe.data.registry import dataset_options
from dpprobe.data.table import SplitTable, read_info
from dpprobe.errors import ConfigError, DataError, DownloadError
from tests.support.hub_server import COMMIT, TOKEN, Hub, Repository, ask_only, serve
from tests.support.misbehaving_server import make_quick
from tests.support.stored_records import check_values, to_plain

REPO = "someone/leaves"
TRAIN = ("data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet")
TEST = "data/test-00000-of-00001.parquet"
ROWS = 40


def image(seed: int) -> bytes:
    """A picture of noise, of some kilobytes."""
    stream = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(stream, format="PNG")
    return stream.getvalue()


def table(first: int, rows: int, *, names: list[str] | None = None, several: bool = False) -> bytes:
    """A parquet file in the Hub's image convention."""
    names = names or ["leaf", "stone"]
    labels: Any = [row % 2 for row in range(rows)]
    feature: dict[str, Any] = {"names": names, "_type": "ClassLabel"}
    if several:
        labels = [[row % 2, 1] for row in range(rows)]
        feature = {"feature": {"dtype": "int8", "_type": "Value"}, "_type": "Sequence"}
    columns = {
        "image": pa.array(
            [
                {"bytes": image(first + row), "path": f"ILSVRC2012_val_{first + row:08d}_x.JPEG"}
                for row in range(rows)
            ]
        ),
        "label": pa.array(labels, pa.list_(pa.int8()) if several else pa.int64()),
    }
    features = {"image": {"_type": "Image"}, "label": feature}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    stream = io.BytesIO()
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), stream)
    return stream.getvalue()


FILES = {
    "README.md": b"A card.",
    TRAIN[0]: table(101, ROWS),
    TRAIN[1]: table(201, ROWS),
    TEST: table(1, ROWS),
}


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
        **values,
    }
    return dataset_options(written)


def left_of(directory: Path) -> dict[str, bytes]:
    """Every file under a folder, by its path."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


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
    options = options_of(expect={"train": 2 * ROWS, "test": ROWS, "classes": 2})
    assert options.count_rows() == (2 * ROWS, ROWS)
    train, test = run(options, tmp_path)
    assert (train.rows, test.rows) == (2 * ROWS, ROWS)
    assert train.class_names == ("leaf", "stone")
    first = next(iter(test.read_images(0, 1)))
    assert first.data == image(1)
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
    assert left_of(tmp_path)[f"repository/{TRAIN[0]}"] == FILES[TRAIN[0]]
    assert f"repository/{TRAIN[1]}" not in left_of(tmp_path)
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


LEAVES = {"../../leaves.parquet": FILES[TEST]}
Spoil = Callable[[Hub, pytest.MonkeyPatch], Any]
REFUSALS: dict[str, tuple[dict[str, Any], Spoil]] = {
    "gated": ({}, change(gated=True)),
    "wrong token": ({}, lambda _, patch: patch.setenv("HF_TOKEN", "hf_wrong")),
    "no commit": ({"revision": "f" * 40}, change()), "no name": ({"repo": "other/none"}, change()),
    "no file": ({"test": "data/validation-*"}, change()),
    "leaves": ({"test": "*leaves.parquet"}, change(files=FILES | LEAVES)),
    "corrupt": ({}, corrupt), "corrupt in git": ({}, corrupt_in_git),
    **{f"commit {at}": ({}, change(stated=commit))
       for at, commit in enumerate((f"{COMMIT[:-1]}8", COMMIT[:12], "", "f" * 40))},
    **{str(failures): ({}, fail(failures)) for failures in (
        [503] * 3, [429] * 3, [401], [404], [503, 429], [500, 408])},
    "offline": ({}, lambda _, patch: patch.setattr(
        "huggingface_hub.constants.HF_HUB_OFFLINE", True)),
}  # fmt: skip


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
        left = sorted(left_of(tmp_path / name))
        answers[name] = [answer, left, sum(COMMIT in each for each in hub.requests)]
        hub.failures.clear()
        if hub.corrupt:
            hub.corrupt.clear()
            dataset_preparation.download_dataset(options_of(), folder)
            assert left_of(folder)[f"repository/{TEST}"] == FILES[TEST]
    check_values("huggingface_refusals", answers)


def test_a_token_is_for_the_hub_alone(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories[REPO].gated = True
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    dataset_preparation.download_dataset(options_of(), tmp_path)
    # The store of large files is another host: a token is not for it.
    assert not hub.store_saw_token
    assert TOKEN.encode() not in (tmp_path / "receipt.json").read_bytes()


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
    several = table(1, ROWS, several=True)
    hub.repositories[REPO].files = {"all.parquet": several}
    written = {"train": "all.parquet", "test": None, "class_names": ["a", "b"]}
    with pytest.raises(DataError, match="several_labels: true"):
        run(options_of(**written), tmp_path)
    options = options_of(**written, several_labels=True)
    assert options.multi_label()
    train, _ = run(options, tmp_path)
    assert train.multi_label


# Accepted labels (ReaL)


def real_json() -> bytes:
    """Three images in four have labels; the list is longer than the split."""
    return json.dumps([[] if row % 4 == 0 else [row % 2, 1] for row in range(ROWS + 7)]).encode()


def local(tmp_path: Path, labels: Any, **values: Any) -> DatasetOptions:
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
    return dataset_options({**written, **values})


def test_accepted_labels_of_local_files(tmp_path: Path) -> None:
    labels = json.loads(real_json())
    options = local(tmp_path, labels)
    options.check_files()
    assert str(tmp_path / "real.json") in options.input_files()
    dataset_preparation.prepare_dataset(options, tmp_path / "tables")
    assert SplitTable(tmp_path / "tables/test.parquet").read_accepted() == labels[:ROWS]


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([[0]] * (ROWS - 1), f"test row {ROWS - 1}: image {ROWS}"),
        ([[0]] * 3 + [[7]] * ROWS, "image 4: label 7"),
        ([0] * ROWS, "real.json"),
        ([[0], *[3] * (ROWS - 1)], "real.json"),
        ("no json", "real.json"),
    ],
)
def test_accepted_labels_of_another_dataset(tmp_path: Path, labels: Any, words: str) -> None:
    options = local(tmp_path, labels)
    with pytest.raises(DataError, match=words):
        dataset_preparation.prepare_dataset(options, tmp_path / "tables")
    assert not (tmp_path / "tables/dataset.json").exists()


def test_images_without_a_number_take_no_accepted_labels(tmp_path: Path) -> None:
    options = local(tmp_path, [[0]] * 300)
    path = tmp_path / Path(TEST).name
    rows = pq.read_table(path)
    images = [{**row, "path": "leaf.png"} for row in rows.column("image").to_pylist()]
    pq.write_table(rows.set_column(0, "image", pa.array(images)), path)
    with pytest.raises(DataError, match=r"test row 0.*leaf\.png"):
        dataset_preparation.prepare_dataset(options, tmp_path / "tables")


def test_accepted_labels_need_a_test_split(hub: Hub, tmp_path: Path) -> None:
    accepted = {"url": f"{hub.url}/real.json", "sha256": "0" * 64}
    with pytest.raises(ConfigError, match="accepted_labels"):
        options_of(test=None, accepted_labels=accepted).check_files()
    options = local(tmp_path, [], accepted_labels={"file": str(tmp_path / "none.json")})
    with pytest.raises(ConfigError, match=r"none\.json"):
        options.check_files()


def test_the_token_of_a_login_is_used(hub: Hub, tmp_path: Path) -> None:
    hub.repositories[REPO].gated = True
    (tmp_path / "token").write_text(TOKEN)
    dataset_preparation.download_dataset(options_of(), tmp_path / "downloads")
    assert TOKEN.encode() not in (tmp_path / "downloads/receipt.json").read_bytes()


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


def test_a_limit_before_a_split_of_our_own_leaves_nothing_to_expect(tmp_path: Path) -> None:
    sizes = {"train": 60, "test": 20, "classes": 2}
    options = options_of(test=None, expect=sizes, limit={"train": 40}, test_fraction=0.25)
    assert options.count_rows() is None
    train, test = run(options, tmp_path)
    assert (train.rows, test.rows) == (30, 10)
