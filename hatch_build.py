"""The package's build hook: compiles the native library into the package."""

from __future__ import annotations

import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeBuildHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        native = runpy.run_path(str(Path(self.root) / "native" / "build.py"))
        library = native["build"](native["PACKAGE"] / native["library_name"]())
        # The library knows nothing of Python: one build serves every version.
        system = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{system}"
        build_data["pure_python"] = False
        build_data["artifacts"].append(str(library.relative_to(self.root)))
