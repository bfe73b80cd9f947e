# The server on the CPU, with olivine-mini or a model that you mount:
#   docker build -t olivine .
#   docker run -e OLIVINE_API_KEY=... -p 127.0.0.1:8080:8080 -v "$PWD/models:/models:ro" olivine /models/model.gguf
FROM python:3.13-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml hatch_build.py README.md LICENSE NOTICE ./
COPY native native
COPY src src
COPY tools/mini/CREDITS.txt tools/mini/CREDITS.txt
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.13-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(echo /wheels/olivine-*.whl)[serve,media]" && rm -r /wheels \
    && useradd --create-home --uid 1000 olivine
USER olivine
WORKDIR /home/olivine
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=5s --start-period=5m --start-interval=2s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/health', timeout=4)"]
# Outside of the container everyone may reach the port, so a key is required.
ENTRYPOINT ["/bin/sh", "-c", ": \"${OLIVINE_API_KEY:?is not set. Choose a key for clients: docker run -e OLIVINE_API_KEY=...}\"; exec olivine serve --host 0.0.0.0 --port 8080 \"$@\"", "olivine"]
CMD ["olivine-mini"]
