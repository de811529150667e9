"""Describes the backbone of a release for its bundle, and identifies it."""

from __future__ import annotations

from pathlib import Path

from dpprobe.backbones import external, joined, local_folders
from dpprobe.backbones.feature_digest import NO_PROBE
from dpprobe.data.sources import embeddings
from dpprobe.errors import DataError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.json_values import hash_value
from dpprobe.release.asked_release import AskedRelease
from dpprobe.release.bundle import ARRAY, POOL, BackboneFacts


def describe_backbone(asked: AskedRelease) -> BackboneFacts:
    """Describes the backbone that computed the features; raises DataError for old features."""
    store, name = asked.stores[0], asked.options.backbone
    if not store.members:
        return _describe_one(asked, store, name)
    members = tuple(_describe_one(asked, each, each.backbone) for each in store.members)
    return BackboneFacts(
        name=name,
        options=dict(store.backbone_options),
        checkpoint=None,
        weights_sha256=None,
        architecture=None,
        pretrained_tag=None,
        trained=store.trained,
        preprocessing={},
        precision=members[0].precision,
        dtype=joined.DTYPE,
        probe=dict(NO_PROBE),
        versions={key: value for one in members for key, value in one.versions.items()},
        members=members,
    )


def _describe_one(asked: AskedRelease, store: FeatureStore, name: str) -> BackboneFacts:
    first = store.shards[0]
    header = store.read_header(first)
    if header.precision is None or first.probe is None:
        raise DataError(
            f"{store.path.with_name(first.file)}: an earlier dpprobe wrote this file without "
            "recording the precision of the forward pass; delete the file and run again"
        )
    options = asked.study.backbones[name]
    checkpoint = getattr(options, "checkpoint", None)
    folder = local_folders.folder_name(getattr(options, "model", "")) if store.trained else None
    return BackboneFacts(
        name=name,
        options=dict(store.backbone_options),
        checkpoint=Path(checkpoint).name if checkpoint else folder,
        weights_sha256=store.weights_sha256,
        architecture=store.architecture,
        pretrained_tag=store.pretrained_tag,
        trained=store.trained,
        preprocessing={**store.preprocessing, **describe_vectors(asked, name)},
        precision=header.precision,
        dtype=header.dtype,
        probe=dict(first.probe),
        versions=dict(header.versions),
    )


def describe_vectors(asked: AskedRelease, name: str) -> dict[str, str]:
    """Describes how vectors were read from files, so that new files are read in the same way."""
    source, options = asked.dataset, asked.study.backbones[name]
    if not isinstance(source, embeddings.Options) or not isinstance(options, external.Options):
        return {}
    array = source.vectors.get(options.choose_vectors(name, source.vector_names()))
    told = {POOL: source.pool, ARRAY: array}
    return {key: value for key, value in told.items() if value is not None}


def hash_backbone(store: FeatureStore) -> str:
    facts = [store.weights_sha256, dict(store.backbone_options), dict(store.preprocessing)]
    return hash_value([*facts, *(dict(member.preprocessing) for member in store.members)])
