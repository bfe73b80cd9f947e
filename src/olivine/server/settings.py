"""What the operator of a server chose."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """The options of `olivine serve`, with their defaults."""

    host: str = "127.0.0.1"
    port: int = 8080
    max_body: int = 32 << 20  # bytes of a request
    ping: float = 15.0  # seconds without an event after which a stream sends a ping
