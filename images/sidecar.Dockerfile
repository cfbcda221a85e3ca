# Proxy, frontend and manager of a graph. Context: the repository, with `out/wheels/sidecar` made by images/wheels.py.
ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE} AS build
COPY out/wheels/sidecar /wheels
RUN python3 -m venv /opt/hams
RUN /opt/hams/bin/python3 -m pip install --no-index --no-deps --no-cache-dir --no-compile --quiet /wheels/*.whl
RUN /opt/hams/bin/python3 -m pip uninstall --yes --quiet setuptools pip
RUN find /opt/hams/lib -type d -name tests -prune -exec rm -rf {} +
# Compiled files that ask no clock: an image sets all times alike, and nothing is compiled at a start.
RUN /opt/hams/bin/python3 -m compileall -q --invalidation-mode unchecked-hash /opt/hams/lib

FROM ${BASE}
COPY --from=build /opt/hams /opt/hams
ENV PATH=/opt/hams/bin:/usr/local/bin:/usr/bin:/bin HOME=/tmp USER=hams PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
WORKDIR /tmp
CMD ["python3", "-m", "hams_sidecar.proxy", "--help"]
