# Two stages: the first has compilers and headers, the image only the libraries and one program.
# The kernels choose their instruction set at run time, so one image runs on every x86-64
# machine, or on every aarch64 machine. Elsewhere the portable kernels are what is built.
#
#   docker build --build-arg COMMIT=$(git rev-parse --short=12 HEAD) -t peftd .
#   docker run -p 8080:8080 -v /models/minilm:/models/base:ro -v peftd-store:/store peftd
FROM debian:12-slim AS build
ARG COMMIT=unknown
WORKDIR /src
# The packages first: they change less often than the source.
COPY tools/deps.sh tools/deps.sh
RUN tools/deps.sh build
COPY . .
RUN make -j"$(nproc)" build/peftd COMMIT="$COMMIT" && strip build/peftd

FROM debian:12-slim
# The user has a number, so that an orchestrator can see that it is not root; a new volume
# on /store takes over the owner of the folder in the image.
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        libmicrohttpd12 libgnutls30 libopenblas0-pthread libjansson4 libuv1 libpcre2-8-0 libutf8proc2 \
        libarchive13 libssl3 zlib1g \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o 10001 -g 10001 /store && install -d /models
COPY --from=build /src/build/peftd /usr/local/bin/peftd
ARG COMMIT=unknown
LABEL org.opencontainers.image.title="peftd" \
      org.opencontainers.image.description="Many fine-tuned tasks, one model, one batch" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="$COMMIT"
USER 10001:10001
VOLUME ["/store"]
EXPOSE 8080
STOPSIGNAL SIGTERM
# Settings as environment, so that `docker run IMAGE --max-queue 100` and `-e PEFTD_...` both
# work, and `peftd health` asks where the server listens.
ENV PEFTD_LISTEN=0.0.0.0:8080 \
    PEFTD_STORE=/store \
    PEFTD_MODEL=/models/base
# Lives from the first second on; whether it is ready is for GET /readyz.
HEALTHCHECK --interval=30s --timeout=6s --start-period=5s CMD ["peftd", "health"]
ENTRYPOINT ["peftd", "serve"]
