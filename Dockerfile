# From nothing to the report of the demo, in results/demo/ of this folder:
#   docker build -t lmscaling .
#   docker run --rm --user "$(id -u)" -v "$PWD:/study" lmscaling demo
# For NVIDIA GPUs: --build-arg TORCH=cu130, and run with --gpus all --shm-size 8g.

ARG PYTHON=3.13
FROM python:${PYTHON}-slim

# Triton compiles its launchers when a kernel runs for the first time.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

ARG TORCH=cpu
# The commit that records name: --build-arg COMMIT=$(git rev-parse HEAD)
ARG COMMIT=
COPY . /opt/lmscaling
RUN cd /opt/lmscaling \
    && printf %s "$COMMIT" > git_commit \
    && pip install --no-cache-dir -c constraints.txt \
        --extra-index-url https://download.pytorch.org/whl/${TORCH} . \
    && rm -r /opt/lmscaling

# Any user may run it: caches are where everybody may write.
ENV HOME=/tmp USER=lmscaling XDG_CACHE_HOME=/tmp/.cache MPLCONFIGDIR=/tmp/.cache/matplotlib
WORKDIR /study
ENTRYPOINT ["lmscaling"]
