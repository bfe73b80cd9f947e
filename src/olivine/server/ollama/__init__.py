"""Ollama's API."""

from olivine.server.ollama import chat, embed, generate, models

ENDPOINTS = [*chat.ENDPOINTS, *generate.ENDPOINTS, *embed.ENDPOINTS, *models.ENDPOINTS]
