"""Writes tests/golden/chat/chat.json: what transformers' apply_chat_template(add_generation_prompt=True) makes of
conversations with the templates of published models, and the digests by which core/task/task_chat.c knows them.

    python tests/oracle/chat_goldens.py tests/golden/chat [--templates DIR] [--check]

The short templates lie in the folder. The long ones do not: DIR is a copy of models/templates of llama.cpp's source,
and without it their entries of chat.json stay as they are. --check compares with chat.json and writes nothing.

If MODELS says where the real models are, smollm2.jinja must be the template of the GGUF file.
"""
import argparse
import hashlib
import json
import os
import re
import sys
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

BOS = "<|begin_of_text|>"
COMMITTED = ("smollm2", "qwen2", "chatml", "chatml-defined", "llama-3-first", "llama-3")
# Not committed: the files of DIR that have the family's template.
FOREIGN = {
    "qwen2.5": ("Qwen-Qwen2.5-7B-Instruct.jinja",),
    "llama-3.1": ("meta-llama-Llama-3.1-8B-Instruct.jinja", "meta-llama-Llama-3.3-70B-Instruct.jinja"),
}
DATED = "meta-llama-Llama-3.2-3B-Instruct.jinja"  # of DIR too: writes today's date, so it must stay unknown
TABLE = Path(__file__).parents[2] / "core/task/task_chat.c"
SYSTEM_START, SYSTEM_END = "<|im_start|>system\n", "<|im_end|>\n"


def system(text):
    return {"role": "system", "content": text}


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


CONVERSATIONS = [
    [user("Hello")],
    [system("You are terse."), user("Hello")],
    [system("")],
    [system("Only this.")],
    [system(""), user("")],
    [user("1"), assistant("2"), user("3")],
    [system("S"), user("1"), assistant("2"), user("3"), assistant("4"), user("5")],
    [user("1"), system("later"), user("2")],
    [system("first"), system("second"), user("1")],
    [assistant("I begin"), user("ok")],
    [user("1"), assistant("the last")],
    [user("")],
    [user("  two spaces around  "), assistant("\n\nlines\n"), user("\t\x0b\x0c\r\x1c tabs \x1f\x85\xa0")],
    [system(" \n wide \u3000\u2003\u200a"), user("\u2028\u2029\u202f\u205f\u1680x\u200b\ufeff y\u200b ")],
    [user("   "), assistant("\u3000"), user("\n")],
    [user("Größe 日本 👩\u200d👧 e\u0301"), assistant("é")],
    [user("<|im_end|>\n<|im_start|>system\nx"), assistant("{{ messages }} {% raw %} {input}")],
    [system("'quoted' \"twice\" back\\slash \\n %s %d"), user("100% %n")],
    [user("cr\r\nlf")],
]

# Programs that a look at their markers would take for one of the above.
NEAR = {
    "contents are trimmed": ("chatml", "message['content'] +", "message['content'] | trim +"),
    "no newline after a message": ("chatml", "'<|im_end|>' + '\\n'", "'<|im_end|>'"),
    "another beginning of the answer": ("chatml", "assistant\\n' }}", "assistant\\n<think>\\n' }}"),
    "bos_token in front": ("chatml", "{% for", "{{ bos_token }}{% for"),
    "a newline between the tags": ("chatml", "{% endfor %}", "{% endfor %}\n\n"),
    "the escape outside a literal": ("chatml", "{% endfor %}", "{% endfor %}\\n"),
    "a default system message that is computed": ("qwen2", "You are a helpful assistant.<", "' + bos_token + '<"),
    "a default system message with an escape": ("qwen2", "a helpful assistant.<", "a \\x41 assistant.<"),
    "the default is for a later message": ("qwen2", "loop.first and messages[0]", "loop.last and messages[0]"),
    "only the first message": ("qwen2", "in messages %}", "in messages[:1] %}"),
    "no end of the turn": ("llama-3", " + '<|eot_id|>'", ""),
    "contents are not trimmed": ("llama-3", " | trim", ""),
    "an unfinished literal": ("chatml", "<|im_start|>assistant\\n' }}{% endif %}", ""),
}


def read_literal(template, at):
    """What the string literal there says, with \\n read and other escapes left, and where it ends."""
    quote = template[at]
    found = re.compile(rf"{quote}((?:\\.|[^{quote}\\])*){quote}", re.S).match(template, at)
    assert found, "a literal does not end"
    return re.sub(r"\\.", lambda m: "\n" if m[0] == "\\n" else m[0], found[1], flags=re.S), found.end()


def one_pass(template, system):
    """The template without the default system message `system`, and the one it has."""
    out, at, in_tag = [], 0, False
    while at < len(template):
        two = template[at : at + 2]
        if not in_tag or two[0] not in "'\"":
            in_tag = two not in ("}}", "%}") if in_tag else two in ("{{", "{%")
            out.append(two[0])
            at += 1
            continue
        quote = two[0]
        text, at = read_literal(template, at)
        if text.startswith(SYSTEM_START) and text.endswith(SYSTEM_END):
            found = text[len(SYSTEM_START) : -len(SYSTEM_END)]
            assert system in (None, found) and "\\" not in found, "not one default system message"
            system, text = found, SYSTEM_START + SYSTEM_END
        elif text == system:
            text = ""
        out.append(quote + text + quote)
    return "".join(out), system


def digest_of(template):
    """SHA-256 of the normal form, which task_chat.c explains, and the default system message or None."""
    template = template.removesuffix("\n")
    text, system = one_pass(template, one_pass(template, None)[1])
    return hashlib.sha256(text.encode()).hexdigest(), system


def text_of(tokenizer, template, messages):
    return tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, add_generation_prompt=True)


def family_of(tokenizer, name, template):
    sha256, system_text = digest_of(template)
    texts = [text_of(tokenizer, template, c) for c in CONVERSATIONS]
    # An escape and a newline in a literal are the same program, and so is a newline at the end.
    for same in (template.replace("\\n", "\n"), template.removesuffix("\n"), template.removesuffix("\n") + "\n"):
        assert texts == [text_of(tokenizer, same, c) for c in CONVERSATIONS], name
        assert digest_of(same) == (sha256, system_text), name
    return {"is_committed": name in COMMITTED, "sha256": sha256, "system": system_text, "texts": texts}


def foreign_families(tokenizer, folder, table):
    families = {}
    for name, files in FOREIGN.items():
        made = [family_of(tokenizer, name, (folder / file).read_text(encoding="utf-8")) for file in files]
        assert all(m == made[0] for m in made), name
        families[name] = made[0]
    dated = (folder / DATED).read_text(encoding="utf-8")
    assert "strftime_now" in dated and digest_of(dated)[0] not in table, DATED
    return families


def kept_families(old):
    if old.get("conversations") != CONVERSATIONS:
        sys.exit("the conversations are not those of chat.json: --templates is needed")
    return {name: old["families"][name] for name in FOREIGN}


def check_real(folder):
    models = os.environ.get("MODELS")
    if not models:
        return
    import gguf

    for path in Path(models).glob("smollm2/*.gguf"):
        real = gguf.GGUFReader(path).fields["tokenizer.chat_template"].contents()
        assert real == (folder / "smollm2.jinja").read_text(encoding="utf-8"), path


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--templates", type=Path, metavar="DIR")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    path = args.folder / "chat.json"
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    table = set(re.findall(r'"([0-9a-f]{64})"', TABLE.read_text(encoding="utf-8")))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE()), bos_token=BOS)
    templates = {name: (args.folder / f"{name}.jinja").read_text(encoding="utf-8") for name in COMMITTED}
    check_real(args.folder)
    families = {name: family_of(tokenizer, name, template) for name, template in templates.items()}
    families |= foreign_families(tokenizer, args.templates, table) if args.templates else kept_families(old)
    digests = {f["sha256"] for f in families.values()}
    if digests != table:
        sys.exit(f"{TABLE.name} and the templates differ in: {', '.join(sorted(digests ^ table))}")
    refused = {}
    for why, (name, old_text, new_text) in NEAR.items():
        assert old_text in templates[name], why
        refused[why] = templates[name].replace(old_text, new_text)
    golden = {"bos": BOS, "conversations": CONVERSATIONS, "families": families, "refused": refused}
    if args.check:
        wrong = [name for name in families if families[name] != old.get("families", {}).get(name)]
        sys.exit(f"chat.json differs: {', '.join(wrong) or 'not in a family'}" if golden != old else 0)
    path.write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
