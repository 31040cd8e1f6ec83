#!/usr/bin/env python3
"""A stand-in for `peftd serve` that answers from the goldens, to test the parity driver itself.

FAKE_FAULT names one thing to do wrong: value, token, kind, error, missing, upload, batch, exit or kept (no sequence is
put back); or to refuse: refuse (prefix tuning), base; or to die at the start: crash.
"""

import argparse
import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FAULT = os.environ.get("FAKE_FAULT", "")
LEVEL = os.environ.get("FAKE_LEVEL", "avx2")


def read_goldens(model: Path) -> dict:
    """{task: golden} of one base; the base's own cell is the task `base`."""
    goldens = {}
    for path in model.parent.parent.glob("cells/*/golden.json"):
        golden = json.loads(path.read_text(encoding="utf-8"))
        if golden["base"] == model.name:
            goldens["base" if golden["reader"] == "base" else path.parent.name] = golden
    return goldens


def find_case(golden: dict, wanted: dict) -> dict:
    keys = ("text", "text_pair") if "text" in wanted else ("tokens", "token_types")
    return next(case for case in golden["cases"]
                if ("text" in wanted or "text" not in case) and all(case.get(key) == wanted.get(key) for key in keys))


def output_of(kind: str, case: dict) -> dict:
    if kind == "embedding":
        return {"embedding": list(case["embedding"])}
    if kind == "regression":
        return {"value": case["logits"][0]}
    if kind == "generation":
        return {"logits": list(case["logits"]), "tokens": list(case["generated"])}
    return {"logits": list(case["logits"])}


def spoil(response: dict, beside: int) -> dict:
    """One response made wrong in the way that FAULT names."""
    output = response["output"]
    if FAULT == "error":
        return {"error": {"type": "server_error", "code": "internal", "message": "spoilt", "param": None}}
    if FAULT == "kind":
        return {**response, "kind": "span"}
    if FAULT == "missing":
        return {**response, "output": {}}
    if FAULT == "token" and "tokens" in output:
        output["tokens"][-1] += 1
    if FAULT == "value" and response["kind"] == "classification":
        output["logits"][0] += 1e-3
    if FAULT == "batch" and beside and response["kind"] == "classification":
        output["logits"][0] += 1e-6  # one or two units in the last place of f32
    return response


class Handler(BaseHTTPRequestHandler):
    goldens = {}

    def do_GET(self):
        if self.path == "/metrics":
            self.send(200, f"peftd_preemptions_total {0 if FAULT == 'kept' else 3}\n".encode())
        else:
            self.answer(200, {"status": "ready", "cpu_level": LEVEL})

    def do_PUT(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        task = self.path.rsplit("/", 1)[1]
        if FAULT == "refuse" and "prefix" in task:
            self.answer(422, {"error": {"code": "adapter_unsupported", "message": "no such method here"}})
        else:
            self.answer(422 if FAULT == "upload" else 201, {"task": task})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        requests = body["requests"]
        self.answer(200, {"responses": [self.infer(request, len(requests) - 1) for request in requests]})

    def infer(self, request: dict, beside: int) -> dict:
        golden = self.goldens[request["task"]]
        case = find_case(golden, request["input"])
        response = {"task": request["task"], "kind": golden["kind"], "output": output_of(golden["kind"], case)}
        return spoil(response, beside) if FAULT else response

    def answer(self, status: int, content: dict):
        self.send(status, json.dumps(content).encode())

    def send(self, status: int, body: bytes):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["serve"])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--listen", required=True)
    if FAULT == "base":
        sys.exit("peftd serve: config.json: model_type: unknown")
    if FAULT == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    Handler.goldens = read_goldens(parser.parse_known_args()[0].model)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(3 if FAULT == "exit" else 0))
    print(f"listening on http://127.0.0.1:{server.server_port}", file=sys.stderr, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
