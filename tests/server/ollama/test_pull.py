"""POST /api/pull, with a hub on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from hub.stand_in import Hub, running
from olivine import box
from olivine.server.loader import Loader
from olivine.server.models import ServedModel
from olivine.server.settings import Settings
from oracles.serving import serving

FILE = "gemma-3-1b-it-Q4_K_M.gguf"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    with running() as hub:
        places = {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": tmp_path / "hf",
            "HOME": tmp_path,
            "OLLAMA_MODELS": tmp_path,
        }
        for name, value in {**places, "no_proxy": "*"}.items():
            monkeypatch.setenv(name, str(value))
        hub.add("ggml-org/gemma-3-1b-it-GGUF", {FILE: box.FILE.read_bytes()})
        yield hub


def post(url: str, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}/api/{path}", json=body, timeout=240)


def test_a_model_is_downloaded_told_of_and_served(hub: Hub) -> None:
    size = box.FILE.stat().st_size
    with serving([ServedModel("mini", path=box.FILE)], loader=Loader({"threads": 1, "sequences": 1})) as url:
        *lines, last = [json.loads(each) for each in post(url, "pull", model="gemma3:1b").text.splitlines()]
        assert lines[0] == {"status": "pulling manifest"} and last == {"status": "success"}
        told = [each for each in lines if "digest" in each]
        assert told[0]["total"] == size and told[-1]["completed"] == size
        assert told[0]["digest"].startswith("sha256:") and {"status": "verifying sha256 digest"} in lines
        names = [each["name"] for each in httpx.get(f"{url}/api/tags").json()["models"]]
        assert names == ["mini", "gemma3:1b"]
        options = {"num_predict": 2}
        said = post(url, "generate", model="gemma3:1b", prompt="Hi", stream=False, options=options).json()
        assert said["eval_count"] == 2
        assert post(url, "pull", model="gemma3:1b", stream=False).json() == {"status": "success"}
    assert len(hub.downloads()) == 1
    with serving([ServedModel("mini", path=box.FILE)]) as url:
        assert post(url, "pull", model="gemma3:1b", stream=False).json() == {"status": "success"}
    assert len(hub.downloads()) == 1, "what is on this disk is served as it is"


def test_what_goes_wrong_is_told_in_the_stream_or_by_a_status(hub: Hub) -> None:
    hub.add("a/gated-GGUF", {"x-Q4_K_M.gguf": b"x"}, gated=True)
    with serving([ServedModel("mini", path=box.FILE)]) as url:
        response = post(url, "pull", model="a/gated-GGUF")
        assert response.status_code == 200
        assert "accept its license" in json.loads(response.text.splitlines()[-1])["error"]
        assert post(url, "pull", model="a/gated-GGUF", stream=False).status_code == 403
        assert post(url, "pull", model="nobody/nothing", stream=False).status_code == 404
        assert "nearest: gemma3" in post(url, "pull", model="gema3").json()["error"]


def test_only_this_machine_may_have_models_downloaded(hub: Hub) -> None:
    with serving([ServedModel("mini", path=box.FILE)], Settings(pull=False)) as url:
        refused = post(url, "pull", model="gemma3:1b")
        assert refused.status_code == 403 and "start it with --pull" in refused.json()["error"]
    assert hub.asked == []
    assert Settings().may_pull and Settings(host="0.0.0.0", pull=True).may_pull
    for other in (Settings(host="0.0.0.0"), Settings(cors=("*",)), Settings(allowed_hosts=("x",))):
        assert not other.may_pull
