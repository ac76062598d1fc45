# syntax=docker/dockerfile:1
# Two stages: wheels and a virtualenv are made in the first, the second has only what runs.
#   docker build -t ratelimit-service .
#   docker run -p 8080:8080 -p 8081:8081 -p 6070:6070 -v "$PWD/config:/srv/runtime_data/current/config:ro" ratelimit-service
#   docker run --rm -v "$PWD/config:/rules:ro" ratelimit-service check /rules

# The Python that the tests run on.
ARG PYTHON=3.11-slim-bookworm

FROM python:${PYTHON} AS build
WORKDIR /src

# Every package in the lock's version with the lock's hash, what builds ours too; from here on nothing is downloaded.
# Wheels only: nothing has to be compiled, so nothing that compiles is here.
COPY requirements.lock ./
RUN python -m pip download --no-cache-dir --no-deps --require-hashes --only-binary :all: -r requirements.lock -d /wheels

COPY pyproject.toml README.md LICENSE ./
COPY ratelimit_service ratelimit_service
RUN python -m venv /build && /build/bin/python -m pip install --no-cache-dir --no-index --find-links /wheels hatchling
RUN /build/bin/python -m pip wheel --no-cache-dir --no-index --no-deps --no-build-isolation --wheel-dir /wheels .

# Of all wheels, those that the service needs to run; pip itself stays behind.
RUN python -m venv --without-pip /opt/ratelimit
RUN python -m pip --python /opt/ratelimit/bin/python install --no-cache-dir --no-index --find-links /wheels 'ratelimit-service[regex,tracing]'

# The name of upstream's program. Envoy Gateway and Istio's sample start it in place of the entry point, without a verb.
RUN printf '#!/bin/sh\nexec /opt/ratelimit/bin/ratelimit serve "$@"\n' > /src/upstream && chmod 755 /src/upstream

FROM python:${PYTHON}
COPY --from=build /opt/ratelimit /opt/ratelimit
COPY --from=build /src/upstream /bin/ratelimit
ENV PATH=/opt/ratelimit/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1

LABEL org.opencontainers.image.title=ratelimit-service org.opencontainers.image.licenses=Apache-2.0
LABEL org.opencontainers.image.version=0.1.0

# Nothing of the image belongs to this user, nothing is written: the root file system may be read-only.
USER 65532:65532
WORKDIR /srv

# HTTP, gRPC, and the operator's pages. Rules are read from /srv/runtime_data/current/config, as upstream's image does;
# there are none in the image, so that a forgotten volume ends at the start instead of with somebody else's rules.
EXPOSE 8080 8081 6070

# Without urllib: it would ask a proxy that the environment names.
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s --retries=3 CMD ["python", "-c", "import http.client, os, sys; ask = http.client.HTTPConnection('127.0.0.1', int(os.environ.get('PORT', '8080')), timeout=2); ask.request('GET', '/healthcheck'); sys.exit(ask.getresponse().status != 200)"]

# SIGTERM drains, for DRAIN_SECONDS and then up to DRAIN_TIMEOUT: give `docker stop --time` both and 25 s.
STOPSIGNAL SIGTERM
ENTRYPOINT ["ratelimit"]
CMD ["serve"]
