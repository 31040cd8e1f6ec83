"""The eight demo tasks: what each predicts, by which method it is trained, and with which settings."""

import dataclasses

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"


@dataclasses.dataclass(frozen=True)
class Task:
    name: str
    base: str
    source: str  # which maker of examples in data.py
    method: str
    made_with: str
    lr: float
    epochs: int
    batch: int = 32
    labels: tuple = ()
    facet: str = ""  # debtags facet
    language: str = ""  # of the input, for translations
    pooling: str = ""  # of the hidden states, where the method's own files do not tell
    prompt: str = ""  # what the server wraps around the input of a generating task
    max_tokens: int = 32
    train_limit: int = 400  # per label, or in all when there are no single labels
    dev_limit: int = 20
    heldout_limit: int = 60

    @property
    def generates(self):
        return bool(self.prompt)

    @property
    def multi_label(self):
        return self.source == "tags"


ALL = (
    Task(
        name="section", base=MINILM, source="section", method="lora", made_with="peft", lr=1e-3, epochs=3,
        labels=("admin", "database", "devel", "doc", "editors", "fonts", "games", "graphics", "java", "libdevel", "libs",
                "mail", "math", "net", "perl", "python", "science", "sound", "text", "web"),
        train_limit=250,
    ),
    Task(
        name="role", base=MINILM, source="tag", method="houlsby", made_with="adapters", lr=1e-3, epochs=3, batch=16, facet="role",
        labels=("app-data", "data", "debug-symbols", "devel-lib", "documentation", "plugin", "program", "shared-lib"),
        heldout_limit=100,
    ),
    Task(
        name="interface", base=MINILM, source="tags", method="ia3", made_with="peft", lr=1e-2, epochs=3, batch=16, facet="interface",
        labels=("3d", "commandline", "daemon", "graphical", "shell", "text-mode", "web"),
        train_limit=2500, dev_limit=300, heldout_limit=800,
    ),
    Task(
        name="language", base=MINILM, source="tag", method="bitfit", made_with="peftd", lr=4e-3, epochs=3, batch=16,
        facet="implemented-in", pooling="mean",
        labels=("c", "c++", "java", "lisp", "ocaml", "perl", "python", "shell"),
        heldout_limit=100,
    ),
    Task(
        name="purpose", base=MINILM, source="tag", method="diff", made_with="peftd", lr=5e-4, epochs=3, batch=16, facet="use",
        pooling="mean",
        labels=("analysing", "checking", "configuring", "converting", "editing", "gameplaying", "learning", "monitor",
                "organizing", "playing", "searching", "storing", "viewing"),
    ),
    Task(
        name="synopsis", base=SMOLLM2, source="synopsis", method="lora", made_with="peft", lr=1e-3, epochs=1, batch=8,
        prompt="Description: {input}\nSynopsis:\n", train_limit=1600, dev_limit=50, heldout_limit=200,
    ),
    Task(
        name="french", base=SMOLLM2, source="translation", method="pfeiffer", made_with="adapters", lr=1e-3, epochs=1, batch=8,
        language="fr", prompt="French: {input}\nEnglish:\n", train_limit=3000, dev_limit=50, heldout_limit=200,
    ),
    Task(
        name="german", base=SMOLLM2, source="translation", method="prefix", made_with="peft", lr=5e-3, epochs=1, batch=8,
        language="de", prompt="German: {input}\nEnglish:\n", train_limit=2000, dev_limit=50, heldout_limit=200,
    ),
)


def by_name(name):
    return next(task for task in ALL if task.name == name)
