"""The node of most end-to-end tests: one a module, by the plugin that users have too."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def node(penstock_broker_module):
    return penstock_broker_module
