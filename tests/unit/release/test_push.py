"""A bundle on its way to the Hub: all of it arrives, nothing else does, and errors say why."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpprobe.errors import ConfigError, DataError, DpprobeError, UploadError
from dpprobe.release.bundle import BUNDLE_FILES, SIGNATURE_FILE, write_sums
from dpprobe.release.push import push_bundle
from tests.support.bundles import write_example
from tests.support.hub_server import TOKEN, Hub, Model, serve

REPO = "someone/lesions"


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_example(tmp_path_factory.mktemp("release") / "folder_of_somebody")


@pytest.fixture
def bundle(example: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "folder_of_somebody"
    folder.mkdir()
    for path in example.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    # The stand-in takes large files by the Hub's older protocol.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    with serve({}) as running:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", running.url)
        yield running


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def refused(
    bundle: Path, error: type[DpprobeError], *, repo: str = REPO, private: bool = False
) -> str:
    """The message of a refused push, which is one line, without the token."""
    with pytest.raises(error) as caught:
        push_bundle(bundle, repo, private=private)
    message = str(caught.value)
    assert "\n" not in message
    assert TOKEN not in message
    return message


def commits(hub: Hub) -> list[str]:
    return [line for line in hub.requests if "/commit/" in line]


def test_every_file_arrives_in_one_commit(
    hub: Hub, bundle: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert push_bundle(bundle, REPO) == f"{hub.url}/{REPO}"
    assert hub.models[REPO].files == content(bundle)
    assert set(hub.models[REPO].files) == set(BUNDLE_FILES)
    assert len(commits(hub)) == 1
    assert not hub.models[REPO].private
    assert not hub.store_saw_token
    printed = capfd.readouterr()
    assert TOKEN not in printed.out + printed.err


def test_the_commit_names_the_release_and_not_the_folder(hub: Hub, bundle: Path) -> None:
    push_bundle(bundle, REPO)
    assert hub.models[REPO].messages == ["Release lesions_v1"]


def test_a_second_push_makes_no_second_commit(hub: Hub, bundle: Path) -> None:
    push_bundle(bundle, REPO)
    assert push_bundle(bundle, REPO) == f"{hub.url}/{REPO}"
    assert len(hub.models[REPO].messages) == 1


def test_a_new_bundle_takes_the_old_ones_signature_away(hub: Hub, bundle: Path) -> None:
    hub.models[REPO] = Model(files={".gitattributes": b"*", SIGNATURE_FILE: b"of the old one"})
    push_bundle(bundle, REPO)
    assert hub.models[REPO].files == {".gitattributes": b"*", **content(bundle)}
    assert len(commits(hub)) == 1
    (bundle / SIGNATURE_FILE).write_bytes(b"of the new one")
    push_bundle(bundle, REPO)
    assert hub.models[REPO].files[SIGNATURE_FILE] == b"of the new one"


def test_a_private_repository_is_made_private(hub: Hub, bundle: Path) -> None:
    push_bundle(bundle, REPO, private=True)
    assert hub.models[REPO].private
    push_bundle(bundle, REPO)
    assert hub.models[REPO].private


def test_a_public_repository_is_no_place_for_a_private_one(hub: Hub, bundle: Path) -> None:
    hub.models[REPO] = Model()
    assert "public" in refused(bundle, ConfigError, private=True)
    assert hub.models[REPO].files == {}


@pytest.mark.parametrize("name", ["README.md", "head.safetensors", "SHA256SUMS"])
@pytest.mark.parametrize("missing", [True, False])
def test_a_damaged_bundle_stays_here(hub: Hub, bundle: Path, name: str, missing: bool) -> None:
    if missing:
        (bundle / name).unlink()
    else:
        (bundle / name).write_bytes((bundle / name).read_bytes()[:-1] + b"?")
    assert name in refused(bundle, DataError)
    assert hub.requests == []


@pytest.mark.parametrize("name", ["predictions.csv", ".lock", "ledger.jsonl"])
def test_a_folder_with_another_file_stays_here(hub: Hub, bundle: Path, name: str) -> None:
    (bundle / name).write_text("private")
    assert f"{name}: not part of a bundle" in refused(bundle, DataError)
    assert hub.requests == []


def test_a_folder_within_the_folder_stays_here(hub: Hub, bundle: Path) -> None:
    (bundle / "images").mkdir()
    (bundle / "images/a.png").write_bytes(b"private")
    assert "images: not part of a bundle" in refused(bundle, DataError)
    assert hub.requests == []


def test_a_folder_that_is_not_there(hub: Hub, tmp_path: Path) -> None:
    assert "no such folder" in refused(tmp_path / "lost", DataError)
    assert hub.requests == []


@pytest.mark.parametrize("repo", ["lesions", "a/b/c", "some one/lesions", "someone/..", ""])
def test_the_name_of_a_repository(hub: Hub, bundle: Path, repo: str) -> None:
    assert "owner/name" in refused(bundle, ConfigError, repo=repo)
    assert hub.models == {}


def test_without_a_token(hub: Hub, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    assert "no token; set HF_TOKEN" in refused(bundle, ConfigError)
    assert hub.requests == []
    assert push_bundle(bundle, REPO, token=TOKEN) == f"{hub.url}/{REPO}"


def test_a_token_that_is_not_valid(hub: Hub, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = "hf_" + "b" * 34
    monkeypatch.setenv("HF_TOKEN", other)
    message = refused(bundle, ConfigError)
    assert "refuses the token (status 401)" in message
    assert other not in message
    assert hub.models == {}


@pytest.mark.parametrize("there", [True, False])
def test_a_token_without_rights(hub: Hub, bundle: Path, there: bool) -> None:
    repo = "others/lesions"
    if there:
        hub.models[repo] = Model()
    message = refused(bundle, ConfigError, repo=repo)
    assert "may write to repositories of others" in message
    assert all(not model.files for model in hub.models.values())


def test_offline_mode(hub: Hub, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in refused(bundle, ConfigError)
    assert hub.requests == []


def test_without_a_network(hub: Hub, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    assert f"{address} gives no answer" in refused(bundle, UploadError)
    assert hub.requests == []


def test_a_hub_that_fails(hub: Hub, bundle: Path) -> None:
    hub.failures = [500]
    assert "refuses (status 500)" in refused(bundle, UploadError)


def test_a_card_that_the_hub_does_not_take(hub: Hub, bundle: Path) -> None:
    hub.card_error = '"license" must be one of mit, apache-2.0'
    message = refused(bundle, DataError)
    assert '"license" must be one of mit' in message
    assert hub.models[REPO].files == {}


def test_a_bundle_of_another_format_stays_here(hub: Hub, bundle: Path) -> None:
    facts = json.loads((bundle / "bundle.json").read_text())
    (bundle / "bundle.json").write_text(json.dumps({**facts, "format_version": 2}))
    write_sums(bundle)
    assert "format_version" in refused(bundle, DataError)
    assert hub.requests == []
