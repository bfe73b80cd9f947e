"""Formats in JSON schemas that say what a text is for and set it no form a grammar could keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Of OpenAPI and pydantic. Other formats that llguidance does not know are refused.
_ANNOTATIONS = frozenset(
    {"binary", "byte", "base64", "base64url", "password", "path", "file-path", "directory-path"}
)
_VALUES = ("const", "default", "enum", "examples")  # what they hold are values, and no schemas
_NAMED = ("properties", "patternProperties", "$defs", "definitions")  # schemas by names of any kind


def without_annotations(schema: Any) -> Any:
    """The schema without such formats."""
    if isinstance(schema, list):
        return [without_annotations(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {}
    for key, value in schema.items():
        if key in _VALUES:
            found[key] = value
        elif key in _NAMED and isinstance(value, Mapping):
            found[key] = {name: without_annotations(each) for name, each in value.items()}
        elif key != "format" or not isinstance(value, str) or value not in _ANNOTATIONS:
            found[key] = without_annotations(value)
    return found
