"""The HTTP server: OpenAI's, Anthropic's and Ollama's APIs over one or several models.

It translates: what a request asks for becomes options of `LLM`, and what comes back is written in the words
of the API that was asked. Everything else (queues, deadlines, fairness, usage) is the engine's.

| file | |
| --- | --- |
| `app.py` | the ASGI application: which endpoints there are |
| `endpoint.py` | an endpoint: from an HTTP request to a handler, and from its result to a response |
| `reading.py` | reads the bodies of requests, in bounded time and memory |
| `body.py` | bodies of requests: unknown fields, limits |
| `answer.py` | outputs of a model on their way to a client, streamed or whole |
| `replay.py` | streams that can be taken up again after a broken connection |
| `running.py` | answers under way: ending their thought, or them, from another connection |
| `parts.py`, `events.py` | what those APIs share whose answers are lists of blocks |
| `prompting.py` | what several APIs ask about a prompt |
| `errors.py` | errors in each API's shape |
| `models.py` | the models that are served: loaded and unloaded as they are needed |
| `served.py`, `sources.py`, `loader.py` | one of them; where they are found; how they are loaded |
| `facts.py` | what a model's files say about it |
| `status.py`, `metrics.py` | health, models, metrics |
| `openapi.py` | the description of all endpoints, from the models of their bodies |
| `settings.py` | what the operator chose |
| `log.py` | a line in the log for each request |
| `security.py` | who may use the server: API keys, names, web pages |
| `connections.py` | how many connections there are, and how long they may be idle |
| `run.py` | the process: sockets, uvicorn, the end |
| `tokens.py` | tokenizer and template over HTTP |
| `openai/`, `anthropic/`, `ollama/` | the APIs |
"""
