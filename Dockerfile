# Tympan in a container:
#   docker build -t tympan .
#   docker run --rm -v "$PWD:/work" tympan transcribe MODEL a.wav
# TORCH_INDEX is the address of the package index that torch comes from; empty takes pip's own. torch's site lists one
# index for CPU builds, which give a small image, and one for each CUDA version:
#   docker build -t tympan:cuda --build-arg TORCH_INDEX=ADDRESS .
# For Ascend, on an image with CANN and Python; the release of torch-npu must match torch's minor version:
#   docker build -t tympan:npu --build-arg BASE=IMAGE --build-arg TORCH=VERSION --build-arg EXTRAS=npu,demo .
# tests/packaging/docker_steps.sh runs these steps without Docker.
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
WORKDIR /src
COPY . .
RUN python3 -m pip install --no-cache-dir build && python3 -m build --outdir /dist

FROM ${BASE}
ARG TORCH=2.13.0
ARG TORCH_INDEX=
ARG EXTRAS=demo
COPY --from=build /dist/*.whl /tmp/
# torch first: an index with CPU builds only has torch and little else.
RUN python3 -m pip install --no-cache-dir "torch==${TORCH}" ${TORCH_INDEX:+--index-url "${TORCH_INDEX}"} \
 && python3 -m pip install --no-cache-dir "$(ls /tmp/tympan-*.whl)[${EXTRAS}]" \
 && rm /tmp/*.whl \
 && useradd --create-home tympan
USER tympan
WORKDIR /work
ENTRYPOINT ["tympan"]
CMD ["--help"]
