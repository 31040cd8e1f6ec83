#!/usr/bin/env python3
"""Shows what peftd is for: uploads trained tasks of several methods to two running servers, sends calls that mix all of
them, streams a generation, and says how to go on. Standard library only; see run.sh."""

import argparse
import json
import textwrap
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path

HERE = Path(__file__).resolve().parent
SECONDS = 120


def call(method, url, body=None, content_type="application/json"):
    request = urllib.request.Request(url, body, {"Content-Type": content_type} if body else {}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{method} {url}: {error.code} {error.read().decode()}") from error


def upload(server, folder):
    """PUT /v1/adapters/NAME, a multipart form with each file as a part."""
    boundary, body = uuid.uuid4().hex, b""
    for file in sorted(folder.iterdir()):
        body += (f'--{boundary}\r\nContent-Disposition: form-data; name="{file.name}"; filename="{file.name}"\r\n'
                 "Content-Type: application/octet-stream\r\n\r\n").encode() + file.read_bytes() + b"\r\n"
    body += f"--{boundary}--\r\n".encode()
    return call("PUT", f"{server}/v1/adapters/{folder.name}", body, f"multipart/form-data; boundary={boundary}")


def is_generative(folder):
    task = folder / "task.json"
    return task.exists() and "prompt" in json.loads(task.read_text())


def heading(text):
    print(f"\n\033[1m{text}\033[0m")


def show_upload(server, folder):
    a = upload(server, folder)
    operations = ", ".join(f"{line['op']} x{line['count']}" for line in a["program"])
    print(f"  {a['task']:<10} {a['method']:<9} {a['kind']:<15} {a['bytes_stored'] / 1000:7.0f} kB  "
          f"{a['version'][:8]}  {operations}")


def answer_text(output):
    if "text" in output:
        return output["text"].strip()
    if "labels" in output:
        best = ", ".join(output["labels"]) or "(none)"
        return best
    return f"{output['label']} ({output['score']:.0%})"


def show_answers(items, responses):
    task = None
    for (name, example), response in zip(items, responses, strict=True):
        if name != task:
            print(f"  {name}")
            task = name
        expected = example["expected"]
        expected = ", ".join(expected) if isinstance(expected, list) else expected
        given = answer_text(response["output"]) if "output" in response else response["error"]["message"]
        print(f"    {textwrap.shorten(example['title'] + ': ' + example['input'], 84, placeholder=' …')}")
        print(f"      -> {textwrap.shorten(given, 96, placeholder=' …')}   [Debian: "
              f"{textwrap.shorten(expected, 96, placeholder=' …')}]")


def mixed_call(server, names, examples, count):
    """One POST /v1/infer with inputs of every task of this server."""
    items = [(name, example) for name in names for example in examples.get(name, [])[:count]]
    requests = [{"task": name, "input": example["input"]} for name, example in items]
    begin = time.monotonic()
    answer = call("POST", f"{server}/v1/infer", json.dumps({"requests": requests}).encode())
    seconds = time.monotonic() - begin
    print(f"  POST /v1/infer  {{\"requests\": [{json.dumps(requests[0], ensure_ascii=False)[:88]}…}}, …]}}")
    print(f"  {len(items)} inputs of {len(names)} tasks in one call: {seconds * 1000:.0f} ms\n")
    show_answers(items, answer["responses"])


def stream(server, name, example):
    body = {"task": name, "input": example["input"], "stream": True}
    print(f"  POST /v1/infer  {json.dumps(body, ensure_ascii=False)[:100]}…")
    request = urllib.request.Request(f"{server}/v1/infer", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    print("  ", end="")
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "delta" in event:
                print(event["delta"], end="", flush=True)
            else:
                print(f"\n  {event['usage']['completion_tokens']} tokens, {event['output']['finish_reason']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minilm", required=True, help="address of the server with MiniLM")
    parser.add_argument("--smollm2", required=True, help="address of the server with SmolLM2")
    args = parser.parse_args()
    examples = json.loads((HERE / "examples.json").read_text(encoding="utf-8"))
    folders = sorted(f for f in (HERE / "adapters").iterdir() if f.is_dir())
    tasks = {args.minilm: [f for f in folders if not is_generative(f)],
             args.smollm2: [f for f in folders if is_generative(f)]}

    for server, base in ((args.minilm, "MiniLM, an encoder"), (args.smollm2, "SmolLM2, a decoder")):
        heading(f"Tasks on {base}, uploaded with PUT {server}/v1/adapters/NAME")
        for folder in tasks[server]:
            show_upload(server, folder)
    heading("Every MiniLM task in one batch, whatever its method")
    mixed_call(args.minilm, [f.name for f in tasks[args.minilm]], examples, 2)
    heading("Every SmolLM2 task in one batch")
    mixed_call(args.smollm2, [f.name for f in tasks[args.smollm2]], examples, 2)
    heading("One generation, streamed")
    first = tasks[args.smollm2][-1].name
    stream(args.smollm2, first, examples[first][-1])
    heading("Both servers stay up. Go on:")
    question = json.dumps({"task": tasks[args.minilm][-1].name, "input": "a fast HTTP server"})
    print(f"  curl {args.minilm}/v1/infer -d '{question}'\n"
          f"  curl {args.minilm}/v1/adapters\n"
          f"  curl {args.smollm2}/metrics\n"
          f"  demo/run.sh stop\n"
          f"How the tasks were trained and how good they are: demo/README.md; every route: docs/api.md")


if __name__ == "__main__":
    main()
