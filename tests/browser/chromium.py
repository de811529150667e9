"""Drives a headless Chromium, and records its console messages and its network requests."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

MISSING = not (shutil.which("chromium") and shutil.which("chromedriver"))
needed = [
    pytest.mark.slow,
    pytest.mark.skipif(
        MISSING, reason="chromium or chromedriver is missing; see tests/install_system_packages.sh"
    ),
]
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1500,900",
)
# MLflow's page asks who is logged in, and a server without logins answers 404.
OWN_ERROR = "/ajax-api/2.0/mlflow/users/current"
# The standard calls this message harmless: a layout took two frames, as on a busy machine.
LATE_LAYOUT = "ResizeObserver loop completed with undelivered notifications"
WAIT_SECONDS = 60.0


def launch(profile: Path) -> Any:
    """Returns a browser that records its console messages and its network requests."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    return webdriver.Chrome(options=options, service=service)


def open_page(browser: Any, address: str, awaited: str) -> str:
    """Opens a page and returns its text once `awaited` is in it."""
    browser.get("about:blank")
    browser.get(address)
    await_text(browser, awaited, where=address)
    time.sleep(1.0)
    return text_of(browser)


def text_of(browser: Any) -> str:
    return str(browser.execute_script("return document.body.innerText") or "")


def await_text(browser: Any, awaited: str, *, where: str = "the page") -> None:
    await_that(
        lambda: awaited in text_of(browser),
        lambda: f"{awaited!r} is not on {where}, which shows: {text_of(browser)[:2000]}",
    )


def await_that(found: Callable[[], Any], otherwise: Callable[[], str]) -> Any:
    """Waits until `found` returns a true value, and returns the value; fails after a minute."""
    limit = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < limit:
        value = found()
        if value:
            return value
        time.sleep(0.2)
    raise AssertionError(otherwise())


def assert_quiet(browser: Any, server: str | None = None) -> None:
    """Checks that the console has no error, and that requests went only to `server`, if any."""
    console = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    messages = [entry["message"] for entry in console]
    expected = (OWN_ERROR, LATE_LAYOUT)
    assert [text for text in messages if not any(known in text for known in expected)] == []
    hosts = set()
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            parts = urlsplit(message["params"]["request"]["url"])
            if parts.scheme in ("http", "https", "ws", "wss"):
                hosts.add(parts.netloc)
    assert hosts == (set() if server is None else {urlsplit(server).netloc})


def screen(browser: Any, *, width: int, height: int = 900, dark: bool = False) -> None:
    """Sets the size of the window and the preferred colour scheme."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
    )
    scheme = "dark" if dark else "light"
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
