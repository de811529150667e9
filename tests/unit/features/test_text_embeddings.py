"""Text embeddings equal open_clip's zero-shot classifier, and are saved as a head's start."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file, save_file

from dpprobe.backbones import loading
from dpprobe.backbones.backbone import Runtime
from dpprobe.backbones.open_clip_models import TextEncoder
from dpprobe.backbones.options import BackboneOptions
from dpprobe.backbones.registry import backbone_options
from dpprobe.data import prompts, table
from dpprobe.errors import ConfigError, DataError
from dpprobe.features import text_embeddings, text_file
from dpprobe.heads.initial_weights import weights_from_file
from dpprobe.heads.registry import method_options
from tests.support import tiny_clip

CPU = Runtime(device="cpu")
CLASSES = ("airplane", "cat", "dog")
THEIRS: dict[str, Any] = {
    "photo": ("a photo of a {}.",),
    "ensemble7": open_clip.SIMPLE_IMAGENET_TEMPLATES,
    "imagenet80": open_clip.OPENAI_IMAGENET_TEMPLATES,
}


@pytest.fixture(autouse=True)
def _tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_clip.register(tmp_path / "configs", monkeypatch)


@pytest.fixture
def info(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    described = table.DatasetInfo(
        class_names=CLASSES, multi_label=False, groups=(), fingerprint="f", splits={}, source={}
    )
    monkeypatch.setattr(text_embeddings, "read_info", lambda _path: described)
    return tmp_path / "dataset.json"


def options(model: str = "tiny-quickgelu", **values: Any) -> BackboneOptions:
    return backbone_options({"family": "open_clip", "model": model, "pretrained": False} | values)


def library(model: str) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return open_clip.create_model(model).eval()


def embed(model: str, chosen: str) -> tuple[np.ndarray, TextEncoder]:
    sentences = prompts.make_sentences(prompts.read_templates(chosen), CLASSES)
    return text_embeddings.embed_text(options(model), sentences=sentences, runtime=CPU)


def write(path: Path, info: Path, **values: Any) -> None:
    arguments: dict[str, Any] = {
        "options": options(),
        "chosen": "simple",
        "prompt_names": {},
        "runtime": CPU,
    }
    text_embeddings.write_text_embeddings(path, info=info, **(arguments | values))


@pytest.mark.parametrize("model", ["tiny", "tiny-quickgelu", "tiny-timm"])
@pytest.mark.parametrize("chosen", sorted(THEIRS))
def test_embeddings_are_open_clips_zero_shot_classifier(model: str, chosen: str) -> None:
    weights, _ = embed(model, chosen)
    expected = open_clip.build_zero_shot_classifier(
        library(model), open_clip.get_tokenizer(model), CLASSES, THEIRS[chosen]
    )
    assert weights.shape == (3, 24)
    assert weights.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(weights, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(weights, expected.T.numpy(), rtol=1e-4, atol=1e-6)


def test_zero_shot_scores_are_the_library_s_logits() -> None:
    """Text rows, image features and the scale together give the whole model's logits."""
    model = library("tiny-quickgelu")
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8))
    backbone = loading.load_backbone(options(), runtime=CPU)
    features = backbone.forward(backbone.transform(image)[None])
    weights, encoder = embed("tiny-quickgelu", "photo")
    scores = encoder.logit_scale * torch.nn.functional.normalize(features) @ weights.T
    _, _, preprocess = open_clip.create_model_and_transforms("tiny-quickgelu")
    tokens = open_clip.get_tokenizer("tiny-quickgelu")([f"a photo of a {c}." for c in CLASSES])
    with torch.inference_mode():
        expected, _ = model.get_logits(preprocess(image)[None], tokens)
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-4)


def test_what_is_of_images_alone_does_not_decide_text() -> None:
    sentences = [["a"], ["b"]]
    expected, plain = text_embeddings.embed_text(options(), sentences=sentences, runtime=CPU)
    others: list[dict[str, Any]] = [
        {"layers": "all"},
        {"preprocessing": {"flip": True}},
        {"grey_bits": 12},
    ]
    for other in others:
        weights, encoder = text_embeddings.embed_text(
            options(**other), sentences=sentences, runtime=CPU
        )
        assert encoder.fingerprint == plain.fingerprint
        np.testing.assert_array_equal(weights, expected)


def test_the_artifact_says_what_made_it(tmp_path: Path, info: Path) -> None:
    path = tmp_path / "text.safetensors"
    write(path, info, prompt_names={"airplane": "jumbo jet"})
    weights, metadata = text_file.read_text_embeddings(path)
    np.testing.assert_array_equal(weights, load_file(path)["weights"])
    assert metadata["class_names"] == list(CLASSES)
    assert metadata["words"] == ["jumbo jet", "cat", "dog"]
    assert metadata["set"] == "simple"
    assert metadata["templates"] == ["This is a picture of {a} {c}"]
    assert metadata["logit_scale"] == pytest.approx(1 / 0.07, rel=1e-4)
    assert metadata["logit_bias"] is None
    again = tmp_path / "again.safetensors"
    write(again, info, prompt_names={"airplane": "jumbo jet"})
    assert again.read_bytes() == path.read_bytes()
    write(again, info)  # other words in the same templates
    assert text_file.read_text_embeddings(again)[1]["fingerprint"] != metadata["fingerprint"]
    write(again, info, chosen=("{c}",))
    other = text_file.read_text_embeddings(again)[1]
    assert other["set"] == "own"
    assert other["fingerprint"] != metadata["fingerprint"]
    assert other["backbone_fingerprint"] == metadata["backbone_fingerprint"]


def test_a_head_starts_from_the_artifact(tmp_path: Path, info: Path) -> None:
    path = tmp_path / "text.safetensors"
    write(path, info)
    weights, _ = text_file.read_text_embeddings(path)
    dimension = loading.load_backbone(options(), runtime=CPU).dimension
    assert dimension is not None
    first = weights_from_file(str(path), len(CLASSES), dimension)
    np.testing.assert_array_equal(first[:, :-1], weights.astype(np.float64))
    assert not first[:, -1].any()
    with pytest.raises(ConfigError, match=r"weights have shape \[3, 24\]; write \[3, 25\]"):
        weights_from_file(str(path), len(CLASSES), 25)
    method = method_options(
        {"head": "momentum", "learning_rate": 1, "init": "file", "init_file": str(path)}
    )
    assert method.input_files() == (str(path),)


def test_a_failure_leaves_no_text_embedding_file(tmp_path: Path, info: Path) -> None:
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"options": backbone_options({"family": "pixels"})}, "pixels cannot read text"),
        ({"chosen": ("no class",)}, "has no {c}"),
        ({"prompt_names": {"bird": "x"}}, "no class 'bird'"),
        ({"options": options("tiny-tokenizer")}, "tokenizer of tiny-tokenizer cannot be loaded"),
        (
            {"chosen": ("{c} " + "very " * 80 + "long",)},
            "tokens, but tiny-quickgelu reads at most 77",
        ),
    )
    for wrong, message in cases:
        with pytest.raises(ConfigError, match=message) as error:
            write(tmp_path / "text.safetensors", info, **wrong)
        assert "\n" not in str(error.value)
    assert not list(tmp_path.glob("*text*"))


class HubTokenizer:
    """Truncates silently like open_clip's Hub tokenizers, with one of three kinds of end token."""

    def __init__(self, end: str, limit: int = 77) -> None:
        self.end, self.context_length = end, limit

    def __call__(self, texts: list[str], context_length: int | None = None) -> torch.Tensor:
        length, rows = context_length or self.context_length, []
        for text in texts:
            known = [1 if word == "zzz" else 3 + ord(word[0]) for word in text.lower().split()]
            kept = [2, *known][: length - 1]
            kept += [0] if self.end == "pads are ends" else [2]
            pads = [0] * (length - len(kept))
            rows.append([*pads, *kept] if self.end == "pads first" else [*kept, *pads])
        return torch.tensor(rows)


@pytest.mark.parametrize("end", ["pads last", "pads first", "pads are ends"])
@pytest.mark.parametrize("words", [0, 73, 74, 75, 200])
def test_no_tokenizer_cuts_in_silence(
    monkeypatch: pytest.MonkeyPatch, end: str, words: int
) -> None:
    monkeypatch.setattr(open_clip, "get_tokenizer", lambda _name: HubTokenizer(end))
    sentences = [["very " * words + name] for name in CLASSES]
    if words < 75:
        assert text_embeddings.embed_text(options(), sentences=sentences, runtime=CPU)
        return
    with pytest.raises(ConfigError, match="reads at most 77; shorten"):
        text_embeddings.embed_text(options(), sentences=sentences, runtime=CPU)


@pytest.mark.parametrize(
    ("first", "second", "own"),
    [
        ("cat", "CAT", True),
        ("cat", " cat  ", True),
        ("caf\u00e9", "cafe\u0301", True),
        ("cat", "cow", False),
        ("zzz cat", "ZZZ cow", False),
    ],
)
def test_classes_of_equal_tokens_are_refused(
    monkeypatch: pytest.MonkeyPatch, first: str, second: str, own: bool
) -> None:
    if not own:
        monkeypatch.setattr(open_clip, "get_tokenizer", lambda _name: HubTokenizer("pads last"))
    sentences = [[f"a {name}", f"one {name}"] for name in (first, "dog", second)]
    with pytest.raises(ConfigError, match="same tokens"):
        text_embeddings.embed_text(options(), sentences=sentences, runtime=CPU)


def test_equal_words_are_refused_but_for_imagenet(
    tmp_path: Path, info: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigError, match="'pet' stands for 2 classes"):
        write(tmp_path / "a.safetensors", info, prompt_names={"cat": "pet", "dog": "pet"})
    five = table.DatasetInfo(
        class_names=tuple("vwxyz"),
        multi_label=False,
        groups=(),
        fingerprint="f",
        splits={},
        source={},
    )
    monkeypatch.setattr(text_embeddings, "read_info", lambda _path: five)
    monkeypatch.setattr(open_clip, "IMAGENET_CLASSNAMES", [*"abbcc"])
    write(tmp_path / "a.safetensors", info, prompt_names="imagenet")
    assert re.findall(r"'(\w)' stands for 2 classes", caplog.text) == ["b", "c"]


def test_text_embeddings_in_another_class_order_and_damaged_files_are_refused(
    tmp_path: Path,
) -> None:
    path = tmp_path / "start.safetensors"
    metadata = {"format": text_file.FORMAT, "class_names": ["cat", "dog"]}
    weights = {"weights": np.eye(2, dtype=np.float32)}
    save_file(weights, path, metadata={"dpprobe": json.dumps(metadata)})
    text_file.check_classes(path, ["cat", "dog"])
    with pytest.raises(DataError, match="have another order"):
        text_file.check_classes(path, ["dog", "cat"])
    for change, array in (
        ({"class_names": ["cat"]}, "weights"),
        ({"class_names": None}, "weights"),
        ({}, "other"),
        ({"format": "x"}, "weights"),
    ):
        save_file(
            {array: weights["weights"]}, path, metadata={"dpprobe": json.dumps(metadata | change)}
        )
        with pytest.raises(DataError, match="no text embeddings"):
            text_file.read_text_embeddings(path)
    whole = path.read_bytes()
    for damaged in (whole[:-7], b"", b"{}"):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"start.safetensors: no text embeddings"):
            text_file.read_text_embeddings(path)
    save_file(weights, path)  # another program's file: its classes are unknown
    text_file.check_classes(path, ["dog", "cat"])
