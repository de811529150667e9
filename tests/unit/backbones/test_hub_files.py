"""Weights that are neither cached nor downloadable are reported at once, with the remedy."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import httpx2
import huggingface_hub
import open_clip
import pytest
import timm
import torch
from huggingface_hub import constants

from dpprobe.backbones import open_clip_models
from dpprobe.backbones.hub_files import HubFile, describe_missing
from dpprobe.backbones.registry import backbone_options
from dpprobe.errors import ConfigError
from tests.support import tiny_clip
from tests.support.backbones import load
from tests.support.hub_server import Hub, serve

REPOSITORY = "timm/resnet18.a1_in1k"
WEIGHTS = HubFile("weights", REPOSITORY, ("model.safetensors", "pytorch_model.bin"))
RESNET = {"family": "timm", "model": "resnet18.a1_in1k"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return tmp_path / "hub"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve({}) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        yield hub


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points the Hub's address at a port where nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{free.getsockname()[1]}")


def fetch(cache: Path, file: HubFile, name: str, *, revision: str = "main") -> None:
    """Puts a file where huggingface_hub caches it."""
    folder = cache / f"models--{file.repository.partition('@')[0].replace('/', '--')}"
    (folder / "refs").mkdir(parents=True, exist_ok=True)
    (folder / "refs" / revision).write_text("c0ffee")
    (folder / "snapshots" / "c0ffee").mkdir(parents=True, exist_ok=True)
    (folder / "snapshots" / "c0ffee" / name).write_bytes(b"x")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (httpx2.ConnectError("no  route"), "no route"),
        (httpx2.ConnectTimeout(""), "ConnectTimeout"),
        (httpx2.ProxyError("of the proxy"), "of the proxy"),
        (httpx2.ReadTimeout("slow"), None),
        (httpx2.RemoteProtocolError("cut off"), None),
    ],
)
def test_only_what_cannot_be_connected_to_is_unreachable(
    monkeypatch: pytest.MonkeyPatch, error: Exception, said: str | None
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(huggingface_hub, "get_session", lambda: SimpleNamespace(head=fail))
    monkeypatch.setattr(constants, "ENDPOINT", f"http://{type(error).__name__}")
    told = describe_missing([WEIGHTS], network=True)
    assert told is None if said is None else f"cannot be reached ({said})" in str(told)


def test_a_revision_is_looked_for_by_its_own_name(cache: Path, hub: Hub) -> None:
    wanted = HubFile("config", f"{REPOSITORY}@v2", ("config.json",))
    fetch(cache, wanted, "config.json")
    assert describe_missing([wanted], network=True) is None
    assert hub.requests == ["HEAD /"]  # main is cached, v2 is not
    fetch(cache, wanted, "config.json", revision="v2")
    assert describe_missing([wanted], network=True) is None
    assert hub.requests == ["HEAD /"]


@pytest.mark.parametrize("cached", [(), WEIGHTS.names[:1], WEIGHTS.names[1:]])
@pytest.mark.parametrize("network", [True, False])
@pytest.mark.parametrize("offline", [True, False])
@pytest.mark.parametrize("failures", [[], [503], [429], None])
def test_what_is_not_cached_is_missing_where_the_hub_cannot_be_asked(
    cache: Path,
    hub: Hub,
    monkeypatch: pytest.MonkeyPatch,
    cached: Sequence[str],
    network: bool,
    offline: bool,
    failures: list[int] | None,
) -> None:
    """If the Hub answers, the library handles errors itself; one request covers all files."""
    other = HubFile("config", "somebody/else", ("config.json",))
    for file, names in ((WEIGHTS, cached), (other, other.names[: len(cached)])):
        for name in names:
            fetch(cache, file, name)
    hub.failures[:] = failures or []
    if failures is None:  # nothing listens at this address
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    if offline:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    said = describe_missing([WEIGHTS, other], network=network)
    asked = network and not offline and not cached
    assert hub.requests == ["HEAD /"] * (asked and failures is not None)
    missing = not cached and (offline or (asked and failures is None))
    assert (said is not None) == missing
    parts = (REPOSITORY, "model.safetensors", "somebody/else", str(cache), "local checkpoint")
    assert not missing or all(part in str(said) for part in parts)
    assert not missing or ("HF_HUB_OFFLINE is set" if offline else "127.0.0.1") in str(said)


def test_a_cached_network_is_loaded_without_a_question(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def create(_: str, **arguments: Any) -> None:
        tried.append(arguments)
        raise ZeroDivisionError

    fetch(cache, WEIGHTS, "model.safetensors")
    monkeypatch.setattr(huggingface_hub, "get_session", pytest.fail)
    monkeypatch.setattr(timm, "create_model", create)
    with pytest.raises(ZeroDivisionError):
        load(**RESNET)
    assert tried[0]["pretrained"]


@pytest.mark.usefixtures("unreachable")
def test_a_tokenizer_is_looked_for_where_it_can_be_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_clip.register(tmp_path, monkeypatch)
    monkeypatch.setattr(open_clip, "get_tokenizer", pytest.fail)
    values = {"family": "open_clip", "model": "tiny-tokenizer", "pretrained": False}
    options: Any = backbone_options(values)
    monkeypatch.setattr(open_clip_models, "find_spec", lambda _: None)
    assert open_clip_models.list_hub_files(options) == []
    monkeypatch.setattr(open_clip_models, "find_spec", lambda _: "there")
    names = ("tokenizer_config.json", "tokenizer.json")
    listed = [HubFile("tokenizer", "nobody/nothing", names)]
    assert open_clip_models.list_hub_files(options) == listed
    with pytest.raises(ConfigError, match=r"nobody/nothing \(tokenizer: .* cannot be reached"):
        open_clip_models.make_tokenizer(options)
    files = [HubFile("config", "a/b", ("x",)), HubFile("tokenizer", "a/b", ("y",))]
    monkeypatch.setattr(open_clip_models, "list_hub_files", lambda _: files)
    asked: list[HubFile] = []
    monkeypatch.setattr(open_clip_models, "require_files", asked.extend)
    for error in (ImportError, OSError, RuntimeError, TypeError, ValueError):
        monkeypatch.setattr(open_clip, "get_tokenizer", Mock(side_effect=error("its words")))
        with pytest.raises(ConfigError, match="tokenizer of tiny-tokenizer .*its words.*transform"):
            open_clip_models.make_tokenizer(options)
    assert asked == files[1:] * 5
    for output in (torch.ones(2), (torch.ones(2), torch.zeros(3))):  # with and without tokens
        tower = open_clip_models.wrap_tower(Mock(return_value=output))
        assert torch.equal(tower(torch.zeros(1)), torch.ones(2))
