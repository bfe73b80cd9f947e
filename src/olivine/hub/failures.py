"""The errors of huggingface_hub in words that say what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from olivine.errors import DownloadError, OlivineError
from olivine.hub.names import nearest


@contextmanager
def telling(repo: str) -> Iterator[None]:
    """What goes wrong while something is asked of a repository is a `DownloadError`."""
    try:
        yield
    except OlivineError:
        raise
    except Exception as error:
        raise told(repo, error) from error


def told(repo: str, error: Exception) -> DownloadError:
    """The error that users see. huggingface_hub's own are told apart by their class and status."""
    from huggingface_hub import errors

    from olivine.hub.remote import endpoint

    host = endpoint().partition("://")[2]
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.GatedRepoError):
        return DownloadError(_gated(repo), code="gated")
    if isinstance(error, errors.RepositoryNotFoundError | errors.HFValidationError):
        near = nearest(repo.rpartition("/")[2].lower())
        known = f" Names that are known: {', '.join(near)}" if near else ""
        return DownloadError(
            f"there is no repository {repo} on {host}, or it is private: see https://huggingface.co/models "
            f"for its name; for a private one, log in (hf auth login, or HF_TOKEN).{known}",
            code="not_found",
        )
    if isinstance(error, errors.EntryNotFoundError | errors.RevisionNotFoundError):
        return DownloadError(f"{repo} changed on {host} meanwhile: try again", code="not_found")
    if status == 429:
        return DownloadError(_limited(host, error), code="rate_limited")
    if status is not None:
        return DownloadError(f"{host} answers {status} for {repo}: {_first_line(error)}", code="unreachable")
    if isinstance(error, errors.OfflineModeIsEnabled):
        return DownloadError(f"{repo}: HF_HUB_OFFLINE forbids downloads: unset it", code="offline")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DownloadError(
            f"the disk is full, in the middle of {repo}: make room and pull again, which goes on with what "
            "is there; or set HF_HUB_CACHE to a folder on another disk",
            code="disk_full",
        )
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return DownloadError(f"{error.filename or 'the cache'}: {error.strerror}: HF_HUB_CACHE names another")
    return DownloadError(
        f"{host} cannot be reached, or the connection broke: {_first_line(error)}. What is here stays: try "
        "again. (HF_ENDPOINT names a mirror, HTTPS_PROXY a proxy)",
        code="unreachable",
    )


def _gated(repo: str) -> str:
    from huggingface_hub import get_token

    page = f"https://huggingface.co/{repo}"
    if get_token():
        return (
            f"your token has no access to {repo} yet: accept its license at {page}, with the same account. "
            "(A fine-grained token also needs the right to read gated repositories)"
        )
    return (
        f"{repo} asks you to accept its license first: log in at {page} and accept it, make a token at "
        "https://huggingface.co/settings/tokens, and give it by HF_TOKEN=… or hf auth login"
    )


def _limited(host: str, error: Exception) -> str:
    headers = getattr(getattr(error, "response", None), "headers", {})
    after = headers.get("Retry-After") or headers.get("retry-after")
    when = f"in {after} seconds" if after and str(after).isdecimal() else "in some minutes"
    return f"{host} limits how often it is asked: try again {when}. A token raises the limit (HF_TOKEN)"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
