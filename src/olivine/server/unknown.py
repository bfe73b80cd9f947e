"""What is said to those who ask for a path, or for a method of a path, that is not here."""

from __future__ import annotations

from starlette.exceptions import HTTPException

from olivine.server.errors import ApiError

_COMPLETIONS = "llama.cpp's own completions are not here: use /v1/completions"
_RANKING = "models for ranking are not run: compare texts by /v1/embeddings"
_TEXT_ONLY = "answers are text: images and sounds are understood, and not made"
# Endpoints of other servers, which clients of theirs ask for.
_ELSEWHERE = {
    "/completion": _COMPLETIONS,
    "/infill": f"{_COMPLETIONS} with a suffix",
    "/embedding": "llama.cpp's own embeddings are not here: use /v1/embeddings",
    "/rerank": _RANKING,
    "/reranking": _RANKING,
    "/score": _RANKING,
    "/audio/speech": _TEXT_ONLY,
    "/images/generations": _TEXT_ONLY,
}
_FINAL = {"x-should-retry": "false"}  # OpenAI's clients would ask again after a status of 500 and more


def unknown(method: str, path: str, error: HTTPException) -> ApiError:
    """The error of a request that no endpoint takes."""
    headers = dict(error.headers or {})
    if error.status_code == 405:
        message = f"{path[:200]} takes {headers.get('Allow', 'another method')}, and not {method[:20]}"
        return ApiError(405, message, code="method_not_allowed", headers=headers)
    plain = path.removeprefix("/v1")
    if plain in _ELSEWHERE:
        return ApiError(501, _ELSEWHERE[plain], code="not_implemented", headers=_FINAL)
    if plain.startswith("/responses/"):
        message = "this server keeps no responses: there are none to be had later"
        return ApiError(404, message, code="not_found", headers=_FINAL)
    message = (
        f"there is no {path[:200]} here: the APIs of OpenAI and Anthropic are under /v1, that of Ollama is "
        "under /api"
    )
    return ApiError(error.status_code, message, code="not_found", headers=headers)
