"""A visitor of a console: asks for pages as a browser does, within the process of the test."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

from starlette.testclient import TestClient

from penstock.console.app import make_app
from penstock.console.config import PORT, ConsoleConfig

BASE = f"http://127.0.0.1:{PORT}"


class Visitor:
    """`get` and `post` check the status; texts are as a reader sees them, without escapes."""

    def __init__(self, client: TestClient) -> None:
        self.client = client
        self.last = ""
        """The page that came last, as it was sent."""

    def get(self, path: str, status: int = 200, /, **query: Any) -> str:
        target = f"{path}?{urlencode(query)}" if query else path
        answer = self.client.get(target)
        self.last = answer.text
        assert answer.status_code == status, f"{answer.status_code}\n{seen(answer.text)}"
        return seen(answer.text)

    def token(self) -> str:
        found = re.search(r'name="csrf" value="([0-9a-f]+)"', self.client.get("/topics").text)
        assert found is not None
        return found[1]

    def post(self, path: str, status: int = 200, /, **form: Any) -> str:
        answer = self.client.post(path, data={"csrf": self.token(), **form})
        self.last = answer.text
        assert answer.status_code == status, f"{answer.status_code}\n{seen(answer.text)}"
        return seen(answer.text)

    def plan(self, path: str, /, **form: Any) -> str:
        """Asks what an action would do."""
        return self.post(path, **form)

    def do(self, path: str, status: int = 200, /, **form: Any) -> str:
        """Does it; the page that follows."""
        return self.post(path, status, **{"step": "do", **form})


def seen(page: str) -> str:
    """The text of a page, in one line of words."""
    body = page.partition("<main")[2] or page
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


@contextmanager
def visiting(url: str, **options: Any) -> Iterator[Visitor]:
    """A console of the node at `url`, and a visitor of it."""
    app = make_app(ConsoleConfig(url=url, **options))
    with TestClient(app, base_url=BASE, raise_server_exceptions=True) as client:
        yield Visitor(client)
