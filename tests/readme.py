#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""readme.py - check the documents: names, links, lengths.

Every file and folder that a Markdown document names exists, and so does every source
file and kv_ function that a manual page names.  Links between documents and to headings
lead somewhere.  README.md and kvfs(1) stay short, and their sentences readable.

A name in a document stands in `backquotes` or is linked to; it counts if it begins with
a folder of the tree or ends as a source file does.  example.py is the reader's own file.
"""
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import prose  # noqa: E402

WORDS = {"README.md": 2300, "man/kvfs.1": 6000}  # at most
SENTENCE = 20  # average number of words in a sentence

os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"],
                        capture_output=True, text=True, check=True).stdout.split()
files = [path for path in listed if os.path.exists(path)]
names = {os.path.basename(path) for path in files}
tops = {path.split("/")[0] for path in files if "/" in path}
wrong = []


def missing(word):
    path = word.rstrip("/")
    if re.search(r"[*<]", path):
        return False
    if path.split("/")[0] in tops and "/" in path:
        return not os.path.exists(path)
    return bool(re.fullmatch(r"[\w-]+\.(c|h|cu|sh|py|mk|svg)", path)) and path not in names


def headings(path):
    """Return the anchors of a document's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", open(path).read(), flags=re.S)
    for title in re.findall(r"^#+ (.*)", text, re.M):
        yield re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


for doc in (path for path in files if path.endswith(".md")):
    text = re.sub(r"```.*?```", "", open(doc).read(), flags=re.S)
    words = {name for word in re.findall(r"`([^`]+)`", text) for name in word.split()}
    wrong += [f"{doc} names {word}, which does not exist"
              for word in sorted(words - {"example.py"}) if missing(word)]
    for link in re.findall(r"\]\(([^):]+)\)", text):
        path, _, anchor = link.partition("#")
        path = os.path.normpath(os.path.join(os.path.dirname(doc), path)) if path else doc
        if not os.path.exists(path):
            wrong.append(f"{doc} links to {link}, which does not exist")
        elif anchor and anchor not in headings(path):
            wrong.append(f"{doc} links to {link}, but {path} has no such heading")

code = "".join(open(path).read() for path in files if path.endswith((".c", ".h")))
known = set(re.findall(r"\bkv_\w+", code))
for page in (path for path in files if path.startswith("man/")):
    text = open(page).read().replace("\\", "")
    wrong += [f"{page} names {w}, which does not exist"
              for w in re.findall(r"(?<![\w/.])[\w/]+\.c\b", text)
              if w != "example.c" and (missing(w) or "/" in w and not os.path.exists(w))]
    wrong += [f"{page} names {w}, which does not exist"
              for w in sorted(set(re.findall(r"\bkv_[a-z_]+\b", text)) - known)]

for path, most in WORDS.items():
    text = open(path).read()
    n = len(text.split())
    if n > most:
        wrong.append(f"{path} has {n} words, but at most {most} are allowed")
    lengths = [len(sentence.split()) for _, part in prose.paragraphs(path, text)
               for sentence in prose.sentences(part)]
    if sum(lengths) > SENTENCE * len(lengths):
        wrong.append(f"{path}: a sentence has {sum(lengths) / len(lengths):.1f} words on "
                     f"average, but at most {SENTENCE} are allowed")
print("\n".join(wrong), end="\n" if wrong else "")
sys.exit(bool(wrong))
