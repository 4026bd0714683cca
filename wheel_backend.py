"""Builds wheels as setuptools does, and leaves no `build/` in the folder of the sources: what is
deleted there would be in the next wheel."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403


def build_wheel(
    wheel_directory: str,
    config_settings: Mapping[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    with tempfile.TemporaryDirectory(prefix="penstock-build-") as folder:
        settings = Path(folder) / "build.cfg"
        settings.write_text(f"[build]\nbuild_base = {folder}/build\n")
        before = os.environ.get("DIST_EXTRA_CONFIG")
        os.environ["DIST_EXTRA_CONFIG"] = str(settings)
        try:
            return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
        finally:
            os.environ.pop("DIST_EXTRA_CONFIG")
            if before is not None:
                os.environ["DIST_EXTRA_CONFIG"] = before
