#!/usr/bin/env python3
"""Build the training and held-out files of every demo task from Debian's own package data.

Reads the Packages index and the English, German and French Translation files of one Debian suite and writes, for each task,
DIR/<task>.jsonl with lines {"package", "split", "input", "target"}, and DIR/manifest.json, which says from what they were made.
Needs only Python and apt. Every choice is made by a hash of a name, so the same indexes always give the same files.
"""

import argparse
import collections
import glob
import hashlib
import json
import os
import re
import subprocess

import tasks

HELDOUT_PERCENT = 15
DEV_PERCENT = 5
MAX_PER_GROUP = 2
INPUT_WORDS = 48
SYNOPSIS_WORDS = range(12, 61)
TRANSLATION_WORDS = range(4, 17)


def fetch_lists(folder):
    """Have apt download the indexes, in all three languages, into a folder of our own; the system's are not touched."""
    lists = os.path.join(folder, "lists")
    os.makedirs(os.path.join(lists, "partial"), exist_ok=True)
    options = {
        "Dir::State::Lists": lists,
        "Dir::Cache": folder,
        "Acquire::Languages": "en,de,fr",
        "APT::Sandbox::User": "root",
    }
    command = ["apt-get", "update", "-q"]
    for key, value in options.items():
        command += ["-o", f"{key}={value}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return lists


def read_index(path):
    """The text of an index file, whatever apt compressed it with."""
    output = subprocess.run(["/usr/lib/apt/apt-helper", "cat-file", path], check=True, capture_output=True).stdout
    return output.decode("utf-8")


def stanzas(text):
    """Yield each stanza of a Debian control file as a dict; the lines of a folded field stay separate lines."""
    for block in text.split("\n\n"):
        fields, key = {}, None
        for line in block.splitlines():
            if line.startswith(" "):
                fields[key] += "\n" + line[1:]
            else:
                key, _, value = line.partition(":")
                fields[key] = value.strip()
        if fields:
            yield fields


class Indexes:
    """The parsed indexes of one suite, and a record of which files they were."""

    def __init__(self, lists, suite):
        self._prefix = os.path.join(lists, f"*_debian_dists_{suite}_")
        self.files = {}
        self.packages = list(stanzas(self._read("main_binary-amd64_Packages")))
        self.descriptions = {language: self._descriptions(language) for language in ("en", "de", "fr")}

    def _read(self, name):
        paths = glob.glob(self._prefix + name) + glob.glob(self._prefix + name + ".*")
        if len(paths) != 1:
            raise SystemExit(f"expected one {name} index, found {len(paths)}")
        text = read_index(paths[0])
        self.files[name] = hashlib.sha256(text.encode()).hexdigest()
        return text

    def _descriptions(self, language):
        """Description by the MD5 of the English one, which is what ties a translation to a package."""
        field = f"Description-{language}"
        found = stanzas(self._read(f"main_i18n_Translation-{language}"))
        return {entry["Description-md5"]: split_description(entry[field]) for entry in found if field in entry}


def split_description(text):
    """A description as (synopsis, long text on one line)."""
    synopsis, _, body = text.partition("\n")
    lines = ["" if line.strip() == "." else line.strip() for line in body.split("\n")]
    return squeeze(synopsis), squeeze(" ".join(lines))


def squeeze(text):
    return " ".join(text.split())


def digest(text):
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def group_of(package):
    """Packages that may share sentences: one source, all its versions (llvm-toolchain-14 and -15 are one group)."""
    source = package.get("Source", package["Package"]).split(" ")[0]
    return re.sub(r"[\d.]+", "", source).strip("-")


def split_of(group):
    bucket = digest("split " + group) % 100
    if bucket < HELDOUT_PERCENT:
        return "heldout"
    return "dev" if bucket < HELDOUT_PERCENT + DEV_PERCENT else "train"


def tags_of(package, facet):
    values = re.findall(rf"(?:^|[\s,]){facet}::([^\s,]+)", package.get("Tag", ""))
    return [value for value in values if value != "TODO"]


def shorten(text, words):
    return " ".join(text.split()[:words])


def classifier_input(index, package):
    synopsis, body = index.descriptions["en"][package["Description-md5"]]
    return shorten(f"{synopsis}. {body}", INPUT_WORDS)


def section_example(index, package, task):
    section = package["Section"].split("/")[-1]
    return (classifier_input(index, package), section) if section in task.labels else None


def single_tag_example(index, package, task):
    found = tags_of(package, task.facet)
    if len(found) != 1 or found[0] not in task.labels:
        return None
    return classifier_input(index, package), found[0]


def multi_tag_example(index, package, task):
    found = sorted(set(tags_of(package, task.facet)) & set(task.labels))
    return (classifier_input(index, package), found) if found else None


def synopsis_example(index, package, task):
    synopsis, body = index.descriptions["en"][package["Description-md5"]]
    return (body, synopsis) if len(body.split()) in SYNOPSIS_WORDS else None


def translation_example(index, package, task):
    """The synopsis in a foreign language, and in English. An untranslated one is no example."""
    key = package["Description-md5"]
    if key not in index.descriptions[task.language]:
        return None
    foreign, english = index.descriptions[task.language][key][0], index.descriptions["en"][key][0]
    return (foreign, english) if len(foreign.split()) in TRANSLATION_WORDS and foreign != english else None


EXAMPLE_OF = {
    "section": section_example,
    "tag": single_tag_example,
    "tags": multi_tag_example,
    "synopsis": synopsis_example,
    "translation": translation_example,
}


def fingerprint(text):
    """Equal for texts that differ only in numbers, case and punctuation."""
    return re.sub(r"[\W\d_]+", " ", text.lower()).strip()


def candidates(index, task):
    """Every usable example of a task, in an order that depends on the package names only."""
    make = EXAMPLE_OF[task.source]
    for package in sorted(index.packages, key=lambda package: digest(package["Package"])):
        if package["Description-md5"] not in index.descriptions["en"]:
            continue
        pair = make(index, package, task)
        if pair:
            group = group_of(package)
            example = {"package": package["Package"], "split": split_of(group), "input": pair[0], "target": pair[1]}
            yield group, example


def select(index, task):
    """Apply the limits per group and per label, and drop texts already taken: the held-out ones choose first."""
    order = {"heldout": 0, "dev": 1, "train": 2}
    limit = {"heldout": task.heldout_limit, "dev": task.dev_limit, "train": task.train_limit}
    seen, per_group, per_label, chosen = set(), collections.Counter(), collections.Counter(), []
    for group, example in sorted(candidates(index, task), key=lambda item: order[item[1]["split"]]):
        label = example["target"] if task.source in ("section", "tag") else ""
        split, text = example["split"], fingerprint(example["input"])
        if text in seen or per_group[group, label] == MAX_PER_GROUP or per_label[split, label] == limit[split]:
            continue
        seen.add(text)
        per_group[group, label] += 1
        per_label[split, label] += 1
        chosen.append(example)
    return chosen


def write_lines(path, examples):
    with open(path, "w", encoding="utf-8") as file:
        for example in examples:
            file.write(json.dumps(example, ensure_ascii=False) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, help="folder for the data files")
    parser.add_argument("--lists", help="folder with apt's lists (default: let apt download them below --out)")
    parser.add_argument("--suite", default="bookworm")
    arguments = parser.parse_args()

    os.makedirs(arguments.out, exist_ok=True)
    index = Indexes(arguments.lists or fetch_lists(os.path.join(arguments.out, "apt")), arguments.suite)
    manifest = {"suite": arguments.suite, "sha256": index.files, "examples": {}}
    for task in tasks.ALL:
        examples = select(index, task)
        write_lines(os.path.join(arguments.out, f"{task.name}.jsonl"), examples)
        counts = collections.Counter(example["split"] for example in examples)
        manifest["examples"][task.name] = dict(sorted(counts.items()))
        print(task.name, dict(counts))
    with open(os.path.join(arguments.out, "manifest.json"), "w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=2)
        file.write("\n")


if __name__ == "__main__":
    main()
