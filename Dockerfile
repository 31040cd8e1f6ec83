# Two stages; the kernels choose their instruction set at run time, so one image runs on
# every x86-64 machine.
FROM debian:12-slim AS build
WORKDIR /src
COPY . .
RUN tools/deps.sh && make all

FROM debian:12-slim
RUN apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        libmicrohttpd12 libopenblas0-pthread libjansson4 libuv1 libpcre2-8-0 libutf8proc2 \
        libarchive13 libssl3 zlib1g \
    && rm -rf /var/lib/apt/lists/* && useradd --system --create-home peftd
COPY --from=build /src/build/peftd /usr/local/bin/peftd
USER peftd
VOLUME ["/models", "/store"]
EXPOSE 8080
ENTRYPOINT ["peftd", "serve", "--listen", "0.0.0.0:8080", "--store", "/store"]
CMD ["--model", "/models/base"]
