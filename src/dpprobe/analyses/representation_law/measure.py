"""The job of representation laws of one (dataset, backbone); its results are not private.

Measures all blocks of the frozen and the fine-tuned networks, on training and on test examples,
with the true labels and with shuffled labels.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from dpprobe.analyses.representation_law import Tuning
from dpprobe.analyses.representation_law.law_measures import (
    RCOND,
    ROUNDING,
    fit_law,
    measure_residuals,
    measure_scatter,
)
from dpprobe.analyses.representation_law.law_record import (
    MEASURES,
    LawRecord,
    LeftOut,
    Measure,
    NetworkLaws,
    Series,
    Split,
)
from dpprobe.backbones.network_forward import Tapped, Token, find_blocks
from dpprobe.devices import is_gpu
from dpprobe.finetune.blocks import blocks_of
from dpprobe.privacy.randomness import cell_seed, open_stream
from dpprobe.progress import Progress

Features = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Values = dict[tuple[Split, Measure], float | None]
SPLITS: tuple[Split, Split] = ("train", "test")
_SCATTERS: tuple[Measure, Measure] = ("separability", "fuzziness")
_RESIDUALS: tuple[Measure, Measure] = ("residual", "residual_one_hot")
_CPU_ROWS, _GPU_ROWS = 16, 128  # number of images per forward pass
_FAULT = "representation_law: block {} of {} {}, so it has no laws; remove the backbone"


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A network to measure: a cell's network, or the frozen network if `tuning` is None.

    Attributes:
      make: loads the network on the job's device; called before measuring.
    """

    make: Callable[[], Tapped]
    method: str | None = None
    epsilon: str | None = None
    tuning: Tuning | None = None


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Images of one split, [n, channels, height, width], and their class numbers."""

    images: torch.Tensor
    labels: Labels


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer's measures, mean measures with shuffled labels, and reasons for missing values."""

    width: int
    noise: float
    values: Values
    shuffled: Values
    left_out: tuple[tuple[Split, tuple[Measure, ...], str], ...]


def tap_blocks(
    network: torch.nn.Module, body: torch.nn.Module, name: str, *, token: Token
) -> Tapped:
    """Makes a network return the features of all its blocks, one vector per block and image.

    Args:
      body: the part of the network with the blocks, which fine-tuning may have wrapped.

    Raises:
      ConfigError: if the network gives no access to its blocks.
    """
    blocks = blocks_of(body, name)
    for attribute in ("body", "tower"):  # removes fine-tuning's wrappers of a network
        body = getattr(body, attribute, body)
    shown = find_blocks(body)
    assert shown is not None, "blocks_of raises"
    shown = replace(shown, modules=blocks)
    return Tapped(network, name, shown, range(len(blocks) + 1), token=token, fault=_FAULT)


@torch.inference_mode()
def block_features(network: Tapped, images: torch.Tensor, *, device: str) -> list[Features]:
    """Runs a network on images; returns the features [n, width] of each layer, in order.

    Args:
      network: a network whose input has the form of `Rows.images`.

    Raises:
      ConfigError: if a block is not called, or its output is neither tokens nor maps.
    """
    rows = _GPU_ROWS if is_gpu(device) else _CPU_ROWS
    parts: list[list[Features]] = []
    for batch in images.split(rows):
        _, layers = network(batch.to(device))
        parts.append([layers[str(layer)].cpu().numpy() for layer in range(len(layers))])
    return [np.concatenate(layer) for layer in zip(*parts, strict=True)]


def law_job(
    subjects: Sequence[Subject],
    rows: Mapping[Split, Rows],
    path: Path,
    *,
    dataset: str,
    backbone: str,
    shuffles: int,
    seed: int,
    device: str,
    fingerprint: str,
) -> LawRecord:
    """Measures the laws of all networks of one (dataset, backbone), and writes them to `path`.

    The frozen network is the first.
    """
    started = time.monotonic()
    labels = {split: rows[split].labels for split in SPLITS}
    identity = {"use": "representation law", "dataset": dataset, "study_seed": seed}
    shuffled = [_shuffle_labels(labels, cell_seed(identity, index)) for index in range(shuffles)]
    # Layers before the first tuned block have the frozen network's features, measured only once.
    known: dict[bytes, Layer] = {}
    networks, frozen = [], list[Layer]()
    with Progress(len(subjects), label=f"laws of {backbone}", unit="networks") as progress:
        for subject in subjects:
            if subject.tuning is None or subject.tuning.blocks != 0:
                token, train, test = _read_features(subject, rows, device)
                with threadpool_limits(1):  # the number of threads may change the last bits
                    layers = [
                        _measure_layer(known, pair, labels, shuffled)
                        for pair in zip(train, test, strict=True)
                    ]
                frozen = layers if subject.tuning is None else frozen
            else:  # only the head was tuned, so blocks equal the frozen network's blocks
                layers = frozen
            networks.append(_network_laws(subject, layers))
            progress.advance_by(1)
    record = LawRecord.model_validate(
        {
            "dataset": dataset,
            "backbone": backbone,
            "layers": len(networks[0].widths) - 1,
            "token": token,
            "train_rows": len(labels["train"]),
            "test_rows": len(labels["test"]),
            "classes": len(np.unique(labels["train"])),
            "rcond": RCOND,
            "shuffles": shuffles,
            "seed": seed,
            "networks": networks,
            "fingerprint": fingerprint,
            "seconds": round(time.monotonic() - started, 3),
        }
    )
    record.write(path)
    return record


def _shuffle_labels(labels: Mapping[Split, Labels], seed: int) -> dict[Split, Labels]:
    return {
        split: open_stream(seed, f"{split} labels").permutation(labels[split]) for split in SPLITS
    }


def _read_features(
    subject: Subject, rows: Mapping[Split, Rows], device: str
) -> tuple[Token, list[Features], list[Features]]:
    """Loads a network; returns the kind of its features, and the features by split and layer.

    The network's memory is freed when the function returns, before the next network is loaded.
    """
    network = subject.make()
    train, test = (block_features(network, rows[split].images, device=device) for split in SPLITS)
    return network.token, train, test


def _measure_layer(
    known: dict[bytes, Layer],
    features: tuple[Features, Features],
    labels: Mapping[Split, Labels],
    shuffled: Sequence[Mapping[Split, Labels]],
) -> Layer:
    """Measures a layer, or reuses the measures of a layer with bitwise equal features."""
    digest = hashlib.sha256()
    for part in features:
        digest.update(str(part.shape).encode() + np.ascontiguousarray(part).tobytes())
    key = digest.digest()
    if key not in known:
        known[key] = measure_layer(*features, labels, shuffled)
    return known[key]


def measure_layer(
    train: Features,
    test: Features,
    labels: Mapping[Split, Labels],
    shuffled: Sequence[Mapping[Split, Labels]],
) -> Layer:
    """Measures one layer's features with the true labels and with each shuffle of the labels."""
    values, noise, left_out = _measure_values(train, test, labels)
    others = [_measure_values(train, test, each)[0] for each in shuffled]
    return Layer(
        width=train.shape[1],
        noise=noise,
        values=values,
        shuffled={name: _average_known([other[name] for other in others]) for name in values},
        left_out=tuple(left_out),
    )


def _measure_values(
    train: Features, test: Features, labels: Mapping[Split, Labels]
) -> tuple[Values, float, list[tuple[Split, tuple[Measure, ...], str]]]:
    """Returns measures, the residual of pure noise, and reasons for missing values."""
    left = measure_residuals(train, labels["train"], held_out=test, held_out_labels=labels["test"])
    rows = {"train": train, "test": test}
    spread = {split: measure_scatter(rows[split], labels[split]) for split in SPLITS}
    values: Values = {}
    left_out = []
    for split in SPLITS:
        kind = "" if split == "train" else "_held_out"
        here: Values = {(split, name): getattr(spread[split], name) for name in _SCATTERS}
        here[split, "residual"] = getattr(left, f"integer{kind}")
        here[split, "residual_one_hot"] = getattr(left, f"one_hot{kind}")
        for measures, fault in ((_SCATTERS, spread[split].fault), (_RESIDUALS, left.fault)):
            without = tuple(name for name in measures if here[split, name] is None)
            if without:
                left_out.append((split, without, fault or "not defined"))
            for name in measures:
                value = here[split, name]
                if value is not None and value <= ROUNDING:
                    here[split, name] = None
                    left_out.append((split, (name,), f"{value:.1e} is rounding"))
        values |= here
    return values, left.null, left_out


def _average_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _network_laws(subject: Subject, layers: Sequence[Layer]) -> NetworkLaws:
    """Fits the laws of one network's layers 1 to L."""
    tuning = subject.tuning
    return NetworkLaws(
        method=subject.method,
        epsilon=subject.epsilon,
        setting=tuning.setting if tuning else "frozen",
        tuned=tuning.tuned if tuning else None,
        blocks=tuning.blocks if tuning else None,
        widths=tuple(layer.width for layer in layers),
        series=tuple(_make_series(split, name, layers) for name in MEASURES for split in SPLITS),
        left_out=tuple(
            LeftOut(layer=place, split=split, measures=measures, reason=reason)
            for place, layer in enumerate(layers)
            for split, measures, reason in layer.left_out
        ),
    )


def _make_series(split: Split, measure: Measure, layers: Sequence[Layer]) -> Series:
    values = tuple(layer.values[split, measure] for layer in layers)
    shuffled = tuple(layer.shuffled[split, measure] for layer in layers)
    # The law leaves out layer 0, the input of the first block, where a class token is constant.
    places = range(1, len(layers))
    law, fault = fit_law(places, values[1:])
    null, _ = fit_law(places, shuffled[1:])
    expected = split == "train" and measure in _RESIDUALS
    return Series(
        split=split,
        measure=measure,
        values=values,
        shuffled=shuffled,
        noise=tuple(layer.noise for layer in layers) if expected else None,
        law=law,
        fault=fault,
        null=null,
    )
