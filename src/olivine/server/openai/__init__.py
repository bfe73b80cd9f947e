"""OpenAI's API."""

from olivine.server.openai import audio, chat, completions, embeddings, responses

ENDPOINTS = [
    *chat.ENDPOINTS,
    *completions.ENDPOINTS,
    *embeddings.ENDPOINTS,
    *responses.ENDPOINTS,
    *audio.ENDPOINTS,
]
