"""Files that timm and open_clip fetch from the Hugging Face Hub: cached, reachable or missing."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from dpprobe.errors import ConfigError

# The names under which timm and open_clip look for the weights of a repository.
TIMM_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
OPEN_CLIP_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
HUB_PREFIXES = ("hf-hub:", "hf_hub:")  # timm accepts both prefixes
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")  # variables that forbid downloads
_SECONDS = 10  # seconds to wait for a connection, as huggingface_hub does for a file's metadata


class HubFile(NamedTuple):
    """A file that loading a backbone needs.

    Attributes:
      repository: owner/name, followed by @revision if the revision is not main.
      names: alternative names of the file; one of them is enough.
    """

    part: Literal["config", "weights", "tokenizer"]
    repository: str
    names: tuple[str, ...]


def is_cached(repository: str, names: Iterable[str]) -> bool:
    """Returns True if this machine caches one of a repository's files; uses no network."""
    from huggingface_hub import try_to_load_from_cache  # slow import

    name, _, revision = repository.partition("@")
    paths = (try_to_load_from_cache(name, each, revision=revision or None) for each in names)
    return any(isinstance(path, str) for path in paths)


def describe_missing(wanted: Iterable[HubFile], *, network: bool) -> str | None:
    """Explains which files are neither cached nor reachable; None if no file is missing.

    With `network`, one HEAD request tests whether the Hub is reachable if files are not cached.
    Without `network`, only environment variables such as HF_HUB_OFFLINE are considered.
    """
    offline = next((name for name in _OFFLINE if os.environ.get(name)), None)
    if not network and offline is None:
        return None
    from huggingface_hub import constants  # slow import

    missing = [one for one in wanted if not is_cached(one.repository, one.names)]
    if not missing:
        return None
    if constants.is_offline_mode():
        fault, remedy = f"{offline or _OFFLINE[0]} is set", "unset it"
    elif network and (said := _find_connection_fault(constants.ENDPOINT)):
        fault = f"{urlsplit(constants.ENDPOINT).hostname} cannot be reached ({said})"
        remedy = "load the backbone once with a network connection"
    else:
        return None
    files = ", ".join(f"{one.repository} ({one.part}: {one.names[0]})" for one in missing)
    return (
        f"model: {files} {'is' if len(missing) == 1 else 'are'} not in the Hugging Face cache "
        f"{constants.HF_HUB_CACHE}, and {fault}; {remedy}, copy the cache from a machine that has "
        "the files, or name a local checkpoint"
    )


def require_files(wanted: Iterable[HubFile]) -> None:
    """Raises ConfigError without long retries if files are neither cached nor reachable."""
    if fault := describe_missing(wanted, network=True):
        raise ConfigError(fault)


@cache
def _find_connection_fault(address: str) -> str | None:
    """Returns the reason why a server cannot be reached; None for any answer, even an error.

    The request uses the Hub's client, with the proxies and certificates of downloads.
    """
    import httpx2
    from huggingface_hub import get_session

    try:
        get_session().head(address, timeout=_SECONDS)
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError) as error:
        return " ".join(str(error).split()) or type(error).__name__
    except httpx2.HTTPError:
        pass  # the library's own retries handle a flaky server
    return None
