"""Where a medium comes from: a path, bytes, a data URL, base64, a PIL image, a NumPy array.

Nothing is decoded here. A `Source` is what is sent to the process that decodes.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import numpy as np

from olivine.errors import MediaError, printable
from olivine.media.features import Kind
from olivine.media.limits import Limits

Form = Literal["path", "bytes", "base64", "array"]

_DATA_URL = re.compile(r"data:([^,;]*)((?:;[^,;]*)*),", re.ASCII | re.IGNORECASE)
_BASE64 = re.compile(r"[A-Za-z0-9+/=_\s-]+", re.ASCII)
_SHORTEST_BASE64 = 64  # characters; no medium is shorter
_LOOKED_AT = 4096  # characters that tell base64 from a path; all are checked when they are decoded
_SHARE = 4  # of a worker's memory, that content which is sent to it may take
_KEYS = ("url", "data", "path", "source", "file")  # in the objects that clients send


@dataclass(frozen=True, eq=False)
class Source:
    """A medium before it is decoded: a file's path, its content, or an array of pixels or samples."""

    kind: Kind
    form: Form
    path: str = ""
    payload: bytes | memoryview = b""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    rate: float = 0.0  # of samples, or of frames

    def check(self, limits: Limits) -> None:
        """Refuses what is too large to be read, or is no file."""
        if self.form == "path":
            check_size(file_size(self.path, self.kind), self.kind, limits)
            return
        most = limits.memory // _SHARE
        if len(self.payload) > most:
            where = "in an array" if self.form == "array" else "in memory"
            raise MediaError(
                self.kind, f"has more than {most / 1e6:,.0f} MB {where}: give a file's path, or scale it down"
            )
        if self.form != "array":
            size = len(self.payload) * 3 // 4 if self.form == "base64" else len(self.payload)
            check_size(size, self.kind, limits)


def check_size(size: int, kind: str, limits: Limits) -> None:
    most = limits.bytes_of(kind)
    if size > most:
        raise MediaError(kind, f"has {size / 1e6:,.1f} MB, and the limit is {most / 1e6:,.1f} MB")
    if size == 0:
        raise MediaError(kind, "is empty")


def file_size(path: str, kind: str) -> int:
    """The size of a regular file; devices and pipes have no end, and are refused."""
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no path"
        raise MediaError(kind, f"{printable(path)} cannot be read: {reason}") from None
    if not stat.S_ISREG(found.st_mode):
        raise MediaError(kind, f"{printable(path)} is no file")
    return found.st_size


def source_of(kind: Kind, given: Any, *, paths: bool = True) -> Source:
    """The source of a medium from what a caller has. Without `paths`, a text is never taken for the name of a
    file: on a server, it comes from somebody who may not read this machine's files."""
    while isinstance(given, Mapping):
        inner = next((given[key] for key in _KEYS if given.get(key) is not None), None)
        if inner is None:
            raise MediaError(kind, f"has no source: expected is one of {', '.join(_KEYS)}")
        given = inner
    if isinstance(given, Source):
        return given
    if isinstance(given, bytes | bytearray | memoryview):
        return Source(kind, "bytes", payload=memoryview(given).cast("B"))
    if isinstance(given, str):
        return _of_text(kind, given, paths)
    if isinstance(given, os.PathLike):
        if not paths:
            raise MediaError(kind, "is a path, and paths are not read here: send its content")
        return Source(kind, "path", path=os.fspath(given))
    if isinstance(given, np.ndarray):
        return _of_array(kind, given, 0.0)
    if kind in ("audio", "video") and isinstance(given, tuple) and len(given) == 2:
        array, rate = given
        is_rate = isinstance(rate, Real) and not isinstance(rate, bool)  # NumPy's scalars and fractions, too
        if isinstance(array, np.ndarray) and is_rate and rate > 0:
            return _of_array(kind, array, float(rate))
    if kind == "image" and hasattr(given, "getbands") and hasattr(given, "convert"):
        from olivine.media.image import to_rgb, upright

        return _of_array(kind, np.asarray(to_rgb(upright(given))), 0.0)
    raise MediaError(
        kind,
        f"is a {type(given).__name__}: give a path, bytes, a data URL, base64 or an array",
    )


def _of_text(kind: Kind, text: str, paths: bool) -> Source:
    if text[:5].lower() == "data:":
        found = _DATA_URL.match(text)
        if found is None:
            raise MediaError(kind, "has a data URL without a comma: data:TYPE;base64,CONTENT")
        content = text[found.end() :]
        if "base64" in found[2].lower().split(";"):
            return Source(kind, "base64", payload=_ascii(kind, content))
        return Source(kind, "bytes", payload=unquote(content, "latin-1").encode("latin-1", "replace"))
    scheme = text[:12].partition("://")[0].lower() if "://" in text[:12] else ""
    if scheme in ("http", "https", "ftp", "s3"):
        raise MediaError(kind, "is a web address, and none are fetched: give the file or a data URL")
    if paths:
        if scheme == "file":
            return Source(kind, "path", path=unquote(urlsplit(text).path))
        short = len(text) < 4096 and "\0" not in text
        if short and os.path.exists(os.path.expanduser(text)):
            return Source(kind, "path", path=os.path.expanduser(text))
    if len(text) >= _SHORTEST_BASE64 and _BASE64.fullmatch(text[:_LOOKED_AT]):
        return Source(kind, "base64", payload=_ascii(kind, text))
    if paths:
        raise MediaError(kind, f"{printable(text)}: there is no such file")
    raise MediaError(kind, "is neither a data URL nor base64")


def _ascii(kind: Kind, text: str) -> bytes:
    try:
        return text.encode("ascii")
    except UnicodeEncodeError:
        raise MediaError(kind, "is not in base64") from None


def _of_array(kind: Kind, array: np.ndarray[Any, Any], rate: float) -> Source:
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise MediaError(kind, f"is an array of {array.dtype}, which is not numbers")
    if array.size == 0:
        raise MediaError(kind, f"is an empty array of shape {array.shape}")
    if kind == "audio" and not rate:
        raise MediaError(kind, "is an array without a sampling rate: give (samples, rate)")
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    flat = array.reshape(-1).view(np.uint8).data
    return Source(kind, "array", payload=flat, dtype=array.dtype.str, shape=array.shape, rate=rate)


_SIGNATURES: tuple[tuple[int, bytes, Kind], ...] = (
    (0, b"\xff\xd8\xff", "image"),
    (0, b"\x89PNG", "image"),
    (0, b"GIF8", "image"),
    (0, b"BM", "image"),
    (0, b"II*\0", "image"),
    (0, b"MM\0*", "image"),
    (8, b"WEBP", "image"),
    (4, b"ftypavif", "image"),
    (4, b"ftyphei", "image"),
    (4, b"ftypmif1", "image"),
    (8, b"WAVE", "audio"),
    (8, b"AIFF", "audio"),
    (8, b"AIFC", "audio"),
    (0, b"fLaC", "audio"),
    (0, b"OggS", "audio"),
    (0, b"ID3", "audio"),
    (0, b"#!AMR", "audio"),
    (4, b"ftypM4A", "audio"),
    (4, b"ftypM4B", "audio"),
    (8, b"AVI ", "video"),
    (4, b"ftyp", "video"),
    (4, b"moov", "video"),
    (0, b"\x1aE\xdf\xa3", "video"),
    (0, b"FLV", "video"),
    (0, b"\0\0\x01\xba", "video"),
    (0, b"0&\xb2u", "video"),
)
_SUFFIXES: dict[str, Kind] = {
    **dict.fromkeys(
        (".mp3", ".aac", ".opus", ".oga", ".mka", ".weba", ".m4a", ".au", ".caf", ".wma"), "audio"
    ),
    **dict.fromkeys((".mpg", ".mpeg", ".ogv", ".h264", ".wmv", ".y4m"), "video"),
    **dict.fromkeys((".ppm", ".pgm", ".ico", ".tga", ".qoi", ".svg"), "image"),
}
_STREAMS = (".ts", ".mts", ".m2ts")  # of MPEG; TypeScript has the first two as well
_PACKET = 188  # bytes of such a stream


def kind_of(path: str | Path) -> Kind | None:
    """Whether a file is an image, a sound or a video, by its name or its first bytes; None if it is none."""
    path = Path(path)
    if (kind := _SUFFIXES.get(path.suffix.lower())) is not None:
        return kind
    try:
        file_size(str(path), "image")
        with open(path, "rb") as file:
            head = file.read(2 * _PACKET)
    except (OSError, MediaError):
        return None
    if path.suffix.lower() in _STREAMS:
        # In .m2ts four bytes of time come before each packet.
        for at, step in ((0, _PACKET), (4, _PACKET + 4)):
            if head[at : at + 1] == head[at + step : at + step + 1] == b"G":  # each begins with this byte
                return "video"
    for offset, magic, kind in _SIGNATURES:
        if head[offset : offset + len(magic)] == magic and not _is_text(magic, head):
            return kind
    return "audio" if _is_audio_frame(head) else None


def _is_text(magic: bytes, head: bytes) -> bool:
    """Whether what begins with these letters is no medium after all, by what else its header must have."""
    if magic == b"BM":
        return head[6:10] != bytes(4)  # reserved
    if magic == b"FLV":
        return (
            head[3:4] != b"\x01" or not head[4:5] or bool(head[4] & ~0x05)
        )  # the version, and what it holds
    if magic == b"ID3":
        return len(head) < 10 or head[3] not in (2, 3, 4) or max(head[6:10]) >= 0x80  # the version, the size
    if magic in (b"WEBP", b"WAVE", b"AIFF", b"AIFC", b"AVI "):
        return head[:4] not in (b"RIFF", b"RIFX", b"RF64", b"BW64", b"FORM")
    return magic[:4] in (b"ftyp", b"moov") and head[0] >= 9  # of a size below 150 MB


def _is_audio_frame(head: bytes) -> bool:
    """Whether MPEG audio or AAC begins here: by the bits of a frame's header that are never all ones."""
    if len(head) < 4 or head[0] != 0xFF:
        return False
    if head[1] & 0xF6 == 0xF0:  # AAC in ADTS
        return head[2] >> 2 & 15 < 13  # the sampling rate
    # FF FE would be layer I, which nobody has, with a checksum; it begins text in UTF-16.
    layer, rate, bits = head[1] >> 1 & 3, head[2] >> 2 & 3, head[2] >> 4
    return head[1] & 0xE0 == 0xE0 and head[1] != 0xFE and layer > 0 and rate < 3 and bits < 15
