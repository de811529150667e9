"""open_clip's image towers equal the library's pipeline and always have the right activation."""

from __future__ import annotations

import hashlib
import json
import shutil
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from open_clip.pretrained import get_pretrained_cfg, list_pretrained_tags_by_model
from PIL import Image
from safetensors.torch import load_file, save_file

from dpprobe.backbones import loading, open_clip_models
from dpprobe.backbones.backbone import Backbone, Runtime
from dpprobe.backbones.describe import describe_backbone
from dpprobe.backbones.feature_digest import probes_agree, take_probe
from dpprobe.backbones.options import BackboneOptions
from dpprobe.backbones.registry import backbone_options
from dpprobe.errors import ConfigError
from tests.support import tiny_clip
from tests.support.backbones import renew_list, run
from tests.support.backbones import smooth_noise as noise

CPU = Runtime(device="cpu")


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_clip.register(tmp_path / "configs", monkeypatch)


def options(**values: Any) -> BackboneOptions:
    return backbone_options({"family": "open_clip"} | values)


def load(model: str = "tiny-quickgelu", runtime: Runtime = CPU, **values: Any) -> Backbone:
    if "checkpoint" not in values:
        values = {"pretrained": False} | values
    return loading.load_backbone(options(model=model, **values), runtime=runtime)


def library(model: str = "tiny-quickgelu", **arguments: Any) -> tuple[Any, Any]:
    """Returns open_clip's model and evaluation transform, with the family's random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        created, _, preprocess = open_clip.create_model_and_transforms(model, **arguments)
    return created.eval(), preprocess


def embed(model: Any, preprocess: Any, *pictures: Image.Image) -> torch.Tensor:
    with torch.inference_mode():
        embedded: torch.Tensor = model.encode_image(torch.stack([preprocess(p) for p in pictures]))
    return embedded


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("model", ["tiny", "tiny-quickgelu", "tiny-resnet", "tiny-timm"])
def test_features_are_the_library_s_image_embeddings(model: str) -> None:
    backbone = load(model)
    pictures = [noise(seed=seed, size=size) for seed, size in enumerate([(90, 70), (40, 200)])]
    expected = embed(*library(model), *pictures)
    assert backbone.dimension == 24
    assert backbone.transform(pictures[0]).dtype == torch.uint8
    torch.testing.assert_close(run(backbone, *pictures), expected, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(expected.norm(dim=1), torch.ones(2), atol=1e-3)  # not normalised


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("preprocessing", "arguments"),
    [
        ({"size": 48}, {"force_image_size": 48}),
        (
            {"mean": 0.5, "std": [0.5, 0.4, 0.3]},
            {"image_mean": (0.5,) * 3, "image_std": (0.5, 0.4, 0.3)},
        ),
        ({"interpolation": "bilinear"}, {"image_interpolation": "bilinear"}),
        ({"resize_mode": "squash"}, {"image_resize_mode": "squash"}),
        ({"resize_mode": "longest"}, {"image_resize_mode": "longest"}),
    ],
)
def test_overrides_are_the_library_s(
    preprocessing: dict[str, Any], arguments: dict[str, Any]
) -> None:
    backbone = load(preprocessing=preprocessing)
    expected = embed(*library(**arguments), noise())
    torch.testing.assert_close(run(backbone, noise()), expected, rtol=1e-4, atol=1e-6)
    plain = load()
    assert backbone.fingerprint != plain.fingerprint
    # the comparison notices a wrong transform: the library's default gives other features
    default = embed(*library(), noise())
    assert (run(backbone, noise()) - default).abs().max() > 1e-3 * default.abs().max()


@pytest.mark.usefixtures("tiny")
def test_the_wrong_activation_gives_other_features() -> None:
    quick, usual = load("tiny-quickgelu"), load("tiny")
    assert quick.weights_sha256 == usual.weights_sha256
    assert quick.fingerprint != usual.fingerprint
    right, wrong = run(quick, noise()), run(usual, noise())
    assert (right - wrong).abs().max() > 1e-3 * right.abs().max()
    assert not probes_agree(take_probe(quick), take_probe(load("tiny-timm")))


@pytest.mark.locked
def test_the_list_of_names_is_open_clips_and_every_pair_passes() -> None:
    known = open_clip_models.known_models()
    assert known is not None
    for name, tag in open_clip.list_pretrained():
        if name not in known:
            continue
        try:
            options(model=name, pretrained=tag).check_files()
        except ConfigError as error:
            remedy = str(error).rpartition("write ")[2].strip("`").partition(": ")
            values: dict[str, Any] = {"model": name, "pretrained": tag}
            values[remedy[0]] = remedy[2] if remedy[0] == "model" else remedy[2] == "true"
            options(**values).check_files()

    def activation(quick: object) -> str:
        return open_clip_models.QUICK if quick else open_clip_models.USUAL

    lines = [f"{open_clip_models.LIBRARY} {version(open_clip_models.LIBRARY)}"]
    for name in sorted(open_clip.list_models()):
        config = open_clip.get_model_config(name)
        words = [name, activation(config.get("quick_gelu"))]
        for tag in list_pretrained_tags_by_model(name):
            words.append(f"{tag}:{activation(get_pretrained_cfg(name, tag).get('quick_gelu'))}")
        lines.append(" ".join(words))
    renew_list(open_clip_models.NAMES, "\n".join(lines) + "\n")


@pytest.fixture
def checkpoint(tiny: None, tmp_path: Path) -> Path:  # noqa: ARG001
    torch.manual_seed(7)
    model = open_clip.create_model("tiny-quickgelu")
    path = tmp_path / "weights.safetensors"
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, path)
    return path


def test_checkpoint_is_loaded_strictly_and_named_by_its_hash(checkpoint: Path) -> None:
    backbone = load(checkpoint=str(checkpoint))
    assert backbone.weights_sha256 == hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    assert backbone.trained
    expected = embed(*library(pretrained=str(checkpoint)), noise())
    torch.testing.assert_close(run(backbone, noise()), expected, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(expected, run(load(), noise()), rtol=1e-2)
    moved = checkpoint.rename(checkpoint.with_name("moved.safetensors"))
    assert load(checkpoint=str(moved)).fingerprint == backbone.fingerprint
    # A weights file does not state its activation, so the name decides.
    usual = load("tiny", checkpoint=str(moved))
    assert usual.fingerprint != backbone.fingerprint
    assert usual.preprocessing["activation"] == "gelu"
    state = load_file(moved)
    del state["visual.ln_post.bias"]
    save_file(state, moved)
    with pytest.raises(ConfigError, match="open_clip cannot create tiny-quickgelu .*ln_post.bias"):
        load(checkpoint=str(moved))


def test_weights_that_cannot_be_fetched_name_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    from open_clip import factory

    def offline(*_: Any, **__: Any) -> str:
        raise OSError("no route to the Hub")

    monkeypatch.setattr(factory, "download_pretrained", offline)
    monkeypatch.setattr(open_clip_models, "require_files", list)  # the Hub answers
    tagged = options(model="ViT-B-32-quickgelu.openai")
    assert describe_backbone(tagged)["dimension"] == 512, "without weights"
    with pytest.raises(ConfigError, match=r"no route to the Hub.*or name a local checkpoint"):
        loading.load_backbone(tagged, runtime=CPU)


def test_a_tag_s_own_preprocessing_is_taken(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """open_clip knows that some weights have their own mean and interpolation."""
    from open_clip import factory

    known = {"url": "", "mean": (0.1, 0.2, 0.3), "interpolation": "bilinear", "quick_gelu": True}
    monkeypatch.setattr(factory, "get_pretrained_cfg", lambda _model, _tag: known)
    monkeypatch.setattr(factory, "download_pretrained", lambda *_, **__: str(checkpoint))
    tags = "open_clip.pretrained.list_pretrained_tags_by_model"
    monkeypatch.setattr(tags, lambda _model: ["some_tag"])
    fetched = loading.load_backbone(options(model="tiny-quickgelu.some-Tag"), runtime=CPU)
    assert fetched.preprocessing["mean"] == [0.1, 0.2, 0.3]
    assert fetched.preprocessing["interpolation"] == "bilinear"
    assert fetched.pretrained_tag == "some_tag"
    assert fetched.architecture == "tiny-quickgelu"
    assert fetched.trained
    local = load(checkpoint=str(checkpoint))
    assert local.fingerprint != fetched.fingerprint


VIT = {"model": "ViT-B-32", "pretrained": False}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pretrained": None}, "pretrained: missing; set a tag of ViT-B-32, or a checkpoint, or"),
        ({"model": "hf-hub:a/b", "pretrained": "x"}, "hf-hub:a/b includes its weights; remove"),
        ({"model": "hf-hub:a/b", "pretrained": None, "checkpoint": "w"}, "includes its weights"),
        ({"model": "ViT-B-32.openai", "pretrained": "x"}, "and pretrained x choose different wei"),
        ({"model": "ViT-B-32.openai"}, "and pretrained False choose different weights; remove one"),
        (
            {"model": "ViT-B-32.openai", "pretrained": None, "checkpoint": "w"},
            "pretrained openai and a checkpoint are both set; keep one of them",
        ),
        (
            {"pretrained": "openai", "checkpoint": "w"},
            "pretrained openai and a checkpoint are both set; keep",
        ),
        ({"preprocessing": {"mean": [0.1, 0.2]}}, "preprocessing.mean: 2 values for 3 channels"),
        ({"preprocessing": {"crop_pct": 1}}, "crop_pct: unknown key; remove it"),
    ],
)
def test_options_that_choose_no_weights_or_two_are_refused(
    change: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        options(**VIT | change)


@pytest.mark.locked
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model": "ViT-B-33", "pretrained": False}, "no model 'ViT-B-33'; write ViT-B-32 or "),
        ({"model": "qqqqqqqq", "pretrained": False}, "no model 'qqqqqqqq'; correct it$"),
        (
            {"model": "ViT-B-32.openia"},
            "no weights 'openia' of ViT-B-32; write openai: it has opena",
        ),
        (
            {"model": "ViT-B-32.webli"},
            "no weights 'webli' of ViT-B-32; correct it: it has openai, l",
        ),
        (
            {"model": "ViT-e-14.x"},
            "of ViT-e-14; correct it: it has none; write `pretrained: false`",
        ),
        # OpenAI's weights were trained with QuickGELU (Radford et al. 2021); LAION's were not.
        (
            {"model": "ViT-B-32.openai"},
            "openai of ViT-B-32 were trained with quickgelu, but .* computes gelu.*; "
            "write `model: ViT-B-32-quickgelu`",
        ),
        (
            {"model": "ViT-B-32-quickgelu.openai", "quick_gelu": False},
            "with quickgelu, but this model computes gelu.*; write `quick_gelu: true`",
        ),
        (
            {"model": "ViT-B-32.laion2b_s34b_b79k", "quick_gelu": True},
            "with gelu, but this model computes quickgelu.*; write `quick_gelu: false`",
        ),
        ({"model": "ViT-B-32.openai", "quick_gelu": True}, None),
        ({"model": "ViT-B-32-quickgelu.openai"}, None),
        ({"model": "ViT-B-32.laion2b_s34b_b79k"}, None),
        # a name with QuickGELU is right, whatever the list states about its weights
        ({"model": "roberta-ViT-B-32.laion2b_s12b_b32k"}, None),
        ({"model": "hf-hub:a/b"}, None),
    ],
)
def test_names_and_activations_are_compared_with_the_list(
    values: dict[str, Any], said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = options(**values)
    if said is None:
        chosen.check_files()
        return
    with pytest.raises(ConfigError, match=said):
        chosen.check_files()
    monkeypatch.setattr(open_clip_models, "known_models", lambda: None)
    chosen.check_files()
    with pytest.raises(ConfigError, match=said):  # another version is asked when it is loaded
        loading.load_backbone(chosen, runtime=CPU)


@pytest.mark.parametrize(
    ("model", "own"), [("ViT-B-32", True), ("roberta-ViT-B-32", False), ("hf-hub:a/b", False)]
)
@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("other_version", [True, False])
def test_text_is_read_where_its_tokenizer_runs(
    monkeypatch: pytest.MonkeyPatch, model: str, own: bool, installed: bool, other_version: bool
) -> None:
    """The Hub's tokenizers need the package transformers; open_clip's own need no other package."""
    if other_version:
        monkeypatch.setattr(open_clip_models, "LIBRARY", "pip")
    asked: list[str] = []

    def find(name: str) -> ModuleSpec | bool | None:
        asked.append(name)
        return find_spec(name) if name == "open_clip" else installed or None

    monkeypatch.setattr(open_clip_models, "find_spec", find)
    chosen = options(model=model, pretrained=False if "hub" not in model else None)
    assert chosen.reads_text == (own or installed)
    said = [
        f"reading text with {model} needs the package transformers, which is not installed: text "
    ]
    assert [each[: len(said[0])] for each in chosen.list_warnings()] == said * (
        not chosen.reads_text
    )
    assert set(asked) <= {"open_clip", "transformers"}


@pytest.mark.slow
def test_models_whose_tokenizer_is_open_clips_read_text_without_another_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The test asks open_clip's own function which tokenizer it makes for each model."""
    find = {"open_clip": find_spec("open_clip"), "transformers": None}
    monkeypatch.setattr(open_clip_models, "find_spec", find.get)
    monkeypatch.setattr(open_clip.factory, "HFTokenizer", lambda *_, **__: "of the Hub")
    for model in open_clip.list_models():
        reads = options(model=model, pretrained=False).reads_text
        assert reads == (open_clip.get_tokenizer(model) != "of the Hub"), model


def test_text_embeddings_do_not_depend_on_images() -> None:
    plain = options(**VIT)
    for change in (
        {"preprocessing": {"flip": True}},
        {"layers": [1], "token": "pooled"},
        {"grey_bits": 12},
        {"jpeg_decoding": "scaled"},
    ):
        changed = options(**VIT, **change)
        assert changed.text_params() == plain.text_params(), change
        assert changed.extraction_params() != plain.extraction_params()
    assert options(**VIT, quick_gelu=True).text_params() != plain.text_params()


WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
ROBERTA = "laion/CLIP-ViT-B-32-roberta-base-laion2B-s12B-b32k"
TEXT = [
    ("config", "roberta-base", ("config.json",)),
    ("tokenizer", "roberta-base", ("tokenizer_config.json", "tokenizer.json")),
]


@pytest.mark.parametrize(
    ("values", "images", "text"),
    [
        ({"model": "ViT-B-32", "pretrained": False}, [], []),
        (
            {"model": "ViT-B-32.laion2b_s34b_b79k"},
            [("weights", "laion/CLIP-ViT-B-32-laion2B-s34B-b79K", WEIGHTS)],
            [],
        ),
        (
            {"model": "ViTamin-S.datacomp1b"},  # a repository that names its file
            [
                (
                    "weights",
                    "jienengchen/ViTamin-S",
                    ("pytorch_model.safetensors", "pytorch_model.bin"),
                )
            ],
            [],
        ),
        (
            {"model": "hf-hub:a/b"},
            [("config", "a/b", ("open_clip_config.json",)), ("weights", "a/b", WEIGHTS)],
            [],
        ),
        ({"model": "local-dir:x"}, [], []),
        ({"model": "roberta-ViT-B-32", "pretrained": False}, [], TEXT),
        ({"model": "roberta-ViT-B-32.laion2b_s12b_b32k"}, [("weights", ROBERTA, WEIGHTS)], TEXT),
    ],
)
def test_files_of_the_hub_are_known_before_they_are_fetched(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], images: list[Any], text: list[Any]
) -> None:
    chosen: Any = options(**values)
    for installed, wanted in ((None, images), ("there", images + text)):
        monkeypatch.setattr(open_clip_models, "find_spec", lambda _, there=installed: there)
        assert open_clip_models.list_hub_files(chosen) == wanted


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("model", "layer", "width"),
    [("tiny", 3, 32), ("tiny", 0, 32), ("tiny-timm", 6, 64), ("tiny-resnet", 4, 8 * 32)],
)
def test_layers_of_towers_have_the_width_of_their_blocks(
    model: str, layer: int, width: int
) -> None:
    """A CLIP ResNet's last stage has 32 times the channels of its stem."""
    backbone = load(model, layers=[layer])
    assert backbone.layers == {str(layer): width}
    depth = {"tiny": 3, "tiny-timm": 6, "tiny-resnet": 4}[model]
    with pytest.raises(ConfigError, match=f"has no block {depth + 1}; use .* 0 to {depth}"):
        load(model, layers=[depth + 1])


@pytest.mark.usefixtures("tiny")
def test_preprocessing_is_recorded_with_the_library_s_defaults() -> None:
    written = {"size": 48, "mean": 0.5, "resize_mode": "longest", "interpolation": "bilinear"}
    views = {"flip": True, "crop": "inception", "crop_seed": 3}
    recorded = load("tiny", preprocessing=written | views).preprocessing
    assert recorded == {
        "color": "RGB",
        "size": [48, 48],
        "mode": "RGB",
        "mean": [0.5] * 3,
        "std": list(open_clip.OPENAI_DATASET_STD),
        "interpolation": "bilinear",
        "resize_mode": "longest",
        "fill_color": 0,
        **views,
        "activation": "gelu",
    }
    assert load("tiny").preprocessing["mean"] == list(open_clip.OPENAI_DATASET_MEAN)
    assert (load("tiny").trained, load("tiny").pretrained_tag) == (False, None)


# features before the projection


# Towers of all kinds: open_clip's ViT and ResNet, and timm's networks by kind of projection.
POOLED: dict[str, dict[str, Any]] = {
    "coca": tiny_clip.VISION | {"attentional_pool": True, "attn_pooler_heads": 4},
    "linear": tiny_clip.CONFIGS["tiny-timm"]["vision_cfg"],
    "mlp": tiny_clip.CONFIGS["tiny-timm"]["vision_cfg"] | {"timm_proj": "mlp"},
    "classifier": tiny_clip.CONFIGS["tiny-timm"]["vision_cfg"]
    | {"timm_pool": "token", "timm_proj": ""},
    "pool": {
        "timm_model_name": "resnet10t",
        "timm_pool": "abs_attn",
        "timm_proj": "",
        "image_size": 176,
    },
    "none": tiny_clip.CONFIGS["tiny-timm"]["vision_cfg"] | {"timm_proj": "none"},
}


@pytest.fixture
def towers(tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    from open_clip import factory

    for name, vision in POOLED.items():
        config = tiny_clip.CONFIGS["tiny-timm"] | {"vision_cfg": vision}
        monkeypatch.setitem(factory._MODEL_CONFIGS, f"tiny-{name}", config)


def project(visual: Any, features: torch.Tensor) -> torch.Tensor:
    """Applies the projection with which open_clip's tower ends."""
    if isinstance(getattr(visual, "proj", None), torch.Tensor):
        return features @ visual.proj
    if hasattr(visual, "attnpool"):
        projected: torch.Tensor = visual.attnpool.c_proj(features)
        return projected
    last = getattr(visual.head, "proj", getattr(visual.head, "mlp", None))
    last = last or (visual.head.pool.proj if hasattr(visual.head, "pool") else visual.trunk.head)
    return last(features)


@pytest.mark.usefixtures("towers")
@pytest.mark.parametrize(
    ("model", "width"),
    [
        ("tiny", 32),
        ("tiny-quickgelu", 32),
        ("tiny-resnet", 256),
        ("tiny-coca", 24),
        ("tiny-linear", 64),
        ("tiny-mlp", 64),
        ("tiny-classifier", 64),
        ("tiny-pool", 512),
    ],
)
def test_features_before_the_projection_give_the_embeddings_by_the_library_s_own(
    model: str, width: int
) -> None:
    pictures = [noise(seed=seed) for seed in range(2)]
    before, after = load(model, with_projection=False), load(model)
    created, preprocess = library(model)
    features = run(before, *pictures)
    assert features.shape == (2, width)
    with torch.inference_mode():
        projected = project(created.visual, features)
    expected = embed(created, preprocess, *pictures)
    torch.testing.assert_close(projected, expected, rtol=1e-4, atol=1e-5)
    if model != "tiny-coca":
        assert features.shape != expected.shape
    assert not torch.allclose(features.std(dim=1), torch.zeros(2), atol=1e-3)
    assert before.weights_sha256 == after.weights_sha256
    assert before.fingerprint != after.fingerprint
    assert (
        describe_backbone(options(model=model, pretrained=False, with_projection=False))[
            "dimension"
        ]
        == width
    )


@pytest.mark.usefixtures("towers")
def test_with_projection_false_is_refused_for_a_tower_without_a_projection() -> None:
    """SigLIP's towers, for example, end without a projection."""
    chosen = options(model="tiny-none", pretrained=False, with_projection=False)
    told = describe_backbone(chosen)
    assert (
        "with_projection: the image tower of tiny-none ends without a projection" in told["fault"]
    )
    assert told["certain"]
    with pytest.raises(ConfigError, match="remove with_projection"):
        loading.load_backbone(chosen, runtime=CPU)


@pytest.mark.usefixtures("tiny")
def test_features_before_the_projection_come_without_text() -> None:
    before = options(model="ViT-B-32-quickgelu", pretrained="openai", with_projection=False)
    after = options(model="ViT-B-32-quickgelu", pretrained="openai")
    assert (before.reads_text, after.reads_text) == (False, True)
    (warning,) = before.list_warnings()
    assert "share no space with text, so text embeddings and zero-shot results are left" in warning
    assert after.list_warnings() == []
    # studies without the option keep their features
    assert "with_projection" not in after.extraction_params()
    assert before.extraction_params()["with_projection"] is False


# folders in the Hub's layout


def save_folder(folder: Path, model: str = "tiny-quickgelu") -> Any:
    """Writes a small model with random weights in the layout of `open_clip.push_to_hf_hub`."""
    created, _ = library(model)
    folder.mkdir()
    config = {"model_cfg": open_clip.get_model_config(model), "preprocess_cfg": {}}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    save_file(created.state_dict(), folder / "open_clip_model.safetensors")
    return created


@pytest.mark.usefixtures("tiny")
def test_a_folder_is_loaded_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    created = save_folder(tmp_path / "mine")
    _, preprocess = library()
    name = f"local-dir:{tmp_path / 'mine'}"
    backbone = loading.load_backbone(options(model=name), runtime=CPU)
    expected = embed(created, preprocess, noise(seed=3))
    torch.testing.assert_close(run(backbone, noise(seed=3)), expected, rtol=1e-4, atol=1e-6)
    assert backbone.preprocessing["activation"] == "quickgelu"
    assert backbone.trained
    assert [Path(file).name for file in options(model=name).input_files()] == [
        "open_clip_config.json",
        "open_clip_model.safetensors",
    ]
    text = open_clip_models.load_text(options(model=name), Runtime(device="cpu"))  # type: ignore[arg-type]
    tokenize = open_clip_models.make_tokenizer(options(model=name))  # type: ignore[arg-type]
    with torch.inference_mode():
        wanted = created.encode_text(tokenize(["a cat"]), normalize=True)
    torch.testing.assert_close(text.encode(tokenize(["a cat"])), wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("tiny")
def test_a_folder_is_known_by_its_weights_and_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_folder(Path("mine"))
    for name in ("copy", "gelu", "other"):
        shutil.copytree("mine", name)
    path = Path("gelu/open_clip_config.json")
    path.write_text(path.read_text().replace('"quick_gelu": true', '"quick_gelu": false'))
    weights = load_file("other/open_clip_model.safetensors")
    weights["visual.proj"] += 1
    save_file(weights, "other/open_clip_model.safetensors")
    names = [f"local-dir:{name}" for name in ("mine", str(tmp_path / "copy"), "gelu", "other")]
    made = [loading.load_backbone(options(model=name), runtime=CPU) for name in names]
    prints = [backbone.fingerprint for backbone in made]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3
    assert made[2].weights_sha256 == made[0].weights_sha256
    params = [options(model=name).extraction_params() for name in names]
    assert params[0] == params[1] == params[3] != params[2]
    said = json.dumps([params, [backbone.architecture for backbone in made]])
    assert str(tmp_path) not in said


def test_a_folder_without_weights_is_not_random(tmp_path: Path) -> None:
    """open_clip itself only warns, and returns random weights."""
    (tmp_path / "open_clip_config.json").write_text("{}")
    chosen = options(model=f"local-dir:{tmp_path}")
    with pytest.raises(ConfigError, match=r"has no weights \(.safetensors, .bin, .pth\); copy"):
        chosen.check_files()
    assert not chosen.reads_text
