"""Conversations: messages, templates, thinking, tool calls, grammars."""
