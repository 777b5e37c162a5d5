#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""readme.py - every file and folder that README.md names is there, and every source
file and kv_ function that a manual page names.

A name in README.md is what stands in `backquotes`, is linked to, or begins with
./man/; and it counts if it begins with a folder of the tree or ends as a source file
does.  example.py is the reader's own file.
"""
import os
import re
import subprocess
import sys

os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
text = open("README.md").read()
listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"],
                        capture_output=True, text=True, check=True).stdout.split()
files = [path for path in listed if os.path.exists(path)]
names = {os.path.basename(path) for path in files}
tops = {path.split("/")[0] for path in files if "/" in path}


def missing(word):
    path = word.rstrip("/")
    if re.search(r"[*<]", path):
        return False
    if path.split("/")[0] in tops and "/" in path:
        return not os.path.exists(path)
    return bool(re.fullmatch(r"[\w-]+\.(c|h|cu|sh|py|mk|svg)", path)) and path not in names


prose = re.sub(r"```.*?```", "", text, flags=re.S)
words = re.findall(r"`([^`\s]+)`", prose) + re.findall(r"\]\(([^)#:]+)\)", prose)
words += re.findall(r"\./(man/[\w.-]+\w)", text)
wrong = [("README.md", word) for word in sorted(filter(missing, set(words) - {"example.py"}))]

code = "".join(open(path).read() for path in files if path.endswith((".c", ".h")))
known = set(re.findall(r"\bkv_\w+", code))
for page in (path for path in files if path.startswith("man/")):
    text = open(page).read().replace("\\", "")
    wrong += [(page, w) for w in re.findall(r"(?<![\w/.])[\w/]+\.c\b", text)
              if w != "example.c" and (missing(w) or "/" in w and not os.path.exists(w))]
    wrong += [(page, w) for w in sorted(set(re.findall(r"\bkv_[a-z_]+\b", text)) - known)]
for where, word in wrong:
    print(f"{where} names {word}, which is not there")
sys.exit(bool(wrong))
