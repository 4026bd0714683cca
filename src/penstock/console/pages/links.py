"""Addresses of pages, and the commands that do the same as an action.

Names travel in the query, escaped: a topic or group of any name has its page.
"""

from __future__ import annotations

import shlex
from urllib.parse import urlencode


def page_link(page: str, **query: object) -> str:
    """The address of a page; None is left out."""
    told = {name: value for name, value in query.items() if value not in (None, "")}
    return f"/{page}?{urlencode(told)}" if told else f"/{page}"


def command(url: str, *words: object) -> str:
    """A command line of `penstock` for a shell, for the node at `url`. None is left out."""
    told = [shlex.quote(str(word)) for word in words if word is not None]
    return f"penstock {' '.join(told)} -b {shlex.quote(url)}"
