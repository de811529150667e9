"""Finds, before a run, the features of a study that take long to extract on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from dpprobe.backbones.backbone import Runtime
from dpprobe.backbones.hub_files import HubFile, is_cached
from dpprobe.data.dataset_sizes import count_used_rows
from dpprobe.features.extraction_time import describe_time, time_network
from dpprobe.study.reserved_names import locate_features
from dpprobe.study.study import Study

FEWEST_IMAGES = 200  # fewer images never take hours, with any network


def describe_times(
    study: Study, hub_files: Mapping[str, Sequence[HubFile]] = MappingProxyType({})
) -> Iterator[str]:
    """Yields one line per dataset and network whose features are missing and take long.

    Times the networks whose weights are on this machine. Ignores networks that cannot be loaded,
    because extraction reports them.

    Args:
      hub_files: files that loading fetches from the Hub if they are not cached, by backbone.
    """
    splits = ("train", "test")
    for name, options in study.backbones.items():
        rows = {}
        for dataset, source in study.all_datasets().items():
            counts = count_used_rows(source)
            paths = (locate_features(study.results_dir, dataset, name, each) for each in splits)
            if counts is not None and not all(Path(path).exists() for path in paths):
                rows[dataset] = counts[0] * (1 + options.stored_crops) + counts[1]
        cached = all(is_cached(one.repository, one.names) for one in hub_files.get(name, ()))
        if not (options.network and cached) or max(rows.values(), default=0) < FEWEST_IMAGES:
            continue
        runtime = Runtime(device=study.device, precision=study.features.precision)
        rates = time_network(options, runtime)
        for dataset, count in rows.items():
            if line := describe_time(count, rates):
                yield f"backbones.{name}: {dataset}: {line}"
