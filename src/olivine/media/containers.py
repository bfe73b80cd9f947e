"""Opening a container with FFmpeg (PyAV), so that it reads nothing but this file."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from olivine.errors import MediaError

if TYPE_CHECKING:
    from av.container import InputContainer

# Formats that hold their own data. Playlists (hls, concat, dash, image2 …) name other files and addresses.
_FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,flv,ogg,asf,mxf,nut,dv,rm,"
    "m4v,h264,hevc,av1,obu,ivf,mjpeg,gif,apng,yuv4mpegpipe,"
    "wav,w64,mp3,flac,aac,aiff,au,caf,amr,ac3,eac3,dts,ape,wv,tta,tak"
)


def open_container(file: IO[bytes], kind: str) -> InputContainer:
    """A container, with its streams known and nothing decoded."""
    import av

    options = {"format_whitelist": _FORMATS, "protocol_whitelist": "none"}
    try:
        return av.open(file, "r", options=options)
    except (av.error.InvalidDataError, av.error.ArgumentError, EOFError):
        raise MediaError(kind, "is broken, or in a format that is not read") from None
