"""The server's description of itself, and requests made of it at random."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from starlette.routing import compile_path

from olivine.llm import load
from olivine.server.app import ENDPOINTS
from olivine.server.models import ServedModel
from olivine.server.openapi import document, printed
from olivine.server.settings import Settings
from oracles.serving import serving

DOCUMENT = Path(__file__).parents[2] / "docs" / "openapi.json"
PHASES = (Phase.explicit, Phase.generate)
# Not the events of all models, which have no end.
schema = schemathesis.openapi.from_dict(document()).exclude(path="/models/events")


@pytest.fixture(scope="module")
def bounded() -> Iterator[str]:
    """A server whose answers are short: a small context, and a deadline for each request."""
    with (
        load("olivine-mini", device="cpu", threads=1, context=64) as llm,
        serving([ServedModel("olivine-mini", llm)], Settings(max_timeout=0.2, pull=False)) as url,
    ):
        yield url


def test_the_document_is_the_servers_own(url: str) -> None:
    told = "run python -m olivine.server.openapi > docs/openapi.json"
    assert json.loads(DOCUMENT.read_text(encoding="utf-8")) == json.loads(printed()), told
    assert httpx.get(f"{url}/openapi.json").json() == document()


def test_all_endpoints_are_described() -> None:
    described = {(method.upper(), path) for path, each in document()["paths"].items() for method in each}
    assert described == {(each.method, compile_path(each.path)[1]) for each in ENDPOINTS}


def check(case: schemathesis.Case, url: str) -> None:
    status = case.call(base_url=url, timeout=240).status_code
    assert status < 500 or status in (HTTPStatus.NOT_IMPLEMENTED, HTTPStatus.GATEWAY_TIMEOUT)


@schema.parametrize()
@settings(
    max_examples=2, phases=PHASES, suppress_health_check=list(HealthCheck), derandomize=True, deadline=None
)
def test_no_request_is_a_server_error(case: schemathesis.Case, bounded: str) -> None:
    check(case, bounded)


@pytest.mark.exhaustive
@schema.parametrize()
@settings(max_examples=400, phases=PHASES, suppress_health_check=list(HealthCheck), deadline=None)
def test_none_of_many_requests_is_a_server_error(case: schemathesis.Case, bounded: str) -> None:
    check(case, bounded)
