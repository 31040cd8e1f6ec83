"""Request bodies that no client should send: forms and tars for PUT, JSON for POST /v1/infer.

Uploads are (name, body, content type, status, code), calls (name, body, status, code).
"""

import gzip
import io
import json
import tarfile

from tests.integration.server import adapter_files, tar, zstd
from tests.support.peftd import multipart

CELL = "bert-peft-lora"
STEP = 64
MIB = 1 << 20
FORM, TAR, GZIP, ZSTD = "multipart/form-data; boundary=B", "application/x-tar", "application/gzip", "application/zstd"


# ---- forms ---------------------------------------------------------------------------------------


def part(name, content=b"x", more=b""):
    name = name.encode() if isinstance(name, str) else name
    return b'--B\r\nContent-Disposition: form-data; name="f"; filename="' + name + b'"\r\n' + more + b"\r\n" + \
        content + b"\r\n"


def forms():
    """What is no form, and names that no file may have."""
    body, form = multipart(adapter_files(CELL))
    for n in range(0, len(body) - 3, STEP):
        yield f"a form cut at {n}", body[:n], form, 400, "bad_field"
    end = b"--B--\r\n"
    bad = {
        "without a boundary in it": b"x" * 1000,
        "with a part without headers": b"--B\r\n\r\nx\r\n" + end,
        "with a part without a name": b"--B\r\nContent-Disposition: form-data\r\n\r\nx\r\n" + end,
        "with a part in base64": part("a", more=b"Content-Transfer-Encoding: base64\r\n") + end,
        "with headers without end": b"--B\r\n" + b"X: y\r\n" * 100000 + end,
        "with 300 parts": b"".join(part(f"f{n}") for n in range(300)) + end,
        "with two files of one name": part("task.json") + part("task.json") + end,
        "with 100000 boundaries": b"--B\r\n" * 100000,
        "with a line of its own": part("a") + b"--B\rx\r\n",
    }
    no_names = (b".", b"a\0b", b"n" * 513, b"a/", b"/", b"\\")
    not_read = (b"..", b".hidden", b"../..", b"a b", b"%2e%2e", b"a\nb", b"n" * 512, b"\xff\xfe", b"a;b", b"version.json",
                b"../task.json/..", b"caf\xc3\xa9")
    for name, one in bad.items():
        yield f"a form {name}", one, FORM, 400, "bad_field"
    for name in no_names:
        yield f"a file {name[:20]}", part(name) + end, FORM, 400, "bad_field"
    for name in not_read:
        yield f"a file {name[:20]}", part(name) + end, FORM, 422, "adapter_invalid"
    types = ("multipart/form-data", "multipart/form-data; boundary=", f"multipart/form-data; boundary={'b' * 71}",
             'multipart/form-data; boundary="B', "multipart/form-data; boundary=C", "multipart/form-data;;;=;=")
    for content_type in types:
        yield f"a form of {content_type[:60]}", part("a"), content_type, 400, "bad_field"
    yield "a form without parts", end, FORM, 422, "adapter_invalid"
    yield "an upload of a form as JSON", part("a") + end, "application/json", 400, "bad_json"
    for content_type in ("text/html", "multipart/mixed; boundary=B", "x" * 1000, "/"):
        yield f"an upload of {content_type[:40]}", part("a") + end, content_type, 415, "unsupported_media_type"


# ---- tars ----------------------------------------------------------------------------------------


def entry(kind=tarfile.REGTYPE, name="adapter_config.json", target="") -> bytes:
    """A tar of a good adapter and then one more entry."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as t:
        for good, data in adapter_files(CELL).items():
            info = tarfile.TarInfo(good)
            info.size = len(data)
            t.addfile(info, io.BytesIO(data))
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target
        t.addfile(info)
    return out.getvalue()


def zstd_bomb(n_blocks: int) -> bytes:
    """A zstd frame of blocks that each stand for 128 KiB of one byte."""
    size = 128 * 1024
    head = b"\x28\xb5\x2f\xfd\xa0" + (size * n_blocks).to_bytes(4, "little")
    blocks = (((size << 3) | 2 | (i == n_blocks - 1)).to_bytes(3, "little") + b"\0" for i in range(n_blocks))
    return head + b"".join(blocks)


def gzip_bomb(n_mib: int) -> bytes:
    """A gzip of a tar with one file of zeros."""
    out = io.BytesIO()
    info = tarfile.TarInfo("zeros")
    info.size = n_mib * MIB
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as z:
        z.write(info.tobuf())
        for _ in range(n_mib):
            z.write(bytes(MIB))
        z.write(bytes(1024))
    return out.getvalue()


def tars():
    whole = tar(adapter_files(CELL))
    packed = gzip.compress(whole)
    for n in range(0, len(packed) - 8, STEP):
        yield f"a gzip cut at {n}", packed[:n], GZIP, 422, "adapter_invalid"
    for n in range(0, len(whole.rstrip(b"\0")) + 512, 512):
        yield f"a tar cut at block {n // 512}", whole[:n], TAR, 422, "adapter_invalid"
        yield f"a tar cut at {n + 100}", whole[:n + 100], TAR, 422, "adapter_invalid"
    squeezed = zstd(whole)
    for n in range(0, len(squeezed), 1024):
        yield f"a zstd cut at {n}", squeezed[:n], ZSTD, 422, "adapter_invalid"
    entries = {
        "a symbolic link": entry(tarfile.SYMTYPE, "task.json", "/etc/passwd"),
        "a symbolic link to a neighbour": entry(tarfile.SYMTYPE, "task.json", "adapter_config.json"),
        "a hard link": entry(tarfile.LNKTYPE, "task.json", "adapter_config.json"),
        "a character device": entry(tarfile.CHRTYPE, "zero"),
        "a block device": entry(tarfile.BLKTYPE, "sda"),
        "a pipe": entry(tarfile.FIFOTYPE, "pipe"),
        "an absolute path": entry(name="/etc/passwd"),
        "a path upwards": entry(name="../../passwd"),
        "a path upwards inside": entry(name="a/../../passwd"),
        "only dots": entry(name=".."),
        "a name that is too long": entry(name="n" * 513),
        "a name of 100000 bytes": entry(name="n" * 100000),
        "a file twice": entry(),
        "300 files": tar({f"f{n}": b"" for n in range(300)}),
        "5000 folders": folders(5000),
    }
    for name, body in entries.items():
        yield f"a tar with {name}", body, TAR, 400, "bad_field"
    flipped = bytearray(whole)
    flipped[150] ^= 1  # within the first checksum
    damaged = {"a second adapter in a folder": entry(name="more/adapter_config.json"), "nothing": b"", "zeros": bytes(10240), "noise": bytes(range(256)) * 40,
               "a wrong checksum": bytes(flipped), "a gzip in a gzip": gzip.compress(gzip.compress(b"x")),
               "a file that does not follow": huge_entry(MIB),
               "another archive": b"PK\3\4" + bytes(1000), "bzip2": b"BZh91AY&SY" + bytes(1000),
               "no file": tar({}), "only a folder": folders(1)}
    for name, body in damaged.items():
        yield f"a tar of {name}", body, TAR, 422, "adapter_invalid"
    yield "a gzip bomb", gzip_bomb(128), GZIP, 413, "body_too_large"
    yield "a zstd bomb", zstd_bomb(8192), ZSTD, 422, "adapter_invalid"
    yield "a file of 1 TiB", huge_entry(1 << 40), TAR, 413, "body_too_large"


def folders(n: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as t:
        for i in range(n):
            info = tarfile.TarInfo(f"d{i}")
            info.type = tarfile.DIRTYPE
            t.addfile(info)
    return out.getvalue()


def huge_entry(size: int) -> bytes:
    info = tarfile.TarInfo("huge")
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT) + bytes(10240)


# ---- JSON ----------------------------------------------------------------------------------------


def not_json():
    call = b'{"task": "good", "input": "x"}'
    for n in range(len(call)):
        yield f"cut at {n}", call[:n]
    for value in (b"null", b"true", b"7", b'"x"', b"[]", b"[" + call + b"]", b" ", b"\0", b"\xef\xbb\xbf" + call,
                  call + call, call + b"x", call.replace(b"{", b"{//\n"), call.replace(b'"', b"'"),
                  call.replace(b"}", b",}"), call.decode().encode("utf-16")):
        yield repr(value[:30]), value
    for text in (b"\xff", b"\xc3\x28", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\\ud800",
                 b"\\udc00\\ud800", b"\\u12", b"\\x41", b"\n", b"\x01"):
        yield f"text {text!r}", b'{"task": "good", "input": "a' + text + b'"}'
    yield "a name that is not UTF-8", b'{"task": "good", "input": "x", "\xff": 1}'
    yield "a name with a NUL", b'{"task": "good", "input": "x", "\\u0000": 1}'
    for double in (b'"task": "good"', b'"input": "y"', b'"parameters": {"logits": true, "logits": true}'):
        yield f"twice {double!r}", call[:-1] + b", " + double + b", " + double + b"}"
    for number in (b"1e999", b"-1e999", b"9" * 400, b"-" + b"9" * 400, b"NaN", b"Infinity", b"-Infinity", b"0x10",
                   b"01", b"1.", b".5", b"+1", b"1e", b"--1"):
        yield f"number {number[:20]!r}", b'{"task": "good", "input": {"tokens": [' + number + b"]}}"
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}"), (b'[{"text":', b"}]")):
        deep = opening * 10000 + b"1" + closing * 10000
        yield f"{opening!r} 10000 deep", b'{"task": "good", "input": ' + deep + b"}"
        yield f"{opening!r} 10000 deep, not closed", b'{"task": "good", "input": ' + opening * 10000


def wrong_calls(many: int):
    good = {"task": "good", "input": "x"}
    fields = [
        ({}, "missing_field"), ({"task": "good"}, "missing_field"), ({"input": "x"}, "missing_field"),
        ({**good, "task": 7}, "bad_field"), ({**good, "task": None}, "missing_field"), ({**good, "input": 7}, "bad_field"),
        ({**good, "input": []}, "bad_field"), ({**good, "input": {}}, "missing_field"),
        ({**good, "input": {"text": 7}}, "bad_field"), ({**good, "input": {"txt": "x"}}, "unknown_field"),
        ({**good, "extra": 1}, "unknown_field"), ({**good, "\n\r\u2028": 1}, "unknown_field"),
        ({**good, "k" * 100000: 1}, "unknown_field"), ({**good, "inputs": ["x"]}, "bad_field"),
        ({"task": "good", "inputs": []}, "bad_field"), ({"task": "good", "inputs": "x"}, "bad_field"),
        ({"task": "good", "inputs": [[]]}, "bad_field"), ({**good, "tasks": ["good"]}, "bad_field"),
        ({"tasks": [], "input": "x"}, "bad_field"), ({"requests": []}, "bad_field"), ({"requests": {}}, "bad_field"),
        ({"requests": [good], "task": "good"}, "unknown_field"), ({**good, "stream": "yes"}, "bad_field"),
        ({"task": "good", "inputs": ["x"] * many}, "bad_field"),
        ({"tasks": ["good"] * many, "input": "x"}, "bad_field"), ({"requests": [good] * (many // 10)}, "bad_field"),
        ({"tasks": ["good"] * 1000, "inputs": ["x"] * 1000}, "bad_field"),
        ({**{str(n): 0 for n in range(100000)}, **good}, "unknown_field"),
        ({**good, "input": {"tokens": "1"}}, "bad_field"), ({**good, "input": {"tokens": [1.5]}}, "bad_field"),
        ({**good, "input": {"tokens": [-1]}}, "bad_field"), ({**good, "input": {"tokens": [1 << 31]}}, "bad_field"),
        ({**good, "input": {"tokens": [(1 << 63) - 1]}}, "bad_field"),
        ({**good, "input": {"tokens": [1000000]}}, "bad_field"),
        ({**good, "input": {"tokens": []}}, "bad_field"),
        ({**good, "input": {"tokens": [1, 2], "token_types": [0]}}, "bad_field"),
        ({**good, "input": {"tokens": [1], "token_types": [9]}}, "bad_field"),
    ]
    for name in ("", ".", "..", "../good", "/etc/passwd", "good/x", "good\0", "a b", "n" * 129, "good@", "good@xyz",
                 "@", "good@" + "0" * 65, "good@@" + "0" * 8, "\u00fc", "good@../../x"):
        fields.append(({**good, "task": name}, "bad_field"))
    for key, value in (("timeout", 0), ("timeout", 1e300), ("timeout", "1"), ("max_tokens", 10 ** 18),
                       ("max_tokens", 0), ("n", 65), ("n", -1), ("seed", -1), ("top_k", 1.5), ("stop", ["x"] * 17),
                       ("stop", ""), ("stop", "x" * 257), ("stop", 7), ("temperature", 1e308), ("threshold", 2),
                       ("logits", 1), ("priority", 10 ** 18), ("top_p", 0), ("num_beams", 4)):
        fields.append(({**good, "parameters": {key: value}}, "bad_field"))
    fields += [({**good, "parameters": []}, "bad_field"), ({**good, "parameters": {"x": 1}}, "unknown_field")]
    for call, code in fields:
        yield json.dumps(call)[:70], json.dumps(call).encode(), 400, code


def calls(many: int):
    """`many` is how many inputs a call has that has far too many."""
    for name, body in not_json():
        yield f"not JSON: {name}", body, 400, "bad_json"
    yield from wrong_calls(many)
    good = {"task": "good", "input": "x"}
    for call, status, code in (
            ({**good, "task": "nope"}, 404, "unknown_task"),
            ({**good, "task": "good@" + "0" * 64}, 404, "unknown_version"),
            ({**good, "task": "base@" + "0" * 8}, 404, "unknown_version"),
            ({**good, "input": "word " * 1000}, 422, "input_too_long"),
            ({**good, "input": "x " * (3 * many)}, 422, "input_too_long"),
            ({**good, "input": "\u732b" * many}, 422, "input_too_long"),
            ({**good, "input": {"tokens": [5] * many}}, 422, "input_too_long"),
            ({**good, "input": {"messages": [{"role": "user", "content": "x"}]}}, 422, "wrong_kind"),
            ({**good, "input": {"question": "x", "context": "y"}}, 422, "wrong_kind"),
            ({**good, "input": {"text": "x", "choices": ["a", "b"]}}, 422, "wrong_kind"),
            ({**good, "stream": True}, 422, "wrong_kind"),
            ({**good, "input": "x" * (9 * MIB)}, 413, "body_too_large")):
        yield json.dumps(call)[:70], json.dumps(call, ensure_ascii=False).encode(), status, code


def odd_calls(many: int):
    """Calls that are odd, and right: each is answered."""
    good = {"task": "good", "input": "x"}
    for call in ({**good, "input": "x" * (7 * many)}, {**good, "input": "\u0301" * many}, {**good, "input": "a\0b"},
                 {**good, "input": ""}, {**good, "input": "\U0010ffff\ufffe\u202e"}, {**good, "parameters": None},
                 {**good, "input": "word " * 1000, "parameters": {"truncate": True}},
                 {"task": "good", "inputs": [""] * 1024},
                 {"requests": [7, [], None, {}, {"task": "nope", "input": "x"}, {"requests": []}, good]}):
        yield json.dumps(call).encode()
