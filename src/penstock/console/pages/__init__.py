"""The pages of the console as data: what each shows, without a web server or a node."""

from __future__ import annotations
