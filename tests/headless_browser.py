"""A headless Chromium, driven by its own driver over the W3C WebDriver protocol: JSON over HTTP, so
that no package is needed for it. Skips where no Chromium is installed, and says so."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from cleanup_commands import Afterwards

from penstock.testing import wait_until

ELEMENT: Final = "element-6066-11e4-a52e-4f735466cecf"
OPTIONS: Final = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-extensions", "--hide-scrollbars",
    "--force-device-scale-factor=1",
)  # fmt: skip
UNTIL_SECONDS: Final = 40.0
KEYS: Final = {"enter": "\ue007", "tab": "\ue004"}


class HeadlessBrowser:
    """One window. Elements are named by CSS selectors, and waited for."""

    def __init__(self, driver: str) -> None:
        self._driver = driver
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": list(OPTIONS), "binary": shutil.which("chromium")},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        made = self._send("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{made['sessionId']}"

    # --- where ---
    def open(self, url: str) -> None:
        self._ask("POST", "/url", {"url": url})

    @property
    def url(self) -> str:
        return str(self._ask("GET", "/url"))

    def size(self, width: int, height: int = 900) -> None:
        self._ask("POST", "/window/rect", {"width": width, "height": height})

    # --- what is there ---
    def text(self, selector: str = "main") -> str:
        found = self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)
        return " ".join(str(found).split())

    def until(self, text: str, selector: str = "main") -> str:
        """Waits for a text."""
        wait_until(
            lambda: text in self._quietly(selector), UNTIL_SECONDS,
            lambda: f"{text!r} in {self.text()}",
        )  # fmt: skip
        return self.text(selector)

    def _quietly(self, selector: str) -> str:
        try:
            return self.text(selector)
        except WebDriverError:
            return ""  # between two pages

    def run(self, script: str, *arguments: Any) -> Any:
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    # --- what a user does ---
    def click(self, selector: str, text: str = "") -> None:
        """Clicks the element, or the one of these with that text."""
        self._ask("POST", f"/element/{self._element(selector, text)}/click", {})

    def type(self, selector: str, text: str, *, clear: bool = True) -> None:
        element = self._element(selector, "")
        if clear:
            self._ask("POST", f"/element/{element}/clear", {})
        self._ask("POST", f"/element/{element}/value", {"text": text})

    def press(self, key: str) -> None:
        """Presses a key, wherever the focus is."""
        value = KEYS.get(key, key)
        strokes = [{"type": "keyDown", "value": value}, {"type": "keyUp", "value": value}]
        actions = [{"type": "key", "id": "keyboard", "actions": strokes}]
        self._ask("POST", "/actions", {"actions": actions})

    def screenshot(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self._ask("GET", "/screenshot")))

    def command(self, name: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol."""
        return self._ask("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def errors(self) -> list[str]:
        """What the browser complained of since the last call, but for answers that are errors."""
        found = self._ask("POST", "/se/log", {"type": "browser"})
        return [
            one["message"]
            for one in found
            if one["level"] in ("SEVERE", "WARNING")
            and "Failed to load resource" not in one["message"]
        ]

    def close(self) -> None:
        self._send("DELETE", self._session)

    # --- the protocol ---
    def _element(self, selector: str, text: str) -> str:
        script = (
            "return [...document.querySelectorAll(arguments[0])].find((each) => "
            "each.innerText.includes(arguments[1]) || !arguments[1])"
        )
        found = wait_until(
            lambda: self.run(script, selector, text),
            what=lambda: f"{selector} {text} in {self.text()}",
        )
        return str(found[ELEMENT])

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        return self._send(method, f"{self._session}{path}", body)

    def _send(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._driver}{path}", data, method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise WebDriverError(json.load(error)["value"]["message"]) from error


class WebDriverError(Exception):
    """The browser could not do it."""


@contextmanager
def headless_browser(folder: Path) -> Iterator[HeadlessBrowser]:
    """A browser, gone with its processes and files in the end."""
    driver = shutil.which("chromedriver")
    if driver is None or shutil.which("chromium") is None:
        pytest.skip("no Chromium here: on Debian, apt-get install chromium chromium-driver")
    log = folder / "chromedriver.log"
    process = subprocess.Popen(
        [driver, "--port=0", f"--log-path={log}"], stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, start_new_session=True,
        env={**os.environ, "HOME": str(folder), "TMPDIR": str(folder)},
    )  # fmt: skip
    cleanup = Afterwards(f"pkill -KILL -s {process.pid}")  # also where the tests are killed
    try:
        assert process.stdout is not None
        port = ""
        for line in process.stdout:
            if b"started successfully on port" in line:
                port = line.decode().split("port ")[1].strip(" .\n")
                break
        browser = HeadlessBrowser(f"http://127.0.0.1:{port}")
        try:
            yield browser
        finally:
            browser.close()
    finally:
        process.terminate()
        process.wait(20)
        cleanup.now()
        if process.stdout is not None:
            process.stdout.close()
