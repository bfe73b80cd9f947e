"""The package's build hook: compiles the native library into the package."""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeBuildHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        # `make test` compiles the library into the source tree while pip installs that as editable.
        if version == "editable" and os.environ.get("OLIVINE_COMPILE") == "no":
            return
        native = Path(self.root) / "native"
        build = runpy.run_path(str(native / "build.py"))
        library = build["build"](build["PACKAGE"] / build["library_name"](), tell=self.app.display_info)
        # The library knows nothing of Python: one build serves every version.
        build_data["tag"] = (
            f"py3-none-{runpy.run_path(str(native / 'wheel_tag.py'))['platform_tag'](library)}"
        )
        build_data["pure_python"] = False
        build_data["artifacts"].append(library.relative_to(self.root).as_posix())
