# Two stages: wheels and a virtualenv are made in the first, the second has only what runs.
#   docker build -t ratelimit-service .
#   docker run -p 8080:8080 -p 8081:8081 -p 6070:6070 -v "$PWD/config:/srv/runtime_data/current/config:ro" ratelimit-service
#   docker run --rm -v "$PWD/config:/rules:ro" ratelimit-service check /rules

# The newest Python of pyproject.toml, for which the lock has wheels on amd64 and arm64. A tag may be moved to another
# image; name yours by its digest, as docs/deploy.md says: --build-arg PYTHON=3.14-slim-trixie@sha256:...
ARG PYTHON=3.14-slim-trixie

FROM python:${PYTHON} AS build
WORKDIR /src

# Every package in the lock's version with the lock's hash, what builds ours too; from here on nothing is downloaded.
# Wheels only: nothing has to be compiled, so nothing that compiles is here.
COPY requirements/image.lock requirements/
RUN python -m pip download --no-cache-dir --no-deps --require-hashes --only-binary :all: -r requirements/image.lock -d /wheels

# First the wheel of ours; then of all wheels those that the service needs to run, while pip itself stays behind; and the
# name of envoyproxy's program, which Envoy Gateway and Istio's sample start in place of the entry point, without a verb.
COPY pyproject.toml README.md LICENSE ./
COPY ratelimit_service ratelimit_service
RUN python -m venv /build \
    && /build/bin/python -m pip install --no-cache-dir --no-index --find-links /wheels hatchling \
    && /build/bin/python -m pip wheel --no-cache-dir --no-index --no-deps --no-build-isolation --wheel-dir /wheels . \
    && python -m venv --without-pip /opt/ratelimit \
    && python -m pip --python /opt/ratelimit/bin/python install --no-cache-dir --no-index --find-links /wheels 'ratelimit-service[regex,tracing]' \
    && printf '#!/bin/sh\nexec /opt/ratelimit/bin/ratelimit serve --as-envoyproxy "$@"\n' > /src/envoyproxy \
    && chmod 755 /src/envoyproxy

FROM python:${PYTHON}
COPY --from=build /opt/ratelimit /opt/ratelimit
COPY --from=build /src/envoyproxy /bin/ratelimit
ENV PATH=/opt/ratelimit/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1

LABEL org.opencontainers.image.title=ratelimit-service org.opencontainers.image.licenses=Apache-2.0
LABEL org.opencontainers.image.version=0.3.0

# Nothing of the image belongs to this user, nothing is written: the root file system may be read-only.
USER 65532:65532
WORKDIR /srv

# HTTP, gRPC, and the operator's pages. Rules are read from /srv/runtime_data/current/config, as envoyproxy's image does;
# there are none in the image, so that a forgotten volume ends at the start instead of with somebody else's rules.
EXPOSE 8080 8081 6070

# At the first address of HOST. Without urllib: it would ask a proxy that the environment names.
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s --retries=3 CMD ["python", "-c", "import http.client, os, sys; host = os.environ.get('HOST', '').split(',')[0].strip(); ask = http.client.HTTPConnection('127.0.0.1' if host in ('', '0.0.0.0', '::') else host, int(os.environ.get('PORT', '8080')), timeout=2); ask.request('GET', '/healthcheck'); sys.exit(ask.getresponse().status != 200)"]

# SIGTERM drains, for DRAIN_SECONDS and then up to DRAIN_TIMEOUT: give `docker stop --time` both and 25 s.
STOPSIGNAL SIGTERM
ENTRYPOINT ["ratelimit"]
CMD ["serve"]
