"""Makes the goldens of the real models: `real.py --minilm FOLDER --smollm2 FILE.gguf --out DIR`.

DIR/minilm.json holds sentence embeddings (mean pooling, then L2), DIR/smollm2.json the logits after a prompt and greedy
tokens, computed from the GGUF weights dequantised to f32.
"""

import argparse
import json
from pathlib import Path

import torch
import transformers

from common import shortest
from tokenizers_oracle import load_tokenizer

TEXTS = [
    "A fast HTTP server written in C.",
    "The cat sat on the mat.",
    "hello",
    "?",
    "Many small adapters share one frozen transformer, and every request chooses its own.",
    "Ein schneller Server für viele Aufgaben, geschrieben in Köln.",
    "Le café est fermé à midi ; revenez à 14 h.",
    "東京は日本の首都です。",
    "Привет, мир! Как дела?",
    "مرحبا بالعالم",
    "emoji 🙂 and 👩‍👩‍👧 in a row",
    "   spaces\tand\nnew lines   ",
    "x = y**2 + 3*z[0] - f(a, b);",
    "3.14159 26535 89793 23846 26433",
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
    "naïve façade — “quoted” … and so on",
    ("What is a low-rank adapter?", "A pair of small matrices that is added to a frozen weight."),
    ("premise: all men are mortal", "hypothesis: Socrates is mortal"),
    ("Größe", "大小"),
    " ".join(["the quick brown fox jumps over the lazy dog"] * 12),
]
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a small village by the sea,",
    "<|im_start|>user\nWhat is 2 + 2?<|im_end|>\n<|im_start|>assistant\n",
    "Die Hauptstadt von Österreich — 日本語 🙂:",
]
GREEDY_TOKENS = 32
SAMPLED_LOGITS = 512


def embed(model, tokenizer, text) -> dict:
    first, second = text if isinstance(text, tuple) else (text, None)
    encoding = tokenizer(first, second, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**encoding).last_hidden_state[0]
    case = {"text": first, "text_pair": second} if second else {"text": first}
    case |= {"tokens": encoding["input_ids"][0].tolist(), "token_types": encoding["token_type_ids"][0].tolist()}
    return case | {"embedding": torch.nn.functional.normalize(hidden.mean(0), dim=0)}


def make_minilm(folder: str) -> tuple:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    return {"kind": "embedding"}, [embed(model, tokenizer, text) for text in TEXTS]


def complete(model, tokenizer, prompt: str, sampled: torch.Tensor) -> dict:
    """The logits after the prompt at the sampled ids, and greedy tokens with the smallest margin that chose one."""
    tokens = tokenizer.encode(prompt).ids
    batch = torch.tensor([tokens])
    with torch.no_grad():  # without a mask, generate() would hide a prompt's <|im_end|>, which is also the padding
        out = model.generate(batch, attention_mask=torch.ones_like(batch), max_new_tokens=GREEDY_TOKENS,
                             do_sample=False, output_logits=True, return_dict_in_generate=True)
    rows = torch.stack([row[0] for row in out.logits])
    best = rows.topk(2).values
    return {"text": prompt, "tokens": tokens, "logits_at_ids": rows[0][sampled], "argmax": int(rows[0].argmax()),
            "max_abs_logit": rows[0].abs().max().item(), "generated": out.sequences[0, len(tokens):].tolist(),
            "least_margin": (best[:, 0] - best[:, 1]).min().item()}


def make_smollm2(file: Path) -> tuple:
    model = transformers.AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name,
                                                              dtype=torch.float32, attn_implementation="eager").eval()
    model.generation_config.eos_token_id = None  # the golden ignores the end of the sequence
    sampled = torch.linspace(0, model.config.vocab_size - 1, SAMPLED_LOGITS).long()
    header = {"kind": "generation", "max_tokens": GREEDY_TOKENS, "ignore_eos": True, "ids": sampled.tolist()}
    tokenizer = load_tokenizer(file)
    return header, [complete(model, tokenizer, prompt, sampled) for prompt in PROMPTS]


def write_real(path: Path, header: dict, cases: list) -> None:
    """One case a line, texts unescaped so that they can be read."""
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    head = json.dumps({**header, "versions": versions})[1:-1]
    rows = [json.dumps({key: shortest(value) for key, value in case.items()}, ensure_ascii=False) for case in cases]
    path.write_text("{" + head + ', "cases": [\n' + ",\n".join(rows) + "\n]}\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minilm", help="the Hugging Face folder of all-MiniLM-L6-v2")
    parser.add_argument("--smollm2", type=Path, help="SmolLM2-135M-Instruct as GGUF")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.minilm:
        write_real(arguments.out / "minilm.json", *make_minilm(arguments.minilm))
    if arguments.smollm2:
        write_real(arguments.out / "smollm2.json", *make_smollm2(arguments.smollm2))


if __name__ == "__main__":
    main()
