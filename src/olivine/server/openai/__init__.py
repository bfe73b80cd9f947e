"""OpenAI's API."""

from olivine.server.openai import chat

ENDPOINTS = [*chat.ENDPOINTS]
