"""A peer that is a Python library: a child in the interpreter that has it, one JSON object a line each way."""
import json
import subprocess
from pathlib import Path


class Child:
    """`script` of inside/ under `python`. It prints one line when it is ready, then an answer for each line."""

    def __init__(self, python, script, log, *arguments, env=None):
        command = [python, Path(__file__).parent / "inside" / script, *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(log, "wb"), text=True, env=env)
        self.log = Path(log)
        self.ready = self.line()

    def line(self):
        text = self.process.stdout.readline()
        if not text:
            raise RuntimeError(f"{self.process.args[1].name} has ended:\n{self.log.read_text()[-3000:]}")
        return json.loads(text)

    def ask(self, **question):
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return self.line()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(60)
