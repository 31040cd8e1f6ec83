"""YAML as docs/openapi.yaml uses it, read with the standard library: block mappings and sequences, flow collections on one
line, plain and quoted scalars of one line. Whatever else a line may be is an error with its number, never a guess.
"""
import re


class Unreadable(ValueError):
    """A line that is not of the subset."""


def scalar(text):
    """A plain scalar, as YAML 1.2's core schema resolves it."""
    if text in ("null", "~", ""):
        return None
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"-?(0|[1-9]\d*)", text):
        return int(text)
    if re.fullmatch(r"-?\d+\.\d+", text):
        return float(text)
    if text[0] in "&*!|>%@`\"'{[" or ": " in text or " #" in text:
        raise Unreadable(f"not a plain scalar: {text}")
    return text


class Flow:
    """A value on one line: {...}, [...], a quoted or a plain scalar."""

    def __init__(self, text):
        self.text, self.at = text, 0

    def peek(self):
        return self.text[self.at:self.at + 1]

    def space(self):
        while self.peek() == " ":
            self.at += 1

    def take(self, mark):
        self.space()
        if self.peek() != mark:
            raise Unreadable(f"expected {mark!r} at {self.text[self.at:][:30]!r}")
        self.at += 1

    def quoted(self):
        m = re.compile(r"'((?:[^']|'')*)'" if self.peek() == "'" else r'"([^"\\]*)"').match(self.text, self.at)
        if not m:
            raise Unreadable(f"a quote without its end, or an escape: {self.text[self.at:][:30]!r}")
        self.at = m.end()
        return m[1].replace("''", "'") if m[0][0] == "'" else m[1]

    def plain(self):
        m = re.compile(r"(?:[^,:{}\[\]]|:(?=[^ ,}\]]))*").match(self.text, self.at)
        self.at = m.end()
        return m[0].strip()

    def mapping(self):
        out = {}
        self.take("{")
        self.space()
        while self.peek() != "}":
            self.space()
            key = self.quoted() if self.peek() in ("'", '"') else self.plain()
            self.take(":")
            if key in out:
                raise Unreadable(f"{key} is there twice")
            out[key] = self.value()
            self.space()
            if self.peek() != "}":
                self.take(",")
        self.take("}")
        return out

    def sequence(self):
        out = []
        self.take("[")
        self.space()
        while self.peek() != "]":
            out.append(self.value())
            self.space()
            if self.peek() != "]":
                self.take(",")
        self.take("]")
        return out

    def value(self):
        self.space()
        if self.peek() == "{":
            return self.mapping()
        if self.peek() == "[":
            return self.sequence()
        if self.peek() in ("'", '"'):
            return self.quoted()
        return scalar(self.plain())


def value_of(text):
    """What stands behind "key:" or "-"."""
    if text[:1] not in ("{", "[", "'", '"'):
        return scalar(text)
    flow = Flow(text)
    out = flow.value()
    if flow.text[flow.at:].strip():
        raise Unreadable(f"more behind a value: {flow.text[flow.at:]!r}")
    return out


KEY = re.compile(r"('(?:[^']|'')*'|[^\s'\"{\[\]},#&*!|>%@`-][^:]*?|\$\w+):(?: +(.*))?$")


class Block:
    def __init__(self, text):
        self.lines = [(i, len(line) - len(line.lstrip(" ")), line.strip()) for i, line in enumerate(text.split("\n"), 1)
                      if line.strip() and not line.lstrip().startswith("#")]
        self.at = 0

    def fail(self, why):
        number, _, line = self.lines[min(self.at, len(self.lines) - 1)]
        raise Unreadable(f"line {number}: {why}: {line}")

    def here(self, indent):
        return self.at < len(self.lines) and self.lines[self.at][1] == indent

    def nested(self, indent):
        """The block below a line of that indent, or null."""
        if self.at < len(self.lines) and self.lines[self.at][1] > indent:
            return self.block(self.lines[self.at][1])
        return None

    def block(self, indent):
        return self.sequence(indent) if self.lines[self.at][2].startswith("- ") else self.mapping(indent)

    def sequence(self, indent):
        out = []
        while self.here(indent) and self.lines[self.at][2].startswith("- "):
            number, _, line = self.lines[self.at]
            rest = line[2:].lstrip(" ")
            if KEY.match(rest) and rest[0] not in "{[":
                self.lines[self.at] = (number, indent + len(line) - len(rest), rest)
                out.append(self.mapping(indent + len(line) - len(rest)))
            else:
                out.append(self.read(rest))
                self.at += 1
        self.end(indent)
        return out

    def read(self, text):
        try:
            return value_of(text)
        except Unreadable as e:
            return self.fail(e)

    def mapping(self, indent):
        out = {}
        while self.here(indent):
            m = KEY.match(self.lines[self.at][2])
            if not m:
                self.fail("expected 'key: value'")
            key = m[1][1:-1].replace("''", "'") if m[1][0] == "'" else m[1]
            if key in out:
                self.fail("the key is there twice")
            if m[2]:
                out[key] = self.read(m[2])
                self.at += 1
            else:
                self.at += 1
                out[key] = self.nested(indent)
        self.end(indent)
        return out

    def end(self, indent):
        if self.at < len(self.lines) and self.lines[self.at][1] > indent:
            self.fail("indented more than what it stands under")


def load(text):
    """The document as dicts, lists, strings, numbers, booleans and None."""
    block = Block(text)
    out = block.block(0)
    if block.at < len(block.lines):
        block.fail("does not belong to what stands before")
    return out
