"""The model in the box: where it is found, what is packed, and that the file is what it is said to be."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

import olivine
from olivine import box
from oracles import tiny

ROOT = Path(__file__).parents[1]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of Olivine without its model."""
    monkeypatch.setattr(box, "FILE", tmp_path / "olivine-mini.gguf")
    return box.FILE


@pytest.fixture(scope="module")
def llm() -> Iterator[olivine.LLM]:
    with olivine.load("olivine-mini", device="cpu", threads=1, sequences=1) as llm:
        yield llm


def test_the_name_is_the_file_in_the_box(here: Path) -> None:
    assert box.find("olivine-mini") == box.packaged() == box.FILE
    assert box.FILE.parent == Path(olivine.__file__).parent / "box"


@pytest.mark.parametrize(
    "model", ["./olivine-mini", "olivine-mini.gguf", "Olivine-Mini", "x/olivine-mini", Path("olivine-mini")]
)
def test_everything_else_is_a_path(here: Path, model: str | Path) -> None:
    assert box.find(model) == Path(model)
    with pytest.raises(olivine.CheckpointError, match="there is no such file or folder"):
        olivine.load(model)


def test_a_file_or_folder_of_that_name_goes_first(here: Path) -> None:
    (here / "olivine-mini").mkdir()
    with pytest.raises(olivine.CheckpointError, match="olivine-mini: no model in this folder"):
        olivine.open_checkpoint("olivine-mini")
    (here / "olivine-mini").rmdir()
    tiny.write("tiny-llama", "Q8_0", here).rename(here / "olivine-mini")
    assert olivine.open_checkpoint("olivine-mini").architecture == "llama"
    (here / "olivine-mini").unlink()
    (here / "olivine-mini").symlink_to("nowhere")
    with pytest.raises(olivine.CheckpointError, match="there is no such file"):
        olivine.open_checkpoint("olivine-mini")


def test_a_copy_without_the_model_says_so(here: Path, empty: Path) -> None:
    with pytest.raises(olivine.CheckpointError) as caught:
        olivine.load("olivine-mini")
    message = str(caught.value)
    assert message.startswith(f"{empty}: this copy of Olivine came without olivine-mini")
    assert "tools/mini/README.md" in message and "path/to/model.gguf" in message


@pytest.mark.parametrize(
    ("builder", "place"), [(WheelBuilder, "olivine/box"), (SdistBuilder, "src/olivine/box")]
)
def test_packages_have_the_model(builder: type, place: str) -> None:
    packed = {each.distribution_path: Path(each.path) for each in builder(str(ROOT)).recurse_included_files()}
    assert packed[f"{place}/olivine-mini.gguf"].samefile(box.FILE)
    assert f"{place}/__init__.py" in packed
    assert [name for name in packed if name.endswith(".gguf")] == [f"{place}/olivine-mini.gguf"]


def test_it_is_small_and_complete() -> None:
    assert box.FILE.stat().st_size <= 16_000_000
    checkpoint = olivine.open_checkpoint("olivine-mini")
    assert (checkpoint.format, checkpoint.architecture) == ("gguf", "gemma4")
    assert checkpoint.chat_template is not None and "<|turn>" in checkpoint.chat_template
    assert list(checkpoint.files) == [box.FILE]


def test_it_has_its_tokenizer_and_sampling(llm: olivine.LLM) -> None:
    text = "Once upon a time, there was a little dragon. “Hello 🙂!”"
    tokens = llm.tokenizer.encode(text)
    assert tokens[0] == llm.tokenizer.bos_id and llm.tokenizer.decode(tokens[1:]) == text
    assert len(tokens) < len(text) / 2
    assert llm.tokenizer.vocab_size == llm.vocabulary
    assert llm.sampling.temperature > 0, "a story is another one each time"
    assert llm.context >= 1024
    assert llm.warnings == ()


def test_it_tells_stories_about_what_is_asked_for(llm: olivine.LLM) -> None:
    question = "Tell me a story about a dragon"
    replies = [llm.chat(question, max_tokens=800, seed=seed) for seed in range(8)]
    assert [reply.finish_reason for reply in replies] == ["stop"] * 8
    assert all(len(reply.content.split()) > 30 for reply in replies)
    assert sum("dragon" in reply.content.lower() for reply in replies) >= 6


def test_a_question_imports_no_more_than_it_needs() -> None:
    """What takes a tenth of a second to import is a tenth of a second that a newcomer waits."""
    script = """
import json, os, sys
os.environ["OLIVINE_STATE"] = os.devnull
sys.argv = ["olivine", "run", "Tell me a story about a dragon", "-n", "4", "-t", "1", "--device", "cpu"]
from olivine.cli.main import main
try: main()
except SystemExit as end: assert not end.code, end.code
print(json.dumps(sorted(sys.modules)))
"""
    run = subprocess.run(
        [sys.executable, "-c", script], input="", capture_output=True, text=True, encoding="utf-8", check=True
    )
    modules = set(json.loads(run.stdout.splitlines()[-1]))
    assert "olivine.conversation" in modules
    assert not modules & {"torch", "asyncio", "llguidance", "numpy.ma", "rich", "prompt_toolkit", "pygments"}
