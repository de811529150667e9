"""Hands a bundle to the Hugging Face Hub: its files, as one commit of a model repository.

Nothing is sent but the bundle's files, whose promise is the release's: copying them costs no
privacy. A folder with another file in it, and a bundle that is damaged, are refused before the Hub
is asked, for what the Hub has once shown cannot be taken back. The token is HF_TOKEN's or that of
`hf auth login`; it is written nowhere, and no error quotes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dpprobe.errors import ConfigError, DataError, DpprobeError, UploadError
from dpprobe.release.bundle import SIGNATURE_FILE, Bundle, read_bundle

if TYPE_CHECKING:
    from huggingface_hub import HfApi

REPOSITORY = r"[A-Za-z0-9_.\-]+/[A-Za-z0-9_.\-]+"
TOKENS = "https://huggingface.co/settings/tokens"


def push_bundle(bundle: Path, repo: str, *, private: bool = False, token: str | None = None) -> str:
    """Uploads a bundle to a model repository of the Hub, made if there is none.

    Either all files arrive, in one commit, or the repository stays as it was. Pushed again, an
    unchanged bundle makes no second commit.

    Args:
      repo: owner/name.
      private: a repository that is made can be read by its owner alone; one that is there already
        and public is refused. False: made as the owner's account makes them, or left as it is.
      token: that may write there; absent, HF_TOKEN's or that of `hf auth login`.

    Returns:
      The address of the repository's page.

    Raises:
      DataError: for a bundle that is damaged, or a folder that holds anything else.
      ConfigError: for the name of the repository, its visibility, the token, offline mode.
      UploadError: when the Hub gives no answer, or refuses.
    """
    from huggingface_hub import HfApi, get_token  # heavy: httpx, for the command line's --help

    checked = read_bundle(bundle)
    if not re.fullmatch(REPOSITORY, repo):
        raise ConfigError(f"{repo!r}: not a repository of the Hub; write owner/name")
    token = token or get_token()
    if token is None:
        raise ConfigError(
            f"{repo}: no token; set HF_TOKEN to one that may write there ({TOKENS}), or run "
            "`hf auth login`"
        )
    api = HfApi(token=token, library_name="dpprobe")
    with _readable_errors(repo, api.endpoint):
        address = str(api.create_repo(repo, private=private or None, exist_ok=True))
        info = api.model_info(repo)
        if private and not info.private:
            raise ConfigError(
                f"{repo}: it exists and is public; make it private on its page, name another "
                "one, or push without asking for a private one"
            )
        _commit_files(api, repo, checked, {file.rfilename for file in info.siblings or ()})
    return address


def _commit_files(api: HfApi, repo: str, bundle: Bundle, there: set[str]) -> None:
    """Commits the files; an older bundle's signature does not stay beside other sums."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    files = sorted(bundle.folder.iterdir())
    operations: list[CommitOperationAdd | CommitOperationDelete] = [
        CommitOperationAdd(path_in_repo=path.name, path_or_fileobj=path) for path in files
    ]
    if SIGNATURE_FILE in there - {path.name for path in files}:
        operations.append(CommitOperationDelete(path_in_repo=SIGNATURE_FILE))
    # Not upload_folder: it may commit in parts, and a part of a bundle is none.
    api.create_commit(repo, operations, commit_message=f"Release {bundle.facts.name}")


@contextmanager
def _readable_errors(repo: str, address: str) -> Iterator[None]:
    """Raises errors of the Hub's library as one line that says what to do."""
    try:
        yield
    except DpprobeError:
        raise
    except Exception as error:
        # The library wraps what went wrong while it sent a large file.
        cause = error.__cause__ if type(error) is RuntimeError and error.__cause__ else error
        if (readable := _explain_error(cause, repo, address)) is None:
            raise
        raise readable from None


def _explain_error(error: BaseException, repo: str, address: str) -> DpprobeError | None:
    """Returns an error that says the remedy, without the request; None for one of another kind."""
    import httpx2
    from huggingface_hub import errors

    if isinstance(error, errors.OfflineModeIsEnabled):
        return ConfigError(
            f"{repo}: HF_HUB_OFFLINE is set, so nothing is sent to the Hub; unset it and push again"
        )
    if isinstance(error, errors.HFValidationError):
        return ConfigError(f"{repo!r}: no name that the Hub takes; write owner/name")
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code
        if status in (401, 403) or isinstance(error, errors.RepositoryNotFoundError):
            return ConfigError(
                f"{repo}: the Hub refuses the token (status {status}); set HF_TOKEN to one that "
                f"may write to repositories of {repo.partition('/')[0]} ({TOKENS})"
            )
        return UploadError(
            f"{repo}: the Hub refuses (status {status}); see {address}/{repo}, then push again"
        )
    if isinstance(error, ValueError) and "README.md" in str(error):
        words = " ".join(str(error).split())
        return DataError(f"{repo}: the Hub refuses the card: {words}; make the release again")
    if isinstance(error, httpx2.TransportError | OSError):
        return UploadError(
            f"{repo}: {address} gives no answer ({type(error).__name__}); check the network and "
            "push again"
        )
    return None
