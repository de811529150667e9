"""Checks two heads to be compared, opens their features, and counts correct predictions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpprobe.backbones.feature_digest import probes_agree
from dpprobe.errors import ConfigError, DataError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads.balance_options import BalanceOptions
from dpprobe.heads.scoring import one_head, score_rows
from dpprobe.release.bundle import Bundle, bundle_digest
from dpprobe.release.counted_units import find_usable
from dpprobe.results.metrics import right_predictions
from dpprobe.results.study_files import StudyFiles
from dpprobe.study.run_command import run_command
from dpprobe.study.study import Study
from dpprobe.training.fit_inputs import read_labels
from dpprobe.training.job_features import STREAMED_ROWS

Stores = tuple[FeatureStore, FeatureStore]
Bundles = tuple[Bundle, Bundle]


def check_pair(first: Bundle, second: Bundle) -> None:
    """Raises ConfigError if the classes differ, or if both bundles are the same head."""
    ours, theirs = first.facts, second.facts
    if (ours.class_names, ours.multi_label) != (theirs.class_names, theirs.multi_label):
        raise ConfigError(
            f"{first.folder} has classes {_name_classes(first)}, {second.folder} has "
            f"{_name_classes(second)}; compare heads of the same classes in the same order"
        )
    if bundle_digest(first.folder) == bundle_digest(second.folder):
        raise ConfigError(f"{second.folder}: the same head as {first.folder}; name another bundle")


def _name_classes(bundle: Bundle) -> str:
    names = bundle.facts.class_names
    more = "" if len(names) <= 5 else f" and {len(names) - 5} more"
    return f"{', '.join(names[:5])}{more}"


def stated_frequencies(bundles: Sequence[Bundle], dataset: str) -> list[tuple[float, ...]]:
    """Lists the class frequencies, public or released, that the heads of a dataset state."""
    stated = [_stated(bundle) for bundle in bundles if bundle.facts.dataset == dataset]
    return [each for each in stated if each]


def _stated(bundle: Bundle) -> tuple[float, ...]:
    head = bundle.facts.head.read_options().trained_head
    public = head.public_priors if isinstance(head, BalanceOptions) else ()
    return bundle.facts.head.class_priors or tuple(each / sum(public) for each in public)


def open_stores(
    study: Study, dataset: str, bundles: Bundles, *, call: Sequence[str] = ()
) -> tuple[Stores, Stores]:
    """Opens the stored features of both splits of a dataset, for each bundle's backbone.

    `call` are the options of `dpprobe run` that name the study's files, for messages. Raises
    ConfigError for a backbone that is not in the study, DataError for missing or wrong features.
    """
    command = run_command(*call, targets=["features"])
    first, second = (_open_pair(study, dataset, bundle, command) for bundle in bundles)
    for one, other in zip(first, second, strict=True):
        same = one.ids == other.ids and one.dataset_fingerprint == other.dataset_fingerprint
        if not same or not np.array_equal(one.labels, other.labels):
            raise DataError(
                f"{other.path}: its {one.split} rows differ from the rows of {one.path}; run "
                f"`{command}`, which extracts the features of one dataset again"
            )
    return first, second


def _open_pair(study: Study, dataset: str, bundle: Bundle, command: str) -> Stores:
    backbone = bundle.facts.backbone.name
    if backbone not in study.backbones:
        raise ConfigError(
            f"{bundle.folder}: its backbone {backbone} is not in the study, which has "
            f"{', '.join(study.backbones)}; add it under `backbones`"
        )
    files = StudyFiles(study, results=study.results_dir)
    paths = [Path(files.locate_manifest(dataset, backbone, s)) for s in ("train", "test")]
    for path in paths:
        if not path.is_file():
            raise DataError(f"{path}: no stored features of backbone {backbone}; run `{command}`")
    train, test = (FeatureStore(path) for path in paths)
    _check_store(bundle, test)
    return train, test


def _check_store(bundle: Bundle, store: FeatureStore) -> None:
    """Raises DataError unless a store has the features that a bundle's head was trained on."""
    facts, first = bundle.facts, store.shards[0]
    backbone = facts.backbone
    fault = None
    if store.weights_sha256 != backbone.weights_sha256:
        fault = f"weights have SHA-256 {store.weights_sha256}, not {backbone.weights_sha256}"
    elif store.dimension != facts.dimension:
        fault = f"dimension is {store.dimension}, not {facts.dimension}"
    elif store.preprocessing != backbone.loaded_preprocessing:
        fault = "preprocessing differs"
    elif store.read_header(first).dtype != backbone.dtype:
        fault = f"features are stored as {store.read_header(first).dtype}, not {backbone.dtype}"
    elif first.probe is None or not probes_agree(first.probe, backbone.probe):
        fault = "features of the test image differ"
    elif (tuple(store.class_names), store.multi_label) != (facts.class_names, facts.multi_label):
        fault = "classes differ"
    if fault:
        raise DataError(
            f"{store.path}: not features for {bundle.folder}: {fault}; extract features with the "
            "backbone of the bundle"
        )


def share_right(bundle: Bundle, store: FeatureStore) -> npt.NDArray[np.float64]:
    """Returns each row's share of correctly predicted labels, [rows]; NaN for null rows."""
    heads = one_head(bundle.weights, bundle.arrays, bundle.facts.head.read_options().normalize)
    labels, shares = read_labels(store), np.full(store.rows, np.nan)
    for start, block in store.read_blocks(STREAMED_ROWS):
        scores = score_rows(heads, block)[0]
        if bundle.calibration is not None:
            scores = bundle.calibration.rescale(scores)
        stop = start + len(block)
        right = right_predictions(scores, labels[start:stop], link=bundle.link)
        each = right.reshape(len(right), -1).mean(axis=1)
        shares[start:stop] = np.where(find_usable(scores), each, np.nan)
    return shares
