"""What `import ray.serve.llm` asks for besides Ray: vLLM's classes of requests and responses, and pyarrow.

Neither is installed for the tests: vLLM brings gigabytes. These modules have the names that Ray imports; the
fields are those of OpenAI's API that Ray or the adapter reads.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

_ASKED = "model: str | None = None; stream: bool = False; request_id: str = 'random'"
_MADE = "id: str; created: int; model: str; choices: list[dict[str, Any]]; usage: dict[str, Any]"
_MESSAGES = "messages: list[dict[str, Any]]"
_SPECIAL = "add_special_tokens: bool = True; return_token_strs: bool = False"
_CLASSES = {
    "openai/chat_completion/protocol.py": {
        "ChatCompletionRequest": f"{_ASKED}; {_MESSAGES}; temperature: float | None = 1.0",
        "ChatCompletionResponse": _MADE,
        "ChatCompletionStreamResponse": "",
    },
    "openai/completion/protocol.py": {
        "CompletionRequest": f"{_ASKED}; prompt: str",
        "CompletionResponse": _MADE,
        "CompletionStreamResponse": "",
    },
    "pooling/embed/protocol.py": {
        "EmbeddingChatRequest": f"model: str | None = None; {_MESSAGES}",
        "EmbeddingCompletionRequest": "model: str | None = None; input: Any",
        "EmbeddingResponse": "data: list[dict[str, Any]]; usage: dict[str, Any]",
    },
    "pooling/scoring/protocol.py": {"ScoreResponse": "", "ScoreTextRequest": ""},
    "serve/engine/protocol.py": {
        "ErrorInfo": "message: str; type: str; param: str | None = None; code: int",
        "ErrorResponse": "error: ErrorInfo",
    },
    "serve/tokenize/protocol.py": {
        "DetokenizeRequest": "model: str | None = None; tokens: list[int]",
        "DetokenizeResponse": "prompt: str",
        "TokenizeChatRequest": f"model: str | None = None; {_MESSAGES}; add_generation_prompt: bool = True",
        "TokenizeCompletionRequest": f"model: str | None = None; prompt: str; {_SPECIAL}",
        "TokenizeResponse": "tokens: list[int]; count: int; max_model_len: int; token_strs: Any = None",
    },
    "speech_to_text/transcription/protocol.py": {
        "TranscriptionRequest": "model: str | None = None; file: Any",
        "TranscriptionResponse": "text: str",
        "TranscriptionStreamResponse": "",
    },
}
_HEAD = "from typing import Any\nfrom pydantic import BaseModel, ConfigDict\n"


def write_stand_ins(folder: Path) -> None:
    """Writes the modules into a folder, for PYTHONPATH."""
    for name, classes in _CLASSES.items():
        path = folder / "vllm/entrypoints" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_HEAD + "".join(_class(*each) for each in classes.items()))
    if find_spec("pyarrow") is None:  # enough for the import; a cluster needs more of it
        (folder / "pyarrow").mkdir(exist_ok=True)
        (folder / "pyarrow/__init__.py").write_text("__version__ = '20.0.0'\n")
        (folder / "pyarrow/fs.py").write_text("class FileSystem: ...\n")


def _class(name: str, fields: str) -> str:
    lines = ["model_config = ConfigDict(extra='allow')", *filter(None, fields.split("; "))]
    return f"class {name}(BaseModel):\n" + "".join(f"    {each}\n" for each in lines)
