"""What the package says of itself, and what is in it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

import olivine

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def sdist() -> SdistBuilder:
    return SdistBuilder(str(ROOT))


def test_the_version_is_in_one_place(sdist: SdistBuilder) -> None:
    assert sdist.metadata.version == olivine.__version__
    assert not re.search(r"^version\s*=", (ROOT / "pyproject.toml").read_text(), re.M)
    run = subprocess.run(
        [sys.executable, "-m", "olivine", "--version"], capture_output=True, text=True, check=True
    )
    assert run.stdout.split()[-1] == olivine.__version__
    latest = re.search(r"^## \[?(\S+?)\]?(?: .*)?$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert latest is not None and latest[1] == olivine.__version__, "CHANGELOG.md begins with another version"


def test_the_license_is_in_the_metadata(sdist: SdistBuilder) -> None:
    core = sdist.metadata.core
    assert core.license_expression == "Apache-2.0"
    assert set(core.license_files) == {
        "LICENSE",
        "NOTICE",
        "src/olivine/server/page/files/licenses.md",
        "tools/mini/CREDITS.txt",
    }
    assert "Version 2.0, January 2004" in (ROOT / "LICENSE").read_text()


def test_the_notice_names_the_packages_of_the_chat_page() -> None:
    licenses = (ROOT / "src/olivine/server/page/files/licenses.md").read_text()
    packages = re.findall(r"^## (\S+) - \d", licenses, re.M)
    assert "preact" in packages and len(packages) > 3
    notice = (ROOT / "NOTICE").read_text().lower()
    assert [name for name in packages if name not in notice] == []


def test_the_sdist_has_what_builds_the_wheel(sdist: SdistBuilder) -> None:
    packed = {each.distribution_path for each in sdist.recurse_included_files()}
    needed = {"hatch_build.py", "pyproject.toml", "README.md", "LICENSE", "NOTICE", "Makefile"}
    needed |= {"web/package-lock.json", "web/vite.config.ts", "src/olivine/py.typed"}
    needed |= {"src/olivine/server/page/files/index.html", "src/olivine/server/page/files/assets/index.js"}
    needed |= {f"native/{path.name}" for path in (ROOT / "native").glob("*.py")}
    needed |= {f"native/src/{path.name}" for path in (ROOT / "native" / "src").iterdir()}
    assert needed - packed == set()
    built = [
        name for name in packed if re.search(r"\.(so|dylib|dll|o|pyc)$|node_modules|\.venv|\.objects", name)
    ]
    assert built == []


def test_the_wheel_has_the_package_and_nothing_else() -> None:
    packed = {each.distribution_path for each in WheelBuilder(str(ROOT)).recurse_included_files()}
    assert {"olivine/__init__.py", "olivine/py.typed", "olivine/chat/builtin/chatml.jinja"} <= packed
    assert [name for name in packed if not name.startswith("olivine/")] == []
    assert [name for name in packed if re.search(r"\.(o|pyc|cpp)$|sanitize", name)] == []
