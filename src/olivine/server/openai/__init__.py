"""OpenAI's API."""

from olivine.server.openai import chat, completions, embeddings

ENDPOINTS = [*chat.ENDPOINTS, *completions.ENDPOINTS, *embeddings.ENDPOINTS]
