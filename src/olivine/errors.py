"""Every error that Olivine raises on purpose, with its `code`: a word for programs, as OpenAI's API has them.

OlivineError            internal_error           a defect of ours, or a step that failed
│                       engine_failed            … after which the engine takes no more requests
│                       forked                   a model that was loaded before a fork is used in the child
│                       media_not_installed      images and sounds need packages that are not installed
├── CheckpointError     invalid_checkpoint       a model file is missing, broken or hostile: says where
│   └── MissingModelError  model_missing         a model with a known name that is not on this machine
├── DownloadError       download_failed          a model that could not be downloaded
│                       not_found, gated, rate_limited, offline, unreachable, disk_full, wrong_hash
├── TokenizerError      invalid_tokenizer        a tokenizer cannot be built, or cannot do what was asked
├── ModelError          unsupported_model        an architecture, configuration or tensors that cannot be run
│                       invalid_logits           … or that gave NaN or infinite logits when it ran
├── RequestError        invalid_request          what the caller asked for does not make sense
│   │                   invalid_value            … an option: `param` is its name
│   │                   no_token_allowed         … the grammar and the biases exclude every token
│   ├── MediaError      invalid_media            a medium whose source makes no sense
│   │                   invalid_image            … an image that cannot be read, or is beyond a limit
│   │                   invalid_audio            … a sound
│   │                   invalid_video            … a video
│   └── ContextError    context_length_exceeded  the prompt is too long: `tokens` of them, and `context`
├── RankError           rank_failed              a process of a divided model ended: try again
├── BusyError           overloaded               more requests are waiting than may wait: try again later
├── DeadlineError       timeout                  an embedding or a score that was not made in time
└── ClosedError         closed                   the model was closed

A message says what was wrong, where, and (where there is one) the next thing to do. A `RequestError` is the
caller's fault; nothing else is.
"""

from __future__ import annotations

from os import PathLike
from typing import Any


class OlivineError(Exception):
    """The root: `except OlivineError` catches everything that is not a bug of ours."""

    code = "internal_error"

    def __init__(self, message: str = "", *, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by its attributes: a subclass may take other arguments than a message."""
        return _restored, (type(self), self.args, self.__dict__)


class CheckpointError(OlivineError):
    """A model file that cannot be used. `path` and `field` say where, `problem` says what."""

    code = "invalid_checkpoint"

    def __init__(self, path: str | PathLike[str], field: str, problem: str) -> None:
        super().__init__(f"{path}: {field}: {problem}" if field else f"{path}: {problem}")
        self.path = str(path)
        self.field = field
        self.problem = problem


class MissingModelError(CheckpointError):
    """A model that is not on this machine and can be downloaded: `path` is its name."""

    code = "model_missing"


class DownloadError(OlivineError):
    """A model that could not be downloaded. What is here already stays, and the next try goes on with it."""

    code = "download_failed"


class TokenizerError(OlivineError):
    """A tokenizer file or vocabulary that cannot be used."""

    code = "invalid_tokenizer"


class ModelError(OlivineError):
    """An architecture, configuration or set of weights that cannot be run."""

    code = "unsupported_model"


class RequestError(OlivineError):
    """A request that cannot be served as it was asked. `param` is the option that is to blame, if one is."""

    code = "invalid_request"

    def __init__(self, message: str = "", *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message, code=code)
        self.param = param


class ContextError(RequestError):
    """A prompt of more `tokens` than the `context` holds; at `least` so many, where they were not counted."""

    code = "context_length_exceeded"

    def __init__(self, tokens: int, context: int, *, least: bool = False) -> None:
        super().__init__(
            f"the prompt has {'at least ' if least else ''}{tokens} tokens and the context holds {context}: "
            "shorten the prompt or raise the context",
            param="prompt",
        )
        self.tokens = tokens
        self.context = context


class MediaError(RequestError):
    """An image, audio or video that cannot be read, or that is beyond a limit: `kind` says which of them,
    `problem` what, as the rest of a sentence."""

    code = "invalid_media"

    def __init__(self, kind: str, problem: str) -> None:
        super().__init__(f"the {kind} {problem}", code=f"invalid_{kind}")
        self.kind = kind
        self.problem = problem


class BusyError(OlivineError):
    """A request that cannot be served now. In about `retry_after` seconds there may be room for it."""

    code = "overloaded"

    def __init__(self, message: str = "", *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RankError(OlivineError):
    """A process of a divided model ended: what was computed is lost, and the group is started again."""

    code = "rank_failed"


class DeadlineError(OlivineError):
    """A request whose `timeout` was over before there was a result. (A text ends with what there is.)"""

    code = "timeout"


class ClosedError(OlivineError):
    """A request to a model that is closed, or was closed while the request ran."""

    code = "closed"


def _restored(kind: type[OlivineError], args: tuple[Any, ...], attributes: dict[str, Any]) -> OlivineError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


def is_unicode(text: str) -> bool:
    """Whether a string from a file is Unicode text: JSON can contain half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(name: str, most: int = 120) -> str:
    """A name from a file as an error may show it: short, and unable to drive a terminal."""
    if len(name) > most:
        name = name[:most] + "…"
    return name if name.isprintable() else ascii(name)[1:-1]
