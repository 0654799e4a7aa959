# A server for bundles, with the native engine and without torch. Build: docker build -t tfexport .
# Run: docker run --rm -p 8000:8000 tfexport, which serves the demo model; or your own in its place:
#      docker run --rm -p 8000:8000 -v "$PWD/my.bundle:/models/my.bundle:ro" tfexport /models/my.bundle
FROM python:3.13-slim AS build
WORKDIR /source
RUN apt-get update && apt-get install --yes --no-install-recommends g++
# Of the repository only what the wheels are made of. The version comes from tags, which are not here.
ARG VERSION=0.1.0.dev0
ENV SETUPTOOLS_SCM_PRETEND_VERSION=$VERSION
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY tfexport tfexport
COPY native native
RUN python -m venv /opt/tfexport \
    && /opt/tfexport/bin/pip install --no-cache-dir --constraint constraints.txt \
        '.[serve,detect,tokenizers,sentencepiece]' ./native

FROM python:3.13-slim
COPY --from=build /opt/tfexport /opt/tfexport
COPY examples/de-en.bundle /models/de-en.bundle
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin tfexport
USER 10001
ENV PATH=/opt/tfexport/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
EXPOSE 8000
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health/ready', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["tfexport", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["/models/de-en.bundle"]
