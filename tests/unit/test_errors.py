"""Errors that may pass, and those that stay until somebody mends them."""

from __future__ import annotations

import http.client

import requests

from dpprobe.errors import ConfigError, DataError, DeviceError, DiskError, may_pass


def caused(cause: Exception, *, within: bool = False) -> ConfigError:
    """An error meant for a person, as a function raises it from another, or while it handles it."""
    error = ConfigError("model: cannot be created")
    setattr(error, "__context__" if within else "__cause__", cause)
    return error


PASSING = [
    DiskError("no room"), DeviceError("no GPU"), ValueError("nobody foresaw this"),
    caused(TimeoutError("timed out"), within=True),
    *map(caused, [
        TimeoutError("timed out"), http.client.RemoteDisconnected("gone"),
        requests.HTTPError("503 Server Error"), OSError(5, "Input/output error"), MemoryError(),
        RuntimeError("CUDA out of memory"),
    ]),
]  # fmt: skip
STAYING = [
    ConfigError("learning_rate"), DataError("a damaged image"), caused(KeyError(), within=True),
    *map(caused, [
        ValueError("unknown model"), OSError("file signature not found"),
        FileNotFoundError(2, "No such file or directory", "weights.pt"),
        PermissionError(13, "Permission denied", "weights.pt"),
    ]),
]  # fmt: skip


def test_only_what_nobody_need_mend_is_tried_again() -> None:
    assert [error for error in [*PASSING, *STAYING] if may_pass(error)] == PASSING
