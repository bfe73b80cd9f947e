"""Anthropic's API."""

from olivine.server.anthropic import messages

ENDPOINTS = [*messages.ENDPOINTS]
