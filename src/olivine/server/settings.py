"""What the operator of a server chose."""

from __future__ import annotations

from dataclasses import dataclass

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Settings:
    """The options of `olivine serve`, with their defaults; cli/serve.py has an option for each field."""

    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[str, ...] = ()  # a request has to give one of them
    cors: tuple[str, ...] = ()  # origins of web pages that may use the server; "*" is all
    allowed_hosts: tuple[str, ...] = ()  # names of the server, besides its address and localhost; "*" is all
    log_format: str = "text"  # of a line for each request: text, json, or none for no lines
    log_prompts: bool = False  # whether these lines have what requests say
    max_body: int = 8 << 20  # bytes of a request
    body_timeout: float = 60.0  # seconds in which the body of a request has to arrive
    max_connections: int = 4096
    keep_alive: float = 75.0  # seconds that a connection may be without a request
    max_timeout: float | None = None  # seconds that a request may take, waiting and running
    priorities: bool = False  # whether requests may go before those of other clients (a priority below 0)
    ping: float = 15.0  # seconds without an event after which a stream sends a ping
    resume_timeout: float = 60.0  # seconds that a stream waits for its client, where the client asked for it
    grace: float = 10.0  # seconds that running requests have left when the server stops
    idle_unload: float | None = None  # seconds without a request after which a model is unloaded; None: never
    load_wait: float = 60.0  # seconds that a load waits for busy models, where memory is short
    stall: float = 120.0  # seconds without a step, though requests wait, after which /health is 503
    show_paths: bool = False  # whether clients may see where model files lie
    pull: bool | None = None  # whether clients may have models downloaded; None: where only this machine asks

    @property
    def may_pull(self) -> bool:
        """Whether clients may have models downloaded. Behind other names, or for other pages than its own,
        the server is not for this machine alone."""
        alone = self.host in LOOPBACK and not self.allowed_hosts and not self.cors
        return alone if self.pull is None else self.pull
