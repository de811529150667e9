"""Errors that may pass, and those that stay until somebody mends them."""

from __future__ import annotations

import http.client

import pytest
import requests

from dpprobe.errors import ConfigError, DataError, DeviceError, DiskError, may_pass


def caused(cause: Exception) -> ConfigError:
    """An error meant for a person, as a function raises it that met another."""
    error = ConfigError("model: cannot be created")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        DiskError("no room"),
        DeviceError("no GPU"),
        ValueError("nobody foresaw this"),
        caused(TimeoutError("timed out")),
        caused(http.client.RemoteDisconnected("gone")),
        caused(requests.HTTPError("503 Server Error")),
        caused(OSError(5, "Input/output error")),
        caused(MemoryError()),
        caused(RuntimeError("CUDA out of memory")),
    ],
)
def test_what_nobody_need_mend_may_pass(error: Exception) -> None:
    assert may_pass(error)


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("learning_rate"),
        DataError("a damaged image"),
        caused(ValueError("unknown model")),
        caused(OSError("file signature not found")),
        caused(FileNotFoundError(2, "No such file or directory", "weights.pt")),
        caused(PermissionError(13, "Permission denied", "weights.pt")),
    ],
)
def test_what_stays_is_not_tried_again(error: Exception) -> None:
    assert not may_pass(error)
