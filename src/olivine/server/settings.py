"""What the operator of a server chose."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """The options of `olivine serve`, with their defaults; cli/serve.py has an option for each field."""

    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[str, ...] = ()  # a request has to give one of them
    max_body: int = 32 << 20  # bytes of a request
    max_timeout: float | None = None  # seconds that a request may take, waiting and running
    ping: float = 15.0  # seconds without an event after which a stream sends a ping
    grace: float = 10.0  # seconds that running requests have left when the server stops
    idle_unload: float | None = None  # seconds without a request after which a model is unloaded; None: never
    load_wait: float = 60.0  # seconds that a load waits for busy models, where memory is short
    stall: float = 120.0  # seconds without a step, though requests wait, after which /health is 503
    show_paths: bool = False  # whether clients may see where model files lie
