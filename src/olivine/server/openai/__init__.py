"""OpenAI's API."""

from olivine.server.openai import chat, completions, embeddings, responses

ENDPOINTS = [*chat.ENDPOINTS, *completions.ENDPOINTS, *embeddings.ENDPOINTS, *responses.ENDPOINTS]
