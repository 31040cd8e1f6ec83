# Two stages; the kernels choose their instruction set at run time, so one image runs on
# every x86-64 machine. On another architecture the portable kernels are what is built.
#
#   docker build --build-arg COMMIT=$(git rev-parse --short=12 HEAD) -t peftd .
FROM debian:12-slim AS build
ARG COMMIT=unknown
WORKDIR /src
COPY . .
RUN tools/deps.sh build && make -j"$(nproc)" all COMMIT=$COMMIT

FROM debian:12-slim
# The user has a number, so that an orchestrator can see that it is not root; a new volume
# on /store takes over the owner of the folder in the image.
RUN apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        libmicrohttpd12 libgnutls30 libopenblas0-pthread libjansson4 libuv1 libpcre2-8-0 libutf8proc2 \
        libarchive13 libssl3 zlib1g \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o 10001 -g 10001 /store && install -d /models
COPY --from=build /src/build/peftd /usr/local/bin/peftd
USER 10001:10001
VOLUME ["/models", "/store"]
EXPOSE 8080
ENTRYPOINT ["peftd", "serve", "--listen", "0.0.0.0:8080", "--store", "/store"]
CMD ["--model", "/models/base"]
