# kafka-log-compaction with Java, Python, PySpark and compiled kernels, as a user without privileges:
#   docker build -t kafka-log-compaction .
#   docker run --rm -v /backup/kafka-1:/logs kafka-log-compaction compact --log-dir /logs --dry-run
# The base is a tag, which can change. Pin it by the digest that "docker buildx imagetools inspect debian:12-slim" prints:
#   docker build --build-arg BASE=debian:12-slim@sha256:... -t kafka-log-compaction .
ARG BASE=debian:12-slim

# hadolint ignore=DL3006
FROM ${BASE} AS build

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN python3 -m venv /opt/kafka-log-compaction \
    && /opt/kafka-log-compaction/bin/pip install --constraint constraints.txt .

# hadolint ignore=DL3006
FROM ${BASE}

# the same Python at the same path: a virtual environment does not have the standard library
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps python3 tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home --shell /usr/sbin/nologin compaction
COPY --from=build /opt/kafka-log-compaction /opt/kafka-log-compaction
ENV PATH=/opt/kafka-log-compaction/bin:$PATH \
    PYSPARK_PYTHON=/opt/kafka-log-compaction/bin/python \
    NUMBA_CACHE_DIR=/home/compaction/cache
USER 1000:1000
WORKDIR /home/compaction
# compiled kernels; a CPU that is not the build machine's compiles again
RUN mkdir --mode 700 "$NUMBA_CACHE_DIR" && kafka-log-compaction warm-up
ENTRYPOINT ["tini", "--", "kafka-log-compaction"]
CMD ["--help"]
