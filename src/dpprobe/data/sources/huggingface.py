"""Datasets on the Hugging Face Hub: parquet files of a repository at one commit.

The Hub's library lists the files and reads their checksums. `data.downloads.fetch` downloads them,
because it resumes interrupted transfers; `hf_hub_download` deletes received bytes on failure (seen
in huggingface_hub 2.4). The Hub's token (HF_TOKEN or `hf auth login`) is never written to a file.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import Field, field_validator

from dpprobe.data.downloads.addresses import Address, Sha256
from dpprobe.data.downloads.download_receipt import Fetched, check_receipt
from dpprobe.data.option_paths import Paths, list_patterns
from dpprobe.data.sources import parquet
from dpprobe.errors import ConfigError, DataError, DownloadError
from dpprobe.options import Options as Block

if TYPE_CHECKING:
    from huggingface_hub import HfApi


logger = logging.getLogger("dpprobe")

Answer = TypeVar("Answer")
# The subfolder for a dataset's files in its download folder.
_FILES = "repository"
_ACCEPTED = "accepted_labels.json"
# Seconds to wait for an answer of the Hub, and between attempts.
TIMEOUT = 10.0
WAITS = (1.0, 2.0, 4.0)
_SHOWN = 5
_COMMIT = "[0-9a-f]{40}"


class AcceptedLabels(Block):
    """The labels that count as right for each test row, from a file at a separate address."""

    url: Address = Field(
        description="Address of a JSON file in the format of ReaL's real.json; without user and "
        "password."
    )
    sha256: Sha256 = Field(description="SHA-256 of the file at `url`.")


class Options(parquet.ColumnOptions):
    """Parquet files of a dataset repository on the Hugging Face Hub, at one commit."""

    source: Literal["huggingface"] = "huggingface"
    repo: str = Field(
        pattern=r"^[A-Za-z0-9_.\-]+/[A-Za-z0-9_.\-]+$",
        description="The dataset's repository, owner/name.",
    )
    revision: str = Field(
        "",
        json_schema_extra={"pattern": f"^{_COMMIT}$"},
        description="The commit, 40 hexadecimal digits; no branch, whose files can change.",
    )
    train: Paths = Field(
        min_length=1,
        description="Training files of the repository: a file, a pattern such as "
        "data/train-*.parquet, or a list of them; * also matches /.",
    )
    test: Paths | None = Field(
        None,
        min_length=1,
        description="Test files, in the form of `train`; if absent, the training files are split.",
    )
    several_labels: bool = Field(
        False,
        description="True if each row has a list of labels; dpprobe must know this before the "
        "download.",
    )
    accepted_labels: AcceptedLabels | None = Field(
        None,
        description="Labels that count as correct in addition to `label`, for the test images "
        "(ReaL).",
    )

    @field_validator("revision")
    @classmethod
    def _check_revision(cls, value: str) -> str:
        if re.fullmatch(_COMMIT, value):
            return value
        raise ValueError(
            f"{value!r} is not a commit. A branch or a tag can move, so the next download could "
            "give different data. Write the 40 hexadecimal digits of a commit, from the History "
            "of the repository's Files page "
            "(https://huggingface.co/datasets/OWNER/NAME/commits/main)"
        )

    def check_files(self) -> None:
        parquet.check_splits(
            self.limit, test=self.test is not None, accepted=self.accepted_labels is not None
        )

    def download_params(self) -> dict[str, Any]:
        written = self.model_dump(mode="json")
        kept = ("source", "repo", "revision", "train", "test")
        return {**{name: written[name] for name in kept}, **self._accepted_params()}

    def preparation_params(self) -> dict[str, Any]:
        return {**super().preparation_params(), **self._accepted_params()}

    def _accepted_params(self) -> dict[str, Any]:
        """Returns the accepted labels' hash, not their address, which may contain a token."""
        labels = self.accepted_labels
        return {"accepted_labels": None if labels is None else {"sha256": labels.sha256}}

    def multi_label(self) -> bool:
        return self.several_labels

    def count_classes(self) -> int | None:
        return len(self.class_names) if self.class_names else self.expect.classes


def download(options: Options, directory: Path) -> list[Fetched]:
    """Downloads the files of `train` and `test`, and compares each with the Hub's checksum.

    Raises ConfigError for an unknown repository or commit, a pattern without files, a licence to be
    accepted first, an invalid token, or offline mode. Raises DownloadError if the Hub cannot be
    reached or sends a file that differs from its stated checksum.
    """
    from huggingface_hub import HfApi, get_token

    from dpprobe.data.downloads import fetch as downloads  # slow import: requests

    token = get_token()
    api = HfApi(token=token or False, library_name="dpprobe")
    info = _ask_hub(
        lambda: api.dataset_info(options.repo, revision=options.revision, timeout=TIMEOUT),
        options,
        address=api.endpoint,
        token=token,
    )
    if info.sha != options.revision:
        whole = re.fullmatch(_COMMIT, info.sha or "")
        remedy = (
            f"write {info.sha} if you mean that commit"
            if whole
            else "run again, or correct HF_ENDPOINT if it is set"
        )
        raise DownloadError(
            f"{options.repo}: {api.endpoint} answered with commit {info.sha or '(none)'}, but "
            f"{options.revision} was requested; {remedy}"
        )
    names = [file.rfilename for file in info.siblings or ()]
    wanted = [
        name
        for split in options.list_splits()
        for name in _match_files(getattr(options, split), names, options)
    ]
    fetched = [
        _fetch_checked(options, directory, name, api=api, token=token)
        for name in dict.fromkeys(wanted)
    ]
    labels = options.accepted_labels
    if labels is not None:
        checksum = downloads.Checksum("sha256", labels.sha256)
        fetched.append(downloads.fetch_file(labels.url, directory / _ACCEPTED, checksum=checksum))
    return fetched


def _match_files(patterns: Paths, names: Sequence[str], options: Options) -> list[str]:
    """Returns the files that match the patterns, ordered by pattern, then by name."""
    files: list[str] = []
    for pattern in list_patterns(patterns):
        matches = sorted(name for name in names if fnmatchcase(name, pattern))
        if not matches:
            tables = sorted(name for name in names if name.endswith(".parquet")) or sorted(names)
            more = f" and {len(tables) - _SHOWN} more" if len(tables) > _SHOWN else ""
            raise ConfigError(
                f"{options.repo} at {options.revision}: no file {pattern}; it has "
                f"{', '.join(tables[:_SHOWN]) or 'none'}{more}: correct the pattern"
            )
        files += matches
    return files


def _fetch_checked(
    options: Options, directory: Path, name: str, *, api: HfApi, token: str | None
) -> Fetched:
    """Downloads a file, asking for its checksum, which the Hub does not list for gated datasets."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    from dpprobe.data.downloads import fetch as downloads  # slow import: requests

    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise DownloadError(
            f"{options.repo}: file {name!r} lies outside the repository; report this to its owner"
        )
    url = hf_hub_url(options.repo, name, repo_type="dataset", revision=options.revision)
    stated = _ask_hub(
        lambda: get_hf_file_metadata(url, token=token or False, timeout=TIMEOUT),
        options,
        address=api.endpoint,
        token=token,
    )
    etag = stated.etag or ""
    # Files that are not in the Hub's large-file store have a git checksum.
    kind: Literal["sha256", "git"] = "sha256" if re.fullmatch("[0-9a-f]{64}", etag) else "git"
    return downloads.fetch_file(
        url,
        directory / _FILES / name,
        checksum=downloads.Checksum(kind, etag),
        headers={"Authorization": f"Bearer {token}"} if token else None,
        name=f"{_FILES}/{name}",
        revision=options.revision,
    )


def _ask_hub(
    question: Callable[[], Answer], options: Options, *, address: str, token: str | None
) -> Answer:
    """Asks the Hub, with retries; raises ConfigError or DownloadError as `download` does."""
    from huggingface_hub import errors

    for wait in (*WAITS, None):
        try:
            return question()
        except errors.OfflineModeIsEnabled as error:
            raise ConfigError(
                f"{options.repo}: HF_HUB_OFFLINE is set, so the Hub is not contacted; unset it, "
                "or name local files with `source: parquet`"
            ) from error
        except Exception as error:
            fault = _describe_fault(error)
            if not _may_pass(error):
                if isinstance(error, errors.HfHubHTTPError):
                    raise _explain_error(error, options, token=token) from None
                raise
            if wait is None:
                raise DownloadError(
                    f"{options.repo}: {address} does not answer ({fault}) after "
                    f"{len(WAITS) + 1} attempts; check the network and run again; complete files "
                    "are reused"
                ) from None
            logger.warning("%s: %s; retrying in %g s", address, fault, wait)
            time.sleep(wait)
    raise AssertionError("the last attempt returns or raises")


def _may_pass(error: Exception) -> bool:
    import httpx2
    from huggingface_hub import errors

    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code
        return status in (408, 429) or status >= 500
    return isinstance(error, httpx2.TransportError | errors.FileMetadataError)


def _describe_fault(error: Exception) -> str:
    """Describes an error in a few words, without the request's address."""
    from huggingface_hub import errors

    if isinstance(error, errors.HfHubHTTPError):
        return f"status {error.response.status_code}"
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _explain_error(error: Any, options: Options, *, token: str | None) -> ConfigError:
    """Returns an error with the remedy, without quoting the request."""
    from huggingface_hub import errors

    page = f"https://huggingface.co/datasets/{options.repo}"
    if isinstance(error, errors.GatedRepoError):
        account = "the token's account has not accepted it" if token else "no token is set"
        return ConfigError(
            f"{options.repo}: gated, and {account}; log in, accept the licence at {page}, set "
            "HF_TOKEN to a token of that account (https://huggingface.co/settings/tokens) or run "
            "`hf auth login`, then run again"
        )
    login = "correct the token in HF_TOKEN" if token else "set HF_TOKEN for a private dataset"
    return ConfigError(
        f"{options.repo} at {options.revision}: the Hub refuses access (status "
        f"{error.response.status_code}); write a commit of {page}/commits/main, correct the name, "
        f"or {login}"
    )


def prepare(options: Options, directory: Path, *, downloaded: Path) -> None:
    """Writes the split tables of downloaded files.

    Raises ConfigError if a column is missing, or classes have no names. Raises DataError if a file
    is missing, or for faulty rows.
    """
    receipt = check_receipt(downloaded, params=options.download_params())
    names = [
        part.name.removeprefix(f"{_FILES}/")
        for part in receipt.files
        if part.name.startswith(f"{_FILES}/")
    ]

    shared = {name: getattr(options, name) for name in parquet.ColumnOptions.model_fields}
    for split in options.list_splits():
        matches = _match_files(getattr(options, split), names, options)
        shared[split] = tuple(str(downloaded / _FILES / name) for name in matches)
    if options.accepted_labels is not None:
        shared["accepted_labels"] = {"file": str(downloaded / _ACCEPTED)}
    local = parquet.Options(**{**shared, "source": "parquet"})
    local.check_files()
    if (several := local.multi_label()) != options.several_labels:
        raise DataError(
            "several_labels: the downloaded files have "
            f"{'several labels' if several else 'one label'} per row; write several_labels: "
            f"{str(several).lower()}"
        )
    parquet.prepare(local, directory, recorded=options, revision=options.revision)
