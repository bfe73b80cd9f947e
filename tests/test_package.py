"""The package as a whole: what is public, what imports what, and what an import costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import olivine
from olivine.models import ARCHITECTURES

SOURCE = Path(olivine.__file__).parent

# What each part may import, besides itself; see docs/structure.md.
LEAVES = {"checks", "errors", "dtypes", "folders", "malloc", "pages", "tensor"}
ALLOWED = {
    "errors": set(),
    "checks": {"errors"},
    "dtypes": set(),
    "folders": set(),
    "malloc": set(),
    "tensor": {"dtypes"},
    "pages": {"tensor"},
    "plan": {"errors"},
    "box": {"errors"},
    # Names of models: what is on this disk, and what is downloaded. `fit` asks the machine.
    "hub": {"box", "engine", "machine", *LEAVES},
    "formats": {"hub", *LEAVES},
    "tokenizer": {"errors", "malloc"},
    "models": {"plan", *LEAVES},
    "backends": {"plan", *LEAVES},
    "engine": {"backends", "plan", *LEAVES},
    "chat": {"matching", "tokenizer", "errors"},
    "media": {"errors"},
    "matching": set(),
    "repetition": set(),
    "options": {"engine", "backends", *LEAVES},
    "prompts": {"tokenizer", *LEAVES},
    "token_stream": {"engine", "backends", "repetition", "tokenizer", *LEAVES},
    "completion": {"engine", "matching", "token_stream", *LEAVES},
    "perception": {"backends", "chat", "engine", "media", "models", "towers", *LEAVES},
    "conversation": {"chat", "engine", "formats", "options", "perception", "tokenizer", *LEAVES},
    "reply": {"chat", "completion", "conversation", "engine", "matching", "token_stream", *LEAVES},
    "streaming": {"engine", *LEAVES},
    "batching": {"engine", "streaming", *LEAVES},
    "scoring": {"batching", "engine", "backends", "streaming", *LEAVES},
    "generation": {
        "chat",
        "completion",
        "conversation",
        "engine",
        "options",
        "perception",
        "prompts",
        "reply",
        "streaming",
        "token_stream",
        "tokenizer",
        *LEAVES,
    },
    "languages": {"errors"},
    "subtitles": set(),
    "transcript": {"engine", "languages", "options", "subtitles", "token_stream", *LEAVES},
    "transcription": {
        "chat",
        "engine",
        "languages",
        "media",
        "perception",
        "reply",
        "streaming",
        "token_stream",
        "transcript",
        *LEAVES,
    },
    "towers": {"backends", "hub", "models", "formats", *LEAVES},
    "cache_fit": {"backends", "engine", "models", "towers", *LEAVES},
    # The two that tie the parts together.
    "cluster": {"backends", "formats", "models", "plan", *LEAVES},
    "loading": {
        "cache_fit",
        "cluster",
        "engine",
        "backends",
        "models",
        "formats",
        "tokenizer",
        "towers",
        *LEAVES,
    },
    "llm": {
        "backends",
        "batching",
        "chat",
        "completion",
        "conversation",
        "engine",
        "formats",
        "hub",
        "generation",
        "loading",
        "options",
        "perception",
        "prompts",
        "reply",
        "scoring",
        "streaming",
        "token_stream",
        "transcript",
        "transcription",
        *LEAVES,
    },
    "memory": {"cache_fit", "engine", "backends", "formats", "loading", "perception", "towers", *LEAVES},
    "machine": {"backends", "engine", *LEAVES},
    "doctor": {
        "backends",
        "box",
        "engine",
        "formats",
        "hub",
        "loading",
        "machine",
        "settings",
        *LEAVES,
        "",
    },
    "settings": {*LEAVES},
    "settings_file": {"settings", *LEAVES},
    "server": {
        "backends",
        "box",
        "chat",
        "completion",
        "engine",
        "formats",
        "hub",
        "languages",
        "llm",
        "loading",
        "memory",
        "perception",
        "reply",
        "scoring",
        "streaming",
        "token_stream",
        "tokenizer",
        "towers",
        "transcript",
        *LEAVES,
        "",
    },
    "ray": {"hub", "loading", "server", *LEAVES},
    "bench": {"llm", "backends", "plan", *LEAVES},
    "convert": {"backends", "models", "formats", "tokenizer", "plan", *LEAVES},
    "cli": {
        "bench",
        "box",
        "cache_fit",
        "convert",
        "doctor",
        "hub",
        "llm",
        "loading",
        "machine",
        "chat",
        "cluster",
        "completion",
        "media",
        "options",
        "reply",
        "streaming",
        "subtitles",
        "transcript",
        "transcription",
        "models",
        "formats",
        "tokenizer",
        "plan",
        "ray",
        "server",
        "settings",
        "settings_file",
        "towers",
        *LEAVES,
        "",
    },
    "": set(),  # olivine/__init__.py: lazy, checked below
    "__main__": {"cli"},
}


def part_of(module: str) -> str:
    """`olivine.plan.ops` → `plan`; `olivine` → ``."""
    return module.partition(".")[2].partition(".")[0]


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            if node.module == "olivine":
                found |= {f"olivine.{alias.name}" for alias in node.names if (SOURCE / alias.name).is_dir()}
                found |= {
                    f"olivine.{alias.name}" for alias in node.names if (SOURCE / f"{alias.name}.py").exists()
                }
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.split(".")[0] == "olivine"}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    own = "" if parts == ("__init__",) else parts[0]
    assert own in ALLOWED, f"{own} is new: say in this test what it may import"
    if own == "":
        return
    for name in imports_of(path):
        target = part_of(name)
        if name == "olivine" and target == "":
            continue  # `from olivine import x` is counted by x
        assert target == own or target in ALLOWED[own], f"{own} imports {name}"


def modules_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(' '.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in run.stdout.splitlines()[-1].split()}


HEAVY = {"numpy", "tokenizers", "torch", "huggingface_hub", "jinja2", "rich", "prompt_toolkit", "markdown_it"}


def test_importing_olivine_imports_nothing_heavy() -> None:
    assert not modules_after("import olivine") & HEAVY


def test_a_model_file_is_imported_when_a_checkpoint_needs_it() -> None:
    script = "import sys, olivine.llm\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {f"olivine.models.{name}" for name in ARCHITECTURES} & set(run.stdout.split())


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    call = "from olivine.cli.main import main\ntry: main()\nexcept SystemExit: pass"
    code = f"sys.argv = ['olivine', *{arguments}]\n{call}"
    assert not modules_after(code) & HEAVY


def test_the_public_names_are_these() -> None:
    assert olivine.__all__ == [
        "LLM",
        "BusyError",
        "CheckpointError",
        "ClosedError",
        "Completion",
        "ContextError",
        "DeadlineError",
        "Delta",
        "DownloadError",
        "MediaError",
        "Message",
        "MissingModelError",
        "ModelError",
        "OlivineError",
        "Piece",
        "RankError",
        "Reply",
        "RequestError",
        "Sampling",
        "Score",
        "Stats",
        "Stream",
        "TokenizerError",
        "Usage",
        "load",
        "open_checkpoint",
    ]
    for name in olivine.__all__:
        assert getattr(olivine, name) is not None
        assert name in dir(olivine)
    with pytest.raises(AttributeError, match="nothing"):
        _ = olivine.nothing


def test_every_error_is_an_olivine_error() -> None:
    for name in (
        "BusyError",
        "CheckpointError",
        "ClosedError",
        "ContextError",
        "DeadlineError",
        "ModelError",
        "RequestError",
        "TokenizerError",
    ):
        assert issubclass(getattr(olivine, name), olivine.OlivineError)
