"""Exports a release as one ONNX file: backbone and head, from an image's bytes to probabilities.

Source file names that PyTorch adds to a graph are removed, because paths identify a machine.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import torch

from dpprobe.backbones.feature_digest import probe_image
from dpprobe.errors import ConfigError, DataError
from dpprobe.files.atomic_writes import atomic_path
from dpprobe.files.output_paths import check_output_path
from dpprobe.heads.scoring import Link, apply_link, compute_scores
from dpprobe.heads.transform import Transform
from dpprobe.release.bundle import check_outside
from dpprobe.release.predict import Predictor

SUFFIX = ".onnx"
# Largest accepted difference from `Predictor`, divided by the largest score above 1: rounding a
# feature to another float16 changes scores in proportion to the feature's length.
TOLERANCE = 1e-4
LARGEST_FILE = 2**31 - 1  # bytes, Protobuf's limit
RANDOM_IMAGES = 7
INPUT, VECTORS, OUTPUT, SCORES = "images", "vectors", "probabilities", "scores"


@dataclass(frozen=True, kw_only=True)
class Exported:
    """An ONNX file whose output agrees with the release.

    `largest_difference` is the difference from `Predictor` in float32 on test images, and
    `precision_difference` the difference from `Predictor` in the release's precision.
    """

    path: Path
    largest_difference: float
    precision_difference: float
    opset: int
    input: str


def export_onnx(bundle: Path, output: Path, **loading: Any) -> Exported:
    """Writes a release as one ONNX file, and compares it with `Predictor` on public images.

    The ONNX file accepts images as uint8 [batch, channels, height, width], resized and cropped by
    the file's metadata `preprocessing`, not normalised. The graph normalises images, computes in
    float32 on any machine, and rounds features to the release's dtype. The ONNX metadata also name
    classes, link and release. If a model outside dpprobe computed the features, the file has only
    the head, and accepts vectors of that model as float32 [batch, dimension]. `loading` has options
    of `Predictor.load_bundle`, such as `checkpoint`.

    Raises ConfigError for a backbone that is not a network, or is too large. Raises DataError, and
    writes no file, if the ONNX output differs from the release's.
    """
    if output.suffix.lower() != SUFFIX:
        raise ConfigError(f"output: {output}: use a file name that ends in {SUFFIX}")
    check_output_path(output, "output:")
    check_outside(output)
    load = partial(Predictor.load_bundle, bundle, device="cpu", **loading)
    predictor = load(precision="float32")
    model = _trace_model(_make_graph(predictor), _test_images(predictor)[:2], predictor)
    with atomic_path(output) as temporary:
        temporary.write_bytes(model.SerializeToString())
        images = _test_images(predictor)
        given = _run_onnx(temporary, images)
        difference = _largest_difference(given, predictor, images)
        if not difference <= TOLERANCE:
            raise DataError(
                f"{output}: its probabilities differ from the release's by {difference:.2g} in "
                f"ONNX Runtime, more than {TOLERANCE:g}; use `dpprobe predict`"
            )
        released = difference
        if predictor.facts.backbone.precision != "float32":
            released = _largest_difference(given, load(), images)
    return Exported(
        path=output,
        largest_difference=difference,
        precision_difference=released,
        opset=next(one.version for one in model.opset_import if not one.domain),
        input=_describe_input(predictor),
    )


def _make_graph(predictor: Predictor) -> torch.nn.Module:
    """Returns a module that maps image bytes to probabilities by operations that ONNX supports."""
    facts = predictor.facts
    network = predictor.backbone.graph
    if predictor.backbone.takes_vectors:
        network = torch.nn.Identity()
    if network is None:
        families = ", ".join(str(one.options["family"]) for one in facts.backbone.parts)
        raise ConfigError(
            f"backbone {facts.backbone.name}: {families} is not a "
            "network, but ONNX files contain networks; use `dpprobe predict`"
        )
    return _Graph(
        network,
        _calibrated_weights(predictor),
        transform=predictor.heads.transforms[0],
        dtype=getattr(torch, facts.backbone.dtype),
        link=predictor.bundle.link,
    ).eval()


def _calibrated_weights(predictor: Predictor) -> torch.Tensor:
    """Returns weights [1, classes, d + 1] with the calibration's scale and offset applied."""
    weights = torch.from_numpy(predictor.heads.weights)
    if (calibration := predictor.bundle.calibration) is not None:
        weights = weights * calibration.scale
        weights[:, 1, -1] += calibration.offset
    return weights


class _Graph(torch.nn.Module):
    weights: torch.Tensor

    def __init__(
        self,
        network: torch.nn.Module,
        weights: torch.Tensor,
        *,
        transform: Transform,
        dtype: torch.dtype,
        link: Link,
    ) -> None:
        super().__init__()
        self.network, self.transform, self.dtype, self.link = network, transform, dtype, link
        self.register_buffer("weights", weights)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        rows = self.transform(self.network(images).to(self.dtype).to(torch.float32))
        return apply_link(compute_scores(self.weights, rows)[0], self.link)


def _trace_model(
    graph: torch.nn.Module, example: npt.NDArray[Any], predictor: Predictor
) -> onnx.ModelProto:
    size = sum(one.nbytes for one in (*graph.parameters(), *graph.buffers()))
    name = predictor.facts.backbone.name
    if size > LARGEST_FILE:
        raise ConfigError(
            f"backbone {name}: {size / 2**30:.1f} GiB of weights, but an ONNX file holds at most "
            "2 GiB; use `dpprobe predict`"
        )
    output = SCORES if predictor.bundle.link == "none" else OUTPUT
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # the exporter warns about its own internals
            program = torch.onnx.export(
                graph,
                (torch.from_numpy(example),),
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                input_names=[VECTORS if predictor.backbone.takes_vectors else INPUT],
                output_names=[output],
                verbose=False,
            )
    except Exception as error:  # the exporter raises errors of any kind
        line = " ".join(str(error).split())[:200] or type(error).__name__
        raise ConfigError(
            f"backbone {name}: PyTorch cannot write it as ONNX ({line}); use `dpprobe predict`"
        ) from error
    assert program is not None
    model = program.model_proto
    _forget_sources(model)
    _describe_model(model, predictor)
    return model


def _forget_sources(part: Any) -> None:
    """Removes the names of source files, which contain paths of this machine, also in subgraphs."""
    for field, value in part.ListFields():
        if field.name in ("doc_string", "metadata_props"):
            part.ClearField(field.name)
        elif field.message_type is not None:
            for inner in value if isinstance(value, Sequence) else [value]:
                _forget_sources(inner)


def _describe_model(model: onnx.ModelProto, predictor: Predictor) -> None:
    facts = predictor.facts
    values: dict[str, Any] = {
        "release": facts.name,
        "dpprobe": facts.dpprobe,
        "input": _describe_input(predictor),
        "preprocessing": json.dumps(_list_preprocessing(predictor), ensure_ascii=False),
        "classes": json.dumps(facts.class_names, ensure_ascii=False),
        "multi_label": json.dumps(facts.multi_label),
        "link": predictor.bundle.link,
        "dtype": facts.backbone.dtype,
    }
    if (calibration := predictor.bundle.calibration) is not None:
        # maps each coverage to the lowest probability of a class in a prediction set
        values["sets"] = json.dumps(dict(calibration.thresholds))
        if calibration.operating_point is not None:
            values["operating_point"] = json.dumps(dict([calibration.operating_point]))
    model.producer_name, model.producer_version = "dpprobe", facts.dpprobe
    model.doc_string = f"Release {facts.name} of dpprobe. It takes {values['input']}."
    del model.metadata_props[:]
    for key, value in values.items():
        model.metadata_props.add(key=key, value=value)


def _list_preprocessing(predictor: Predictor) -> Any:
    """Returns the preprocessing, or for a joined backbone the preprocessing of each member."""
    backbone = predictor.facts.backbone
    if backbone.members:
        return {one.name: one.preprocessing for one in backbone.members}
    return backbone.preprocessing


def _describe_input(predictor: Predictor) -> str:
    if predictor.backbone.takes_vectors:
        facts = predictor.facts
        model = facts.backbone.architecture
        return f"float32 [batch, {facts.dimension}]: vectors of {model}, as `dpprobe predict` takes"
    if predictor.facts.backbone.members:
        names = ", ".join(one.name for one in predictor.facts.backbone.members)
        return (
            f"uint8 [batch, {_test_images(predictor).shape[1]}]: the image as each of {names} "
            "takes it, resized and cropped as `preprocessing` says, not normalised, flattened from "
            "[channels, height, width] and put side by side"
        )
    channels, height, width = _test_images(predictor).shape[1:]
    return (
        f"uint8 [batch, {channels}, {height}, {width}]: images in colour mode "
        f"{'L' if channels == 1 else 'RGB'}, resized and cropped as `preprocessing` says, not "
        "normalised"
    )


def _test_images(predictor: Predictor) -> npt.NDArray[Any]:
    """Returns the public probe image and random images; only random vectors for vector heads."""
    if predictor.backbone.takes_vectors:
        shape = (RANDOM_IMAGES + 1, predictor.facts.dimension)
        return np.random.default_rng(0).standard_normal(shape, np.float32)
    first = predictor.backbone.transform(probe_image()).numpy()
    generator = np.random.default_rng(0)
    others = generator.integers(0, 256, (RANDOM_IMAGES, *first.shape), dtype=np.uint8)
    return np.concatenate([first[None], others])


def _run_onnx(path: Path, images: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Runs an ONNX file in ONNX Runtime, on all images together and on a single image."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        str(path), sess_options=options, providers=["CPUExecutionProvider"]
    )
    name = session.get_inputs()[0].name
    together, alone = (session.run(None, {name: part})[0] for part in (images[1:], images[:1]))
    return np.concatenate([alone, together])


def _largest_difference(
    given: npt.NDArray[np.float32], predictor: Predictor, images: npt.NDArray[Any]
) -> float:
    wanted = predictor.score_features(predictor.backbone.forward(torch.from_numpy(images)).numpy())
    return float(np.abs(given - wanted).max() / max(1.0, np.abs(wanted).max()))
