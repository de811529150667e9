"""The ONNX export: one file with the release's probabilities and no traces of this machine."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image

from dpprobe.errors import ConfigError, DataError
from dpprobe.files.json_files import read_json
from dpprobe.release import export
from dpprobe.release.export import Exported, export_onnx
from dpprobe.release.predict import Predictor
from tests.support.bundles import write_example
from tests.support.network_bundles import write_release
from tests.support.refusals import check_tokens, refuses
from tests.unit.release.test_predict import MOBILENET

POINT = {"operating_point": {"positive_class": "yes", "threshold": 0.3}}

RESNET = {"family": "timm", "model": "test_resnet", "pretrained": False}
VIT = {"family": "timm", "model": "test_vit", "pretrained": False, "model_args": {"depth": 1}}


def head(normalize: Any) -> dict[str, Any]:
    return {"head": "feature_covariance", "normalize": normalize}


def pictures(count: int) -> list[Image.Image]:
    generator = np.random.default_rng(5)
    shape = (count, 90, 70, 3)
    return [Image.fromarray(one) for one in generator.integers(0, 256, shape, dtype=np.uint8)]


def run(path: Path, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (name,) = (one.name for one in session.get_inputs())
    return session.run(None, {name: images})[0]


def transformed(predictor: Predictor, images: list[Image.Image]) -> npt.NDArray[np.uint8]:
    return torch.stack([predictor.backbone.transform(image) for image in images]).numpy()


def centre(width: int) -> npt.NDArray[np.float32]:
    values = np.random.default_rng(2).normal(size=width) / width
    return values.astype(np.float32)


# Network and head options of a graph are independent, so each case combines one of each: writing a
# graph takes seconds, and longer for deeper networks. The fixture `written` is another case.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "flipped, l2": (VIT | {"preprocessing": {"flip": True, "crop": "inception"}}, {}),
    "centred": (VIT, {"head": head("centred"), "arrays": {"centre": centre(64)}}),
    "channels": (
        VIT,
        {
            "head": head(
                {
                    "kind": "channels",
                    "channels": 16,
                    "max_mean_norm": 1.0,
                    "max_deviation_norm": 1.0,
                }
            ),
            "arrays": {"channel_means": centre(16), "channel_deviations": 1 + centre(16)},
        },
    ),
    "layers, layer_norm": (
        VIT | {"layers": "all", "model_args": {"depth": 2}},
        {"head": head("layer_norm"), "link": "none", "dtype": "float16"},
    ),
    "grey, sigmoid": (
        VIT
        | {"model_args": {"depth": 1, "in_chans": 1}, "preprocessing": {"mean": 0.5, "std": 0.5}},
        {"head": head("none"), "link": "sigmoid", "multi_label": True},
    ),
    "two, calibrated": (
        VIT,
        {
            "classes": ("no", "yes"),
            "link": "none",
            "calibration": {"scale": 0.4, "offset": 1.5, "sets": [], **POINT},
        },
    ),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Exported]:
    folder = tmp_path_factory.mktemp("written")
    bundle = write_release(folder / "bundle", RESNET, dtype="float16")
    return bundle, export_onnx(bundle, folder / "out" / "model.onnx")


def check_file(bundle: Path, exported: Exported) -> None:
    """Compares a file's outputs for images with the release's probabilities."""
    path = exported.path
    assert 0 <= exported.largest_difference <= 1e-4
    assert exported.precision_difference == exported.largest_difference
    assert [one.name for one in path.parent.iterdir()] == ["model.onnx"]
    predictor = Predictor.load_bundle(bundle, device="cpu")
    for count in (1, 5):  # any number of images
        images = pictures(count)
        wanted = predictor.predict_images(images)
        given_values = run(path, transformed(predictor, images))
        scale = max(1.0, float(np.abs(wanted).max()))
        assert given_values.dtype == np.float32
        np.testing.assert_allclose(given_values / scale, wanted / scale, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_file_gives_the_probabilities_of_the_release(tmp_path: Path, case: str) -> None:
    backbone, given = CASES[case]
    bundle = write_release(tmp_path / "bundle", backbone, **given)
    path = tmp_path / "out" / "model.onnx"
    exported = export_onnx(bundle, path)
    assert exported.path == path
    check_file(bundle, exported)
    check_metadata(bundle, exported)


def check_metadata(bundle: Path, exported: Exported) -> None:
    """Compares a file's metadata with bundle.json and with the inputs that ONNX Runtime accepts."""
    facts, model = read_json(bundle / "bundle.json"), onnx.load(exported.path)
    session = onnxruntime.InferenceSession(exported.path, providers=["CPUExecutionProvider"])
    calibrated = read_json(bundle / "privacy.json").get("calibration")
    link = "softmax" if calibrated else facts["head"]["link"]
    (taken,), (given,) = session.get_inputs(), session.get_outputs()
    channels, height, width = facts["backbone"]["preprocessing"]["input_size"]
    assert (taken.name, taken.type) == ("images", "tensor(uint8)")
    assert taken.shape[1:] == [channels, height, width]
    assert given.name == ("scores" if link == "none" else "probabilities")
    values = {one.key: one.value for one in model.metadata_props}
    mode = {1: "L", 3: "RGB"}[channels]
    assert values.pop("input") == exported.input
    check_tokens(exported.input, f"uint8 [batch, {channels}, {height}, {width}]", mode)
    check_tokens(model.doc_string, "lesions_v1", "dpprobe", exported.input)
    assert (model.producer_name, model.producer_version) == ("dpprobe", facts["dpprobe"])
    for name, wanted in {
        "preprocessing": facts["backbone"]["preprocessing"],
        "classes": facts["class_names"],
        "multi_label": facts["multi_label"],
        **({"sets": {}, "operating_point": {"yes": 0.3}} if calibrated else {}),
    }.items():
        assert json.loads(values.pop(name)) == wanted, name
    assert values == {
        "release": facts["name"],
        "dpprobe": facts["dpprobe"],
        "link": link,
        "dtype": facts["backbone"]["dtype"],
    }


def test_an_exported_model_is_valid_onnx_and_contains_no_local_paths(
    written: tuple[Path, Exported], repository: Path
) -> None:
    check_file(*written)
    check_metadata(*written)
    _, exported = written
    content = exported.path.read_bytes()
    places = [str(repository), str(exported.path.parent), str(Path.home()), torch.__file__]
    for word in [*places, "site-packages", ".py", "stack_trace"]:
        assert word.encode() not in content
    model = onnx.load(exported.path)
    onnx.checker.check_model(model, full_check=True)
    opsets = {one.domain: one.version for one in model.opset_import}
    assert set(opsets) == {""}  # supported by every runtime
    assert opsets[""] == exported.opset


def test_names_of_source_files_are_removed_from_subgraphs_too() -> None:
    """Exporters put the body of a loop or a function into an attribute of a node."""
    place = "File /home/me/model.py"
    inner = onnx.helper.make_node("Abs", ["x"], ["y"], doc_string=place)
    inner.metadata_props.add(key="stack_trace", value=place)
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1], doc_string=place)
    body = onnx.helper.make_graph([inner], "body", [value], [], doc_string=place)
    loop = onnx.helper.make_node("Loop", ["", ""], ["y"], body=body)
    function = onnx.helper.make_function("d", "f", ["x"], ["y"], [inner], [])
    graph = onnx.helper.make_graph([loop], "whole", [value], [value])
    model = onnx.helper.make_model(graph, functions=[function])
    assert model.SerializeToString().count(place.encode()) == 8
    export._forget_sources(model)
    assert place.encode() not in model.SerializeToString()
    assert model.graph.node[0].attribute[0].g.node[0].op_type == "Abs"


def test_features_are_rounded_in_the_file(tmp_path: Path) -> None:
    """The file's scores are much closer to those of rounded features than to exact ones."""
    loud: dict[str, Any] = {"head": head("none"), "link": "none", "scale": 100.0}
    rounded = write_release(tmp_path / "rounded", RESNET, dtype="float16", **loud)
    exact = write_release(tmp_path / "exact", RESNET, dtype="float32", **loud)
    export_onnx(rounded, tmp_path / "model.onnx")
    images = pictures(8)
    ones = [Predictor.load_bundle(bundle, device="cpu") for bundle in (rounded, exact)]
    given = run(tmp_path / "model.onnx", transformed(ones[0], images))
    to_rounded, to_exact = (np.abs(given - one.predict_images(images)).mean() for one in ones)
    assert to_rounded < to_exact / 3


def test_the_precision_of_the_release_is_measured_too(tmp_path: Path) -> None:
    bundle = write_release(tmp_path / "bundle", VIT, precision="bfloat16", scale=5.0)
    exported = export_onnx(bundle, tmp_path / "model.onnx")
    assert exported.largest_difference <= 1e-4
    assert exported.precision_difference > exported.largest_difference


def test_a_file_that_differs_is_refused_and_removed(
    tmp_path: Path, written: tuple[Path, Exported], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, exported = written
    model = onnx.load(exported.path)
    traced = SimpleNamespace(model_proto=model)
    monkeypatch.setattr(torch.onnx, "export", lambda *_, **__: traced)  # not traced again
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / "model.onnx"
    session = onnxruntime.InferenceSession
    run = session.run
    monkeypatch.setattr(session, "run", lambda *given: [run(*given)[0] + np.float32(2e-4)])
    with refuses(DataError, path, 0.0002, "`dpprobe predict`"):
        export_onnx(bundle, path)
    assert list(path.parent.iterdir()) == []
    monkeypatch.setattr(session, "run", lambda *given: [run(*given)[0] * np.float32(np.nan)])
    with refuses(DataError, path, "nan", "`dpprobe predict`"):
        export_onnx(bundle, path)
    assert list(path.parent.iterdir()) == []


def test_impossible_file_names_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = write_example(tmp_path / "pixels")
    # the model card mentions the export only for backbones with weights
    assert read_json(bundle / "bundle.json")["backbone"]["weights_sha256"] is None
    with refuses(ConfigError, "backbone pixels"):
        export_onnx(bundle, tmp_path / "model.onnx")
    (tmp_path / "folder.onnx").mkdir()
    for name in ("model.pb", "folder.onnx"):
        with refuses(ConfigError, tmp_path / name, ".onnx"):
            export_onnx(bundle, tmp_path / name)
    monkeypatch.setattr(export, "LARGEST_FILE", 1000)
    with refuses(ConfigError, "backbone mine", "GiB"):
        export_onnx(write_release(tmp_path / "large", VIT), tmp_path / "model.onnx")
    monkeypatch.undo()
    for text, said in (("no\n  such", "(no such)"), ("", "(ValueError)")):
        monkeypatch.setattr(torch.onnx, "export", Mock(side_effect=ValueError(text)))
        with refuses(ConfigError, "backbone mine", said):
            export_onnx(tmp_path / "large", tmp_path / "model.ONNX")
    assert [
        one for one in tmp_path.iterdir() if one.suffix.lower() == ".onnx" and one.is_file()
    ] == []


def test_real_weights_in_another_runtime(tmp_path: Path, test_data: Path) -> None:
    checkpoint = test_data / "weights" / "mobilenetv2_100_imagenet.safetensors"
    mobilenet = MOBILENET | {"checkpoint": str(checkpoint)}
    bundle = write_release(tmp_path / "bundle", mobilenet, dtype="float16", scale=5.0)
    path = tmp_path / "model.onnx"
    export_onnx(bundle, path, checkpoint=checkpoint)
    predictor = Predictor.load_bundle(bundle, checkpoint=checkpoint, device="cpu")
    images = pictures(20)
    wanted = predictor.predict_images(images)
    given = run(path, transformed(predictor, images))
    np.testing.assert_allclose(given, wanted, atol=1e-4)
    assert len(set(wanted.argmax(axis=1))) > 1
