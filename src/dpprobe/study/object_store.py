"""A study in an object store: what stays on the disk, and what cannot work.

The working directory is a cache of the store: a file has the same path below it as below the
store's prefix. Free of boto3 and Snakemake; the workflow's side is workflow/rules/object_store.smk.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from dpprobe.artifacts import atomic_path, check_not_newer, read_json
from dpprobe.data.addresses import public_addresses
from dpprobe.errors import ConfigError
from dpprobe.study.run_command import STORE_ADDRESS, store_address_fault
from dpprobe.study.study import Study
from dpprobe.study.written import (
    DOWNLOADS,
    RELEASES,
    STORE_MARK,
    STORE_MARK_FORMAT,
    STORE_MARK_FORMAT_VERSION,
    WRITTEN,
)

PROVIDER = "s3"  # the only one that was tried
PLUGIN_VERSION = "0.3.6"  # of which parts are replaced
# Of results_dir. Logs are read while a job runs; receipts of MLflow runs stand for the store on
# this disk, which SQLite locks; a release is locked, renamed and booked.
ON_DISK = frozenset({"logs", "benchmarks", "tracking", RELEASES})
# Of results_dir: what people look at is kept on the disk as well.
SHOWN = frozenset({"summary", "tables", "figures", "report.html"})
SECRETS = ("access_key", "secret_key", "token")
PROVIDER_OPTION, PREFIX_OPTION = "--default-storage-provider", "--default-storage-prefix"
_MARK = (STORE_MARK_FORMAT, STORE_MARK_FORMAT_VERSION)
_NO_PATH = re.compile(r"[#?{}<>\r\n\t]")
_REMEDY = "take it out of the study, or run without --default-storage-provider"


@dataclass(frozen=True, kw_only=True)
class Folders:
    """The two folders of a study, relative to the working directory.

    Attributes:
      named: a person's files that the study names by path, which may lie in them.
    """

    data: PurePosixPath
    results: PurePosixPath
    named: frozenset[PurePosixPath] = frozenset()

    @classmethod
    def of(cls, study: Study) -> Folders:
        """Takes the folders of a study, and the files that it names."""
        tables = (each.input_files() for each in study.all_datasets().values())
        weights = (each.input_files() for each in study.backbones.values())
        return cls(
            data=PurePosixPath(study.data_dir),
            results=PurePosixPath(study.results_dir),
            named=frozenset(
                PurePosixPath(os.path.normpath(file)) for file in chain(*tables, *weights)
            ),
        )

    def stays(self, path: str) -> bool:
        """Returns True for a file that is read and written on the disk alone.

        Such are a person's files, downloads, whose receipt stands for files that no rule names,
        and `ON_DISK`.
        """
        inner = self._inner(path)
        if inner is None or PurePosixPath(path) in self.named:
            return True
        folder, first = inner
        return first == DOWNLOADS if folder == self.data else first in ON_DISK

    def shown(self, path: str) -> bool:
        """Returns True for a file that people look at, which is kept on the disk as well."""
        inner = self._inner(path)
        return inner is not None and inner[0] == self.results and inner[1] in SHOWN

    def _inner(self, path: str) -> tuple[PurePosixPath, str] | None:
        """Returns the study's folder that a path is in, and the next part of its name."""
        place = PurePosixPath(path)
        # one may be in the other, such as data_dir: results/data
        for folder in sorted((self.data, self.results), key=lambda each: -len(each.parts)):
            if place.is_relative_to(folder) and place != folder:
                return folder, place.relative_to(folder).parts[0]
        return None


def store_words(provider: str, prefix: str, settings: Any) -> list[str]:
    """Returns the options of Snakemake that select a store, for a person to copy.

    Args:
      provider, prefix: of Snakemake's `--default-storage-provider` and `-prefix`.
      settings: the provider's, a dataclass; those that have their default are left out, and
        `SECRETS`, which are known of one provider.
    """
    words = [PROVIDER_OPTION, provider, *([PREFIX_OPTION, prefix] if prefix else [])]
    for field in fields(settings) if provider == PROVIDER else ():
        value = getattr(settings, field.name)
        if field.name not in SECRETS and value not in (None, field.default):
            option = f"--storage-{provider}-{field.name.replace('_', '-')}"
            words += [option, str(public_addresses(value))]
    return words


def store_faults(
    study: Study,
    *,
    provider: str,
    version: str,
    prefix: str,
    given: Iterable[str],
    address: str | None,
) -> list[str]:
    """Lists what of a study cannot work with an object store, a line each.

    Args:
      provider, prefix: of Snakemake's `--default-storage-provider` and `-prefix`.
      version: of the provider's plugin.
      given: the names of the secret settings that the provider was given.
      address: of the service; None for AWS.
    """
    return [
        *_call_faults(provider, version, prefix, given),
        *filter(None, [store_address_fault(address) if address else None]),
        *_folder_faults(study),
        *_release_faults(study),
        *_public_faults(study),
    ]


def prefix_alone(prefix: str) -> str | None:
    """Returns what is wrong with a prefix that no provider goes with: it would have no effect."""
    if not prefix:
        return None
    return (
        f"{PREFIX_OPTION} {prefix}: without {PROVIDER_OPTION} {PROVIDER} the run would be on this "
        "disk alone; give both, or neither"
    )


def _call_faults(provider: str, version: str, prefix: str, given: Iterable[str]) -> Iterator[str]:
    if provider != PROVIDER:
        yield f"{PROVIDER_OPTION} {provider}: only {PROVIDER} works; see docs/storage.md"
        return
    if version != PLUGIN_VERSION:
        yield (
            f"snakemake-storage-plugin-{PROVIDER} {version}: dpprobe replaces parts of "
            f"{PLUGIN_VERSION}, and tried no other; run make s3"
        )
    bucket, _, folder = prefix.removeprefix("s3://").partition("/")
    if not (prefix.startswith("s3://") and bucket and folder):
        yield (
            f"{PREFIX_OPTION} {prefix or '(none)'}: not a folder in a bucket; write "
            "one, such as s3://BUCKET/FOLDER"
        )
    elif set(folder.split("/")) & {"", ".", ".."} or _NO_PATH.search(folder):
        # the plugin and Snakemake would read it as another folder, or as none
        yield (
            f"{PREFIX_OPTION} {prefix}: a folder without doubled slashes, . and .. between them, "
            "and the signs # ? { } < > and line ends; write another"
        )
    for name in sorted(set(given) & set(SECRETS)):
        # Snakemake would write it into the command of each job
        yield (
            f"--storage-s3-{name.replace('_', '-')}: credentials come from AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY or from ~/.aws alone; unset the option and SNAKEMAKE_STORAGE_S3_"
            f"{name.upper()}"
        )


def _folder_faults(study: Study) -> Iterator[str]:
    for key, folder in (("data_dir", study.data_dir), ("results_dir", study.results_dir)):
        if Path(folder).is_absolute() or ".." in Path(folder).parts:
            yield (
                f"{key}: {folder}: with an object store it is named below its prefix; write a "
                f"folder in the working directory, such as {key.removesuffix('_dir')}"
            )


def _release_faults(study: Study) -> Iterator[str]:
    if study.releases:
        names = ", ".join(study.releases)
        yield (
            f"releases: {names}: a release is booked in a ledger on this disk, which another "
            f"machine with the same bucket would not see; {_REMEDY}"
        )


def _public_faults(study: Study) -> Iterator[str]:
    for name, method in study.methods.items():
        for option in method.public_files():
            yield (
                f"methods.{name}: {option}: is held against all private features and heads on "
                f"the disk, where an object store has few of them; {_REMEDY}"
            )


def plain_address(address: str | None) -> str | None:
    """Returns a warning for a store's address that files would travel to in the clear."""
    parts = urlsplit(address or "")
    if parts.scheme != "http" or parts.hostname in ("localhost", "127.0.0.1", "::1"):
        return None
    return (
        f"{STORE_ADDRESS} http://{parts.hostname}: images, features and predictions "
        "travel there in the clear; use https://"
    )


def check_marks(study: Study, prefix: str | None) -> None:
    """Checks that the files in a study's folders are copies from this store, or no copies.

    Args:
      prefix: of the store; None for a run on disk.

    Raises:
      ConfigError: for files of a run on disk, which Snakemake would delete as copies that are not
        needed any more, and for copies, which a run on disk would take for the whole.
    """
    for key, folder in (("results_dir", study.results_dir), ("data_dir", study.data_dir)):
        marked = _marked(Path(folder), key)
        if marked == prefix:
            continue
        remedy = f"name another {key}"
        if marked is not None:
            words = f"{PROVIDER_OPTION} {PROVIDER} {PREFIX_OPTION} {marked}"
            remedy = f"run with {words} (and {STORE_ADDRESS}, unless it is AWS), or {remedy}"
            raise ConfigError(f"{key}: {folder}: its files are copies from {marked}; {remedy}")
        if kept := next(_made(study, key), None):
            raise ConfigError(
                f"{key}: {folder}: {kept} is of a run on disk, and is not in {prefix}; {remedy}, "
                "or copy what is there into the bucket and elsewhere on the disk"
            )


def write_marks(study: Study, prefix: str) -> None:
    """Notes in a study's folders which store their files are copies of."""
    mark = {"format": _MARK[0], "format_version": _MARK[1], "prefix": prefix}
    for folder in (study.results_dir, study.data_dir):
        path = Path(folder) / STORE_MARK
        if not path.exists():
            with atomic_path(path) as temporary:
                temporary.write_text(json.dumps(mark) + "\n")


def _marked(folder: Path, key: str) -> str | None:
    path = folder / STORE_MARK
    if not path.exists():
        return None
    try:
        record = read_json(path)
        check_not_newer(path, record, kind=STORE_MARK_FORMAT, version=STORE_MARK_FORMAT_VERSION)
        if (written := (record["format"], record["format_version"])) != _MARK:
            raise ValueError(f"{written[0]} {written[1]}, not {_MARK[0]} {_MARK[1]}")
        return str(record["prefix"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path}: cannot be read ({error}), so that nobody knows which store the files "
            f"beside it are copies of; name another {key}"
        ) from None


def _made(study: Study, key: str) -> Iterator[Path]:
    """Yields what a run on disk has left in a folder of a study, and would be taken for copies."""
    if key == "data_dir":
        places = (Path(study.data_dir, name, "dataset.json") for name in study.all_datasets())
    else:
        kept = ("backbones.json", "mlflow.", "mlartifacts")  # on the disk anyway
        names = sorted(name for name in WRITTEN - ON_DISK if not name.startswith(kept))
        places = (Path(study.results_dir, name) for name in names)
    yield from (place for place in places if place.exists())


@dataclass(frozen=True, kw_only=True)
class Copy:
    """An object, the path of its copy on the disk, and when it was stored."""

    key: str
    path: str
    time: float


def changed_objects(
    objects: Iterable[Mapping[str, Any]], *, root: str, suffix: str
) -> Iterator[Copy]:
    """Yields the objects of a listing whose copies on the disk are missing, older or cut short.

    Left out are folders, which some browsers of buckets make objects of, and keys that would lead
    out of the working directory.

    Args:
      objects: of S3's `list_objects_v2`: `Key`, `Size`, and `LastModified`, a time with its zone.
      root: that keys begin with, and paths do not.
      suffix: that keys end with.
    """
    for each in objects:
        key = str(each["Key"])
        path = key.removeprefix(f"{root}/")
        if path == key or not path.endswith(suffix):
            continue
        if not path or path.endswith("/") or path.startswith("/") or ".." in path.split("/"):
            continue
        copy = Copy(key=key, path=path, time=each["LastModified"].timestamp())
        try:
            on_disk = Path(copy.path).stat()
        except FileNotFoundError:
            yield copy
            continue
        if on_disk.st_mtime < copy.time or on_disk.st_size != each["Size"]:
            yield copy
