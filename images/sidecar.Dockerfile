# Proxy, frontend and manager of a graph. Context: the repository, with `out/wheels/sidecar` made by images/wheels.py.
ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE} AS build
COPY out/wheels/sidecar /wheels
RUN python3 -m venv /opt/hams
RUN /opt/hams/bin/python3 -m pip install --no-index --no-deps --no-cache-dir --no-compile --quiet /wheels/*.whl
RUN /opt/hams/bin/python3 -m pip uninstall --yes --quiet setuptools pip
RUN find /opt/hams/lib -type d -name tests -prune -exec rm -rf {} +
# The core as machine code, if `make compile` made it of exactly these sources; where it does not load, the sources run.
COPY out/wheels/sidecar/compiled /opt/hams/compiled
RUN if [ -e /opt/hams/compiled/hams_compiled.pth ]; then \
      mv /opt/hams/compiled/hams_compiled.* /opt/hams/lib/python3.11/site-packages/ && \
      if /opt/hams/bin/python3 -c "import os; os.setuid(65532); import hams_protocol.graph as core; assert core.__file__.endswith('.so'), core.__file__"; \
      then echo "core: machine code"; else echo "core: the compilation does not load here, so the sources run" && rm -rf /opt/hams/compiled; fi; fi
# Compiled files that ask no clock: an image sets all times alike, and nothing is compiled at a start.
RUN /opt/hams/bin/python3 -m compileall -q --invalidation-mode unchecked-hash /opt/hams/lib
RUN ! [ -d /opt/hams/compiled ] || /opt/hams/bin/python3 -m compileall -q --invalidation-mode unchecked-hash /opt/hams/compiled

FROM ${BASE}
COPY --from=build /opt/hams /opt/hams
ENV PATH=/opt/hams/bin:/usr/local/bin:/usr/bin:/bin HOME=/tmp USER=hams PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
WORKDIR /tmp
CMD ["python3", "-m", "hams_sidecar.proxy", "--help"]
