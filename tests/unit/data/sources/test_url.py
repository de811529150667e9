"""Files at plain URLs, from a local server to split tables."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dpprobe.data import dataset_preparation, table
from dpprobe.data.downloads.download_receipt import check_receipt
from dpprobe.data.options import DatasetOptions, NamedPeople
from dpprobe.data.registry import dataset_options
from dpprobe.data.sources import url
from dpprobe.errors import ConfigError, DataError, WrongDownloadError
from dpprobe.files import json_files
from tests.support.misbehaving_server import Server, make_quick
from tests.support.refusals import refuses
from tests.support.shards import png


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    make_quick(monkeypatch, attempts=2)


def images() -> dict[str, bytes]:
    """Returns the files of a zipped image folder, with a top folder and files that macOS adds."""
    names = [
        f"xrays/{part}/{name}/{number}.png"
        for part, rows in (("train", 4), ("test", 2))
        for name in ("normal", "sick")
        for number in range(rows)
    ]
    files = {name: png(number) for number, name in enumerate(names)}
    return {**files, "__MACOSX/xrays/._x": b"", "xrays/.DS_Store": b""}


def zipped(files: dict[str, bytes]) -> bytes:
    """Returns bytes that do not depend on the time, because members have no date."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as packed:
        for name, content in files.items():
            packed.writestr(zipfile.ZipInfo(name), content)
    return stream.getvalue()


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def values(server: Server, content: bytes | None = None, **more: Any) -> dict[str, Any]:
    """Returns the options for the image folder; `content` and `more` replace the defaults."""
    content = zipped(images()) if content is None else content
    url = server.put("/v1/chest.zip", content)
    return {
        "source": "url",
        "files": [{"url": url, "sha256": digest(content)}],
        "layout": {"source": "imagefolder", "path": "chest/xrays"},
        **more,
    }


def run(options: DatasetOptions, folder: Path) -> table.DatasetInfo:
    dataset_preparation.download_dataset(options, folder / "downloads")
    dataset_preparation.prepare_dataset(options, folder / "tables", downloaded=folder / "downloads")
    return table.read_info(folder / "tables" / "dataset.json")


def rows_of(folder: Path, part: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / "tables" / f"{part}.parquet").to_pylist()
    return rows


def test_a_zip_of_an_image_folder(server: Server, tmp_path: Path) -> None:
    options = dataset_options(values(server, expect={"train": 8, "test": 4, "classes": 2}))
    options.check_files()
    assert server.visits == []
    info = run(options, tmp_path)
    assert (info.train_rows, info.test_rows, info.class_names) == (8, 4, ("normal", "sick"))
    assert info.source == options.preparation_params()
    row = rows_of(tmp_path, "test")[0]
    assert row["id"] == "test/normal/0.png"
    path = tmp_path / "downloads/chest/xrays/test/normal/0.png"
    assert row["image"] == {"bytes": None, "path": str(path)}
    receipt = check_receipt(tmp_path / "downloads", params=options.download_params())
    assert [file.name for file in receipt.files] == ["chest.zip"]


def test_masks_in_an_archive_are_refused_and_left_out(server: Server, tmp_path: Path) -> None:
    pictures = images()
    masks = {
        name.replace(".png", "_mask.png"): png(100 + number)
        for number, name in enumerate(pictures)
        if name.endswith(".png")
    }
    written = values(server, zipped({**pictures, **masks}))
    with refuses(ConfigError, "layout", "companions: [mask]", "12 of 24"):
        run(dataset_options(written), tmp_path)
    layout = {**written["layout"], "companions": ["mask"]}
    info = run(dataset_options({**written, "layout": layout}), tmp_path)
    assert (info.train_rows, info.test_rows) == (8, 4)


def test_a_manifest(server: Server, tmp_path: Path) -> None:
    files = {f"set/{number}.png": png(number) for number in range(6)}
    lines = ["path,label", *(f"chest/{name},{'ab'[row % 2]}" for row, name in enumerate(files))]
    table = "\n".join(lines).encode()
    layout = {
        "source": "csv",
        "train": "list.csv",
        "label_column": "label",
        "class_names": ["a", "b"],
        "test_fraction": 0.34,
    }
    given = values(server, zipped(files), layout=layout)
    given["files"].append({"url": server.put("/v1/list.csv", table), "sha256": digest(table)})
    options = dataset_options(given)
    info = run(options, tmp_path)
    assert (info.train_rows, info.test_rows) == (4, 2)
    assert info.source == options.preparation_params()
    assert isinstance(options, url.Options)
    located = options.locate_layout(Path("D"))
    assert located == dataset_options(layout | {"root": "D"})
    elsewhere = dataset_options(given | {"layout": layout | {"train": "none.csv"}})
    with pytest.raises(ConfigError, match=r"^layout: train: no file none\.csv"):
        url.prepare(elsewhere, tmp_path, downloaded=tmp_path / "downloads")  # type: ignore[arg-type]


def test_a_folder_in_place_of_a_download(server: Server, tmp_path: Path) -> None:
    """Nothing is requested; checksums and tables are those of a download."""
    archives = tmp_path / "archives"
    archives.mkdir()
    fetched = dataset_options(values(server))
    given = dataset_options(values(server, downloads=str(archives)))
    given.check_files()
    assert given.download_params() == fetched.download_params()
    assert given.preparation_params() == fetched.preparation_params()
    with pytest.raises(
        WrongDownloadError, match=r"downloads: no file .*archives/chest\.zip; put it"
    ):
        run(given, tmp_path / "none")
    (archives / "chest.zip").write_bytes(b"other")
    with pytest.raises(WrongDownloadError, match=r"chest\.zip: SHA-256 d9298a\w+ instead of"):
        run(given, tmp_path / "wrong")
    assert not (tmp_path / "wrong/downloads/chest.zip").exists()
    (archives / "chest.zip").write_bytes(zipped(images()))
    assert run(given, tmp_path / "given").train_rows == 8
    assert server.visits == []
    assert (archives / "chest.zip").read_bytes() == zipped(images())
    (archives / "chest.zip").unlink()
    assert run(fetched, tmp_path / "fetched").train_rows == 8
    found = [table.read_info(tmp_path / at / "tables/dataset.json") for at in ("given", "fetched")]
    assert found[0].fingerprint == found[1].fingerprint
    elsewhere = dataset_options(values(server, downloads=str(tmp_path / "no")))
    with pytest.raises(ConfigError, match="downloads: no folder"):
        elsewhere.check_files()


def test_a_zip_with_a_member_outside_the_target_folder_extracts_no_files(
    server: Server, tmp_path: Path
) -> None:
    options = dataset_options(values(server, zipped({**images(), "../../evil": b"x"})))
    with pytest.raises(DataError, match=r"member '\.\./\.\./evil' lies outside the target folder"):
        dataset_preparation.download_dataset(options, tmp_path / "downloads")
    assert [each.name for each in (tmp_path / "downloads").iterdir()] == ["chest.zip"]
    assert [each.name for each in tmp_path.iterdir()] == ["downloads"]


def test_what_is_deleted_after_the_download(server: Server, tmp_path: Path) -> None:
    options = dataset_options(values(server))
    info = run(options, tmp_path)
    (tmp_path / "downloads" / "chest").rename(tmp_path / "elsewhere")
    dataset_preparation.prepare_dataset(
        options, tmp_path / "tables", downloaded=tmp_path / "downloads"
    )
    again = table.read_info(tmp_path / "tables" / "dataset.json")
    assert again.fingerprint == info.fingerprint
    (tmp_path / "downloads" / "chest.zip").unlink()
    with pytest.raises(DataError, match=r"chest\.zip: missing.*delete .*receipt\.json"):
        dataset_preparation.prepare_dataset(
            options, tmp_path / "tables", downloaded=tmp_path / "downloads"
        )


def test_an_address_is_not_recorded(server: Server, tmp_path: Path) -> None:
    given = values(server)
    options = dataset_options(given)
    given["files"][0]["url"] += "?token=hidden"
    given["files"][0]["name"] = "chest.zip"
    moved = dataset_options(given)
    assert moved.download_params() == options.download_params()
    assert moved.preparation_params() == options.preparation_params()
    run(moved, tmp_path)
    for file in ("tables/dataset.json", "downloads/receipt.json"):
        assert "hidden" not in (tmp_path / file).read_text()
    assert json_files.read_json(tmp_path / "downloads" / "receipt.json")["files"][0]["url"]


HASHED: dict[str, Any] = {"url": "http://h/x.zip", "sha256": "0" * 64}
CSV = {"source": "csv", "train": "a.csv", "label_column": "kind", "class_names": ["cat", "dog"]}
IMAGES = {"source": "imagefolder", "path": "x"}


def of_file(layout: Any = IMAGES, *further: dict[str, Any], **file: Any) -> Any:
    files = [HASHED | file, *(HASHED | each for each in further)]
    return dataset_options({"source": "url", "files": files, "layout": layout})


@pytest.mark.parametrize(
    ("file", "message"),
    [
        *(({"url": url}, "is not an http or https address") for url in ("ftp://h/x", "https:///x")),
        ({"url": "http://me:hidden@h/x.zip"}, "a user name or password in the address"),
        *(
            ({"name": name}, f"name: {name!r} cannot be a file name")
            for name in ("../x.zip", ".x.zip", "receipt.json")
        ),
        ({"url": "http://h/"}, "name: '' cannot be a file name"),
        ({"url": "http://h/%2e%2e%2fx.zip"}, "name: '../x.zip' cannot be a file name"),
        *(({"sha256": text}, "is not a SHA-256; write its 64") for text in ("abc", "A" * 64)),
    ],
)
def test_files_that_are_refused(file: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        of_file(**file)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({"source": "sklearn"}, "layout.source: 'sklearn': choose one of: csv, imagefolder"),
        ({}, "layout.source: None: choose one of: csv, imagefolder"),
        *(
            (IMAGES | {"path": path}, f"path: {path!r} lies outside the download folder")
            for path in ("/data", "x/../y", "~/x")
        ),
        *(
            (CSV | {key: "../b"}, f"{key}: '../b' lies outside")
            for key in ("train", "test", "root")
        ),
        (CSV | {"joins": [{"file": "../b", "by": "w", "columns": ["s"]}]}, "joins.0.file: '../b'"),
        (IMAGES | {"pth": "x"}, "pth: unknown key; write path"),
        (IMAGES | {"delta": 1e-5}, "layout.delta: belongs next to `layout`, not inside it"),
    ],
)
def test_layouts_that_are_refused(layout: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        of_file(layout)


def test_files_and_folders_of_archives_have_names_of_their_own() -> None:
    for other in ("b/x.zip", "x.tar.gz", "x"):
        with pytest.raises(ConfigError, match=r"two files would be saved as x"):
            of_file(IMAGES, {"url": f"http://h/{other}"})
    (file,) = of_file(url="http://h/a%20b.TAR.GZ?x=1").download_params()["files"]
    assert (file["name"], file["folder"]) == ("a b.TAR.GZ", "a b")
    (file,) = of_file(url="http://h/y").download_params()["files"]
    assert (file["name"], file["folder"]) == ("y", None)


def test_images_and_splits_depend_on_files_but_not_on_their_order_or_addresses() -> None:
    one, two = {"sha256": "1" * 64}, {"url": "http://h/y.zip", "sha256": "2" * 64}
    options = of_file(IMAGES, two, **one)
    turned = dataset_options(
        {"source": "url", "files": [HASHED | two, HASHED | one], "layout": IMAGES}
    )
    assert turned.image_params() == options.image_params()
    assert turned.image_params() != of_file(IMAGES, **one).image_params()
    for layout in (IMAGES, CSV, CSV | {"test": "b.csv"}):
        for by in ("id", "class"):
            keys = [
                of_file(layout | {"split_by": by}, **file).public_split().key
                for file in ({}, one, {"url": "http://other/x.zip"})
            ]
            assert keys[0] == keys[2] != keys[1]


def test_a_layout_s_facts_are_the_dataset_s() -> None:
    more = {"unit_column": "who", "unit": "image", "max_images_per_patient": 2}
    options = of_file(CSV | more | {"group_columns": ["age"], "filters": {"a": [1]}})
    people = NamedPeople(column="who", most_images=2, unit="image", groups=("group_age",))
    assert options.named_people() == people
    assert (options.count_classes(), options.multi_label(), options.has_test()) == (2, False, False)
    split = options.public_split()
    assert split.fault.startswith("layout: split_by: class")
    assert split.images_fault.startswith("layout: max_images_per_patient keeps")
    assert options.explain_labels_used() is None
    dropped = of_file(CSV | {"missing": "drop"}).explain_labels_used()
    assert dropped.startswith("layout: missing: drop: rows are left out by their labels")
    assert of_file(CSV | {"test": "b.csv"}).has_test()
    assert [of_file(CSV | {"id_column": each}).named_ids() for each in ("n", None)] == ["n", None]
    folder = of_file(IMAGES | {"split_by": "id"})
    assert folder.count_classes() is None
    assert not folder.public_split().follows_names
    assert folder.image_params() == of_file(IMAGES, url="http://other/x.zip").image_params()
