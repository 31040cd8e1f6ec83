#!/usr/bin/env python3
"""Write the held-out examples that the demo shows. They were picked by hand for being easy to judge, so they say nothing
about how good a task is; the scores in the README do."""

import argparse
import json

import tasks
import text

SHOWN = {
    "section": ("mrboom", "ipfm", "python3-optuna", "libokio-java", "wham-align"),
    "role": ("gparted", "libicu72", "libcxxopts-dev", "redet-doc", "krita-l10n"),
    "interface": ("ccd2iso", "ldirectord", "gltron", "gnome-characters", "matanza"),
    "language": ("mailgraph", "elpa-elfeed", "dar", "jupyter-console", "ssl-cert-check"),
    "purpose": ("kblocks", "gettext-el", "gringotts", "sidplay", "xfce4-systemload-plugin"),
    "synopsis": ("hyphen-it", "cryfs", "libsecret-tools", "libspreadsheet-parsexlsx-perl", "libzxing-java"),
    "french": ("pybik", "cgvg", "cryfs", "widelands-data", "elpa-find-file-in-project"),
    "german": ("vlc-data", "gtklp", "equivs", "zabbix-proxy-sqlite3", "libcollection-dev"),
}


def shown_examples(folder, task):
    by_package = {example["package"]: example for example in text.read_examples(folder, task, "heldout")}
    found = [by_package[package] for package in SHOWN[task.name]]
    return [{"title": one["package"], "input": one["input"], "expected": one["target"]} for one in found]


def main():
    parser = argparse.ArgumentParser(description="Write the held-out examples that the demo shows.")
    parser.add_argument("--data", required=True, help="folder made by data.py")
    parser.add_argument("--out", required=True, help="JSON file to write")
    arguments = parser.parse_args()

    shown = {task.name: shown_examples(arguments.data, task) for task in tasks.ALL}
    with open(arguments.out, "w", encoding="utf-8") as file:
        json.dump(shown, file, indent=2, ensure_ascii=False)
        file.write("\n")


if __name__ == "__main__":
    main()
