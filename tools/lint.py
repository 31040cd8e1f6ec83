#!/usr/bin/env python3
"""The style check: what CONTRIBUTING.md asks for and a machine can see.

Format (clang-format-14), layer arrows, header homes, names of families, file and function
sizes, header comments, leftovers, headers that compile alone, the image, the commits of a
branch, and clang-tidy. Prints one line per finding; exit status 1 if there is any. `--fast`
leaves out clang-tidy.
"""
import platform
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAYER = {"core": 0, "adapters_store": 1, "server": 2}
# The folders of core, lowest first: one may include those of the lines above its own.
CORE_ORDER = """
base
weights
kern pool tok
gemm
model
delta
fwd
families
engine
task
"""
CORE_LEVEL = {folder: level for level, line in enumerate(CORE_ORDER.split("\n")) for folder in line.split()}
# What one kind of model is called belongs to its family's file.
FAMILIES = {"albert", "bart", "bert", "bloom", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "falcon", "gemma",
            "gemma2", "gemma3", "gpt2", "gpt_neox", "llama", "marian", "mbart", "mistral", "mixtral", "modernbert", "mpt", "mpnet",
            "mt5", "nomic_bert", "olmo", "olmo2", "opt", "pegasus", "phi", "phi3", "qwen2", "qwen3", "roberta", "t5",
            "xlm-roberta"}
FAMILY_HOME = re.compile(r"core/families/")
FAMILY_ELSEWHERE = {
    "core/tok/tok_gguf.c",  # names of tokenizers, which GGUF calls after the first model that had them
}
# A header and where it may be included; tests and benchmarks may include what they test.
HOME = {
    "microhttpd.h": r"server/http/mhd\.[ch]$",
    "gnutls/gnutls.h": r"server/http/(tls|guard)\.c$",
    "gnutls/abstract.h": r"server/http/tls\.c$",
    "gnutls/x509.h": r"server/http/tls\.c$",
    "uv.h": r"server/loop\.c$",
    "openssl/evp.h": r"(core/model/load|core/task/task_chat|adapters_store/ads_hash|server/auth)\.c$",
    "cblas.h": r"core/gemm/.*\.c$",
    "immintrin.h": r"core/kern/kern_.*\.[ch]$",
    "arm_neon.h": r"core/kern/kern_.*\.[ch]$",
    "arm_sve.h": r"core/kern/kern_.*\.[ch]$",
    "check.h": r"tests/.*$",
}
LINES_MAX, FUNCTION_MAX, SUBJECT_MAX = 800, 70, 60
# Longer on purpose; the reason stands beside the name.
LONG_FUNCTIONS: dict[str, str] = {}
LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


def sources():
    out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.c", "*.h"],
                         cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [f for f in out if (ROOT / f).is_file()]


def layer_arrows(name, text):
    mine = LAYER.get(name.split("/")[0])
    for inc in re.findall(r'#include "([^"]+)"', text):
        other = LAYER.get(inc.split("/")[0])
        if mine is not None and other is not None and other > mine:
            yield f"{name}: includes {inc}: arrows go server -> adapters_store -> core"


def core_arrows(name, text):
    if not name.startswith("core/"):
        return
    mine = name.split("/")[1]
    if mine not in CORE_LEVEL:
        yield f"{name}: core/{mine} is not in CORE_ORDER of tools/lint.py"
        return
    for inc in re.findall(r'#include "core/([^"]+)"', text):
        other = inc.split("/")[0]
        if other == mine:
            continue
        if CORE_LEVEL.get(other, len(CORE_LEVEL)) >= CORE_LEVEL[mine]:
            yield f"{name}: includes core/{inc}: core/{mine} stands below it or beside it"


def without_comments(text):
    """The text with comments as blanks; string literals stay."""
    return re.sub(r'/\*.*?\*/|//[^\n]*|("(?:\\.|[^"\\\n])*")',
                  lambda m: m.group(1) or re.sub(r"[^\n]", " ", m.group(0)), text, flags=re.S)


def family_names(name, text):
    if not name.startswith(tuple(LAYER)) or FAMILY_HOME.match(name) or name in FAMILY_ELSEWHERE:
        return
    for i, line in enumerate(without_comments(text).split("\n"), 1):
        for literal in re.findall(r'"((?:\\.|[^"\\])*)"', line):
            if literal in FAMILIES and not line.startswith("#include"):
                yield f'{name}:{i}: "{literal}": only core/families knows a family'


def header_homes(name, text):
    if name.startswith(("tests/", "bench/", "tools/")):
        return
    for inc in re.findall(r"#include <([^>]+)>", text):
        if inc in HOME and not re.search(HOME[inc], name):
            yield f"{name}: {inc} does not belong here"


def lapack_home(name, text):
    """LAPACK has no header here: its symbols are declared where they are called."""
    if name.startswith(("tests/", "bench/", "tools/")) or name == "core/gemm/dense.c":
        return
    for symbol in re.findall(r"\b[sdcz](?:ge|sy|tr|or|po|st)[a-z0-9]{2,4}_(?=\()", without_comments(text)):
        yield f"{name}: {symbol}: LAPACK is called in core/gemm/dense.c only"


def sizes(name, text):
    lines = text.split("\n")
    if len(lines) > LINES_MAX and not name.startswith("tests/"):
        yield f"{name}: {len(lines)} lines, at most {LINES_MAX}"
    start = None
    for i, line in enumerate(lines):
        if line == "{":
            start = i
        elif line.startswith("}") and start is not None:
            head = lines[start - 1]
            func = re.search(r"(\w+)\(", head) or re.search(r"(\w+)\(", lines[start - 2])
            func = func.group(1) if func else head
            if i - start - 1 > FUNCTION_MAX and func not in LONG_FUNCTIONS:
                yield f"{name}:{start}: {func} has {i - start - 1} lines, at most {FUNCTION_MAX}"
            start = None


def comments(name, text):
    if not text.lstrip().startswith("/*"):
        yield f"{name}: no comment at its head"
    for i, line in enumerate(text.split("\n"), 1):
        if LEFTOVER.search(line):
            yield f"{name}:{i}: leftover: {line.strip()[:60]}"
        if line.rstrip() != line or "\t" in line:
            yield f"{name}:{i}: tab or trailing space"


def run(args):
    return subprocess.run(args, cwd=ROOT, capture_output=True, text=True)


def formatted(name):
    if "unicode_data" in name:
        return
    if run(["clang-format-14", "--dry-run", "--Werror", name]).returncode:
        yield f"{name}: not formatted: clang-format-14 -i {name}"


def compiles_alone(name):
    r = run(["gcc", "-std=gnu11", "-D_GNU_SOURCE=", "-I.", "-Wall", "-Wextra", "-fsyntax-only", "-x", "c", name])
    if r.returncode:
        yield f"{name}: does not compile alone: {r.stderr.splitlines()[0]}"


# Off: what fights with deliberate habits of this code, and the analyser's guesses about
# values that functions of other files set or return, which it cannot see (sanitizers and
# fuzzers look at those).
OFF = ("bugprone-easily-swappable-parameters", "bugprone-reserved-identifier", "bugprone-narrowing-conversions",
       "bugprone-implicit-widening-of-multiplication-result", "bugprone-branch-clone",
       "bugprone-assignment-in-if-condition", "bugprone-sizeof-expression", "bugprone-macro-parentheses",
       "bugprone-signed-char-misuse", "bugprone-suspicious-string-compare",
       "clang-analyzer-security.insecureAPI.*", "clang-analyzer-valist.Uninitialized",
       "clang-analyzer-optin.performance.Padding", "clang-analyzer-core.uninitialized.*",
       "clang-analyzer-core.NullDereference", "clang-analyzer-core.CallAndMessage",
       "clang-analyzer-core.NonNullParamChecker", "clang-analyzer-core.UndefinedBinaryOperatorResult")
AVX2 = ["-mavx2", "-mfma", "-mf16c", "-mprfchw"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
# Files that are empty without these flags: what their names have in them, the machine, the flags.
KERNELS = (("kern_amx", "x86_64-linux-gnu", [*AVX512, "-mamx-tile", "-mamx-bf16", "-mamx-int8"]),
           ("kern_avx512bf16", "x86_64-linux-gnu", [*AVX512, "-mavx512bf16"]),
           ("kern_avx512vnni", "x86_64-linux-gnu", [*AVX512, "-mavx512vnni"]),
           ("kern_avx512", "x86_64-linux-gnu", AVX512),
           ("kern_avxvnni", "x86_64-linux-gnu", [*AVX2, "-mavxvnni"]),
           ("kern_avx2", "x86_64-linux-gnu", AVX2),
           ("kern_neon", "aarch64-linux-gnu", ["-march=armv8.2-a+dotprod+bf16"]),
           ("kern_sve", "aarch64-linux-gnu", ["-march=armv8.2-a+sve+bf16", "-msve-vector-bits=256"]))
# The analyzer follows a third of its usual paths through a function: half of a check's time went into the last of them.
DEPTH = [f"--extra-arg={a}" for a in ("-Xclang", "-analyzer-config", "-Xclang", "max-nodes=75000")]
TIDY = ",".join(["-*", "bugprone-*", "clang-analyzer-*", *(f"-{name}" for name in OFF)])


def tidy_machine(name):
    """The flags with which clang-tidy sees what is in a file of kernels, on any machine."""
    for kind, target, flags in KERNELS:
        if kind in name:
            # clang finds the other machine's headers by itself only beside a gcc for that machine.
            other = [] if platform.machine() == target.split("-")[0] else [f"--target={target}", f"-isystem/usr/{target}/include"]
            return other + flags
    return []


def tidy(name):
    r = run(["clang-tidy-14", "--quiet", f"--checks={TIDY}", "--warnings-as-errors=*", *DEPTH, name, "--",
             "-std=gnu11", "-D_GNU_SOURCE=", "-I.", *tidy_machine(name)])
    for line in r.stdout.splitlines():
        if re.search(r"(warning|error):", line):
            yield line.replace(str(ROOT) + "/", "")


def message_faults(commit, message):
    subject, _, body = message.partition("\n")
    if len(subject) > SUBJECT_MAX or not re.match(r"\S[^:]*: \S", subject):
        yield f"commit {commit}: '{subject}': 'area: what changes', at most {SUBJECT_MAX} characters"
    if not body.strip():
        yield f"commit {commit}: '{subject}': no body that says why"


def commits():
    """Of a branch, those that main does not have."""
    out = run(["git", "log", "--no-merges", "--format=%h%n%B%x00", "main..HEAD"]).stdout
    for entry in filter(None, (part.strip("\n") for part in out.split("\0"))):
        yield from message_faults(*entry.split("\n", 1))


def image():
    """The image's user has a number and owns what it writes."""
    text = (ROOT / "Dockerfile").read_text()
    user = re.search(r"^USER (\d+):(\d+)$", text, re.M)
    if not user or user.group(1) == "0":
        yield "Dockerfile: USER must be a number other than 0"
    elif f"install -d -o {user.group(1)} -g {user.group(2)} /store" not in text:
        yield f"Dockerfile: /store does not belong to user {user.group(1)}"
    for path in re.findall(r"^!(\S+)", (ROOT / ".dockerignore").read_text(), re.M):
        if not (ROOT / path).exists():
            yield f".dockerignore: lets in {path}, which does not exist"


def collect(check, names):
    with ThreadPoolExecutor(4) as pool:
        return [line for found in pool.map(lambda n: list(check(n)), names) for line in found]


def main():
    names = sources()
    found = []
    for name in names:
        text = (ROOT / name).read_text(errors="replace")
        for check in (layer_arrows, core_arrows, header_homes, lapack_home, family_names, sizes, comments):
            found += check(name, text)
    found += collect(formatted, names)
    found += collect(compiles_alone, [n for n in names if n.endswith(".h")])
    found += [*image(), *commits()]
    if "--fast" not in sys.argv:
        found += collect(tidy, [n for n in names if n.endswith(".c") and not n.startswith("tests/")])
    print("\n".join(found) if found else f"lint: {len(names)} files, nothing found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
