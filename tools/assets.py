#!/usr/bin/env python3
"""Writes the C file with what the server serves from its own memory: docs/openapi.yaml as JSON, and the page of the API.

Usage: assets.py OPENAPI.yaml DOCS.html > assets.c
"""
import json
import sys
from pathlib import Path

import yamlsubset


def array(name, data):
    rows = (", ".join(str(b) for b in data[i:i + 24]) for i in range(0, len(data), 24))
    return (f"static const unsigned char {name}_bytes[] = {{\n    " + ",\n    ".join(rows) + "};\n"
            f"const struct srv_asset srv_asset_{name} = {{{name}_bytes, sizeof({name}_bytes)}};\n")


def main(openapi, docs):
    spec = json.dumps(yamlsubset.load(Path(openapi).read_text("utf-8")), ensure_ascii=False, separators=(",", ":"))
    print('/* Made by tools/assets.py. */\n#include "server/assets.h"\n')
    print(array("openapi", spec.encode()))
    print(array("docs", Path(docs).read_bytes()))


if __name__ == "__main__":
    main(*sys.argv[1:])
