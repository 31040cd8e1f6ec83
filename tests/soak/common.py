"""What the soak scripts share: the server, endless versions of one adapter with known answers, and the count.

The program under test is $PEFTD (without it build/peftd), as in tests/integration.
"""

import array
import hashlib
import json
import math
import random
import re
import struct
import threading
import time
import traceback
from dataclasses import dataclass

from tests.integration.server import Server, adapter_files, golden
from tests.support.peftd import Client

TOLERANCE = 1e-4  # of the largest magnitude in a row, at least of 1: as for the goldens
FAULTS_SHOWN = 20
REPORT_SHOWN = 4000  # characters of the first report
CALL_SECONDS = 120
MIB = 1 << 20
JSON = {"Content-Type": "application/json"}
REPORT = re.compile(r"^.*(?:Sanitizer: |runtime error: |event=internal).*$", re.M)


class Checks:
    """Counts what held and what did not, from any thread; prints the first faults."""

    def __init__(self):
        self.passed = self.failed = 0
        self.lock = threading.Lock()
        self.begin = time.monotonic()

    def expect(self, is_right: bool, fault: str) -> bool:
        """`fault` says what is wrong if it is not right."""
        with self.lock:
            if is_right:
                self.passed += 1
            else:
                self.failed += 1
                if self.failed <= FAULTS_SHOWN:
                    print("FAIL", fault, flush=True)
        return is_right

    def done(self, facts: str) -> int:
        """Prints the facts and the last line; the exit status."""
        if self.failed > FAULTS_SHOWN:
            print(f"and {self.failed - FAULTS_SHOWN} more")
        print(f"{facts}, {time.monotonic() - self.begin:.0f} s")
        print(f"{self.passed} passed, {self.failed} failed", flush=True)
        return 1 if self.failed or not self.passed else 0


class Peftd(Server):
    """The server of the HTTP tests, with what a soak needs. Use as a context; the end is one of the checks."""

    def __init__(self, checks: Checks, base: str, *args):
        self.checks = checks
        super().__init__(base, *args)

    def __exit__(self, *exc):
        status = self.stop()
        self.check_log()
        self.checks.expect(status == 0, f"peftd ended with {status}:\n{self.log_text()[-2000:]}")
        self.close()

    def kill(self):
        """SIGKILL; a store of the caller's stays."""
        self.process.kill()
        self.process.wait()
        self.check_log()
        self.close()

    def check_log(self):
        """No sanitizer, nor the server itself, has found a bug."""
        text = "\n".join(line for line in self.log_text().splitlines() if "event=request" not in line)
        first = REPORT.search(text)
        self.checks.expect(not first, first and "\n".join(dict.fromkeys(REPORT.findall(text))) + "\n"
                           + text[first.start():][:REPORT_SHOWN])

    def is_sanitized(self) -> bool:
        """Its memory is then not comparable with a plain build's."""
        with open(f"/proc/{self.process.pid}/maps", encoding="utf-8") as f:
            return bool(re.search("lib[at]san", f.read()))

    def client(self):
        return Client(self.port)


def run_threads(checks: Checks, functions: list):
    """Runs them at once until all have ended; an exception is a fault."""
    def run(function):
        try:
            function()
        except Exception:  # whatever ends a thread early must not pass for success
            checks.expect(False, traceback.format_exc())

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def content_hash(files: dict) -> str:
    """The version that peftd must give these files."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(name.encode() + b"\0" + struct.pack("<Q", len(files[name])) + files[name])
    return digest.hexdigest()


def read_safetensors(data: bytes) -> tuple:
    """(header, start of the tensors' bytes)."""
    (n,) = struct.unpack_from("<Q", data)
    return json.loads(data[8:8 + n]), 8 + n


def write_safetensors(header: dict, payload: bytes) -> bytes:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + payload


def input_of(case: dict) -> dict:
    return {key: case[key] for key in ("text", "text_pair") if key in case} or \
           {key: case[key] for key in ("tokens", "token_types") if key in case}


def row_fits(expected: list, got) -> bool:
    """Equal up to the tolerance of the goldens."""
    if not isinstance(got, list) or len(got) != len(expected):
        return False
    scale = max(1.0, max(map(abs, expected)))
    return all(isinstance(x, (int, float)) and math.isfinite(x) and abs(x - y) <= TOLERANCE * scale
               for x, y in zip(got, expected))


@dataclass
class Version:
    """One version of a cell, and what makes its answers."""

    name: str
    files: dict
    scale: list
    shift: list

    def logits(self, case: dict) -> list:
        return [x * a + b for x, a, b in zip(case["logits"], self.scale, self.shift)]


class Versions:
    """Endless versions of a classifier by LoRA, each with an answer of its own that the golden tells.

    Every tensor of every version is another one: lora_A times and lora_B divided by the same power of two is the same
    product, exactly, but A of one version with B of another one is not; and each row of the head gets a factor and a
    shift, which the logits get too.
    """

    FILE = "adapter_model.safetensors"

    def __init__(self, cell: str, seed: int):
        self.files = {name: data for name, data in adapter_files(cell).items() if name != "README.md"}  # is not kept
        self.cases = golden(cell)["cases"]
        self.header, self.start = read_safetensors(self.files[self.FILE])
        self.header.pop("__metadata__", None)
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self.names = set()  # of all that were made

    def make(self) -> Version:
        with self.lock:
            power = 2.0 ** self.random.choice([k for k in range(-8, 9) if k])
            n_labels = len(self.cases[0]["logits"])
            scale = [self.random.uniform(0.5, 2) * self.random.choice((-1, 1)) for _ in range(n_labels)]
            shift = [self.random.uniform(-5, 5) for _ in range(n_labels)]
        if not any(name.endswith("bias") for name in self.header):
            shift = [0.0] * n_labels
        data = bytearray(self.files[self.FILE])
        for name, entry in self.header.items():
            begin, end = (self.start + at for at in entry["data_offsets"])
            values = array.array("f", bytes(data[begin:end]))
            data[begin:end] = self.changed(name, values, power, scale, shift).tobytes()
        files = {**self.files, self.FILE: bytes(data)}
        name = content_hash(files)
        self.names.add(name)
        return Version(name, files, scale, shift)

    @staticmethod
    def changed(name: str, values, power: float, scale: list, shift: list):
        if "lora_A" in name or "lora_B" in name:
            factor = power if "lora_A" in name else 1 / power
            return array.array("f", (x * factor for x in values))
        width = len(values) // len(scale)
        if name.endswith("bias"):
            return array.array("f", (x * a + b for x, a, b in zip(values, scale, shift)))
        return array.array("f", (x * scale[i // width] for i, x in enumerate(values)))
