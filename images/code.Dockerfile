# A model's code on the base of model images: one of the examples, or a folder of yours (images/own.py). Context: the repository, with `out/wheels/WHEELS` made by images/wheels.py.
ARG MODEL=hams.local/hams-model:0.1.0

FROM ${MODEL} AS build
ARG CODE=examples/chain
ARG WHEELS=example-chain
USER 0:0
COPY out/wheels/${WHEELS} /wheels
RUN mkdir /extra; for wheel in /wheels/*.whl; do \
      [ ! -e "$wheel" ] || /opt/hams/bin/python3 -m pip install --no-index --no-deps --no-cache-dir --no-compile --quiet --target /extra "$wheel"; \
    done
COPY ${CODE} /app
RUN /opt/hams/bin/python3 -m compileall -q --invalidation-mode unchecked-hash /extra /app

FROM ${MODEL}
COPY --from=build /extra /opt/hams/lib/python3.11/site-packages
COPY --from=build /app /app
