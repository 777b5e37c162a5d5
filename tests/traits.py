#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""traits.py [-v] [--max] [TREE...] - measure how a source tree is built, one column a tree.

Each TREE (default: this one) is a checkout with its build in TREE/build; its tests are left
out.  Sizes are read from the sources, who uses whom from the objects (nm).  Upward calls
are those that layers.py finds.  -v: name the files that stand in circles, have one user, or
hold the longest functions, and the static helpers with one caller.  --max: fail if a trait
is above its limit (LIMITS below).  A change that makes the code smaller lowers the limits.
"""
import os
import re
import subprocess
import sys
from collections import defaultdict

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import layers  # noqa: E402

PRONOUN = re.compile(r"(It|Its|They|Them|Their|These|Those|This|That|What|Which|"
                     r"Who|Whoever|Whose|One)\b")


LIMITS = {
    "files .c": 136,
    "lines": 73011,
    "lines of Python": 9027,
    "largest circle": 10,
    "upward calls": 0,
    "helpers with one caller, %": 14,
}


def share(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * part))] if values else 0


def sources(tree):
    out = subprocess.run(["git", "-C", tree, "ls-files", "*.c", "*.h", "*.cu", "*.cuh", "*.inc"],
                         capture_output=True, text=True, check=True).stdout
    for path in out.split():
        if not path.startswith("tests/") and os.path.exists(f"{tree}/{path}"):
            yield path, open(f"{tree}/{path}", errors="replace").read()


def functions(text):
    """Return the lines of each function: a body begins with a brace alone at the margin."""
    lines, start = text.split("\n"), 0
    for i, line in enumerate(lines):
        if line == "{":
            start = i
            while start > 0 and re.match(r"[\w\s*]", lines[start - 1]) and \
                    not lines[start - 1].rstrip().endswith((";", "*/")):
                start -= 1
        elif line == "}" and start:
            yield i - start + 1, lines[start]
            start = 0


def python_lines(tree):
    out = subprocess.run(["git", "-C", tree, "ls-files", "*.py"], capture_output=True, text=True,
                         check=True).stdout
    return sum(open(f"{tree}/{path}").read().count("\n") for path in out.split()
               if "tests/" not in path and os.path.exists(f"{tree}/{path}"))


def helpers(text):
    """Return the names of the static functions of a file that are called in one place."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r'"(?:\\.|[^"\\])*"', '""', text)
    # A definition or declaration begins at the margin; a call does not.
    heads = re.findall(r"^static [^;{}()=]*?\b(\w+)\(", text, flags=re.M)
    body = re.sub(r"^(?:static |[a-z])[^;{}()=]*?\b\w+\(", "", text, flags=re.M)
    for name in sorted(set(heads)):
        if len(re.findall(rf"\b{name}\b", body)) == 1 and re.search(rf"\b{name}\(", body):
            yield name


def comments(text):
    """Return the words of each comment that is a sentence and not at the file's top."""
    for found in re.findall(r"/\*(.*?)\*/", text, flags=re.S):
        words = re.sub(r"\n\s*\*?", " ", found).split()
        said = " ".join(words)
        if len(said) >= 12 and "SPDX" not in said and not re.match(r"[\w./-]+\.(c|h|cu) - ", said):
            yield said


def group(path):
    """Return the folders in which a name used by the file at @path is looked up first."""
    top = path.split("/")[0] if "/" in path else "common"
    if top == "tools":
        return os.path.dirname(path)
    return "library" if top == "kernels" else top if top == "common" else "daemon"


def uses(objs):
    """Return pairs (user, used) of files, and the names that join each pair."""
    home = defaultdict(list)
    for path, (defined, _) in objs.items():
        for name in defined:
            home[name].append(path)
    joined = defaultdict(set)
    for user, (_, wanted) in objs.items():
        for name in wanted & home.keys():
            near = [p for p in home[name] if group(p) == group(user)]
            for used in (near or home[name])[:1]:
                if used != user:
                    joined[user, used].add(name)
    return joined


def circles(pairs):
    """Return the groups of files that use each other in a circle, by Kosaraju's
    algorithm."""
    after, before = defaultdict(set), defaultdict(set)
    for user, used in pairs:
        after[user].add(used)
        before[used].add(user)

    def walk(start, edges, seen):
        order, stack = [], [(start, iter(sorted(edges[start])))]
        seen.add(start)
        while stack:
            node, rest = stack[-1]
            new = next((n for n in rest if n not in seen), None)
            if new is None:
                order.append(stack.pop()[0])
            else:
                seen.add(new)
                stack.append((new, iter(sorted(edges[new]))))
        return order

    seen, order = set(), []
    for node in sorted({n for pair in pairs for n in pair}):
        if node not in seen:
            order += walk(node, after, seen)
    seen = set()
    found = [walk(node, before, seen) for node in reversed(order) if node not in seen]
    return sorted((sorted(c) for c in found if len(c) > 1), key=len, reverse=True)


def single(objs, joined):
    """Return the files that only one other file uses."""
    users = defaultdict(set)
    for user, used in joined:
        users[used].add(user)
    return sorted((path, *users[path]) for path in objs if len(users[path]) == 1
                  and not any(name.startswith("kvfs_") for name in objs[path][0]))


def traits(tree, verbose):
    texts = dict(sources(tree))
    code = [t.count("\n") for p, t in texts.items() if not p.endswith(".h")]
    bodies = [(n, p, head) for p, t in texts.items() for n, head in functions(t)]
    sizes = [n for n, _, _ in bodies]
    said = [c for t in texts.values() for c in comments(t)]
    objs = dict(layers.objects(tree, "build"))
    joined = uses(objs)
    once = [(p, name) for p, t in texts.items() if p.endswith(".c") for name in helpers(t)]
    rings, up, one = circles(joined), list(layers.upward(objs)), single(objs, joined)
    if verbose:
        for n, path, head in sorted(bodies, reverse=True)[:10]:
            print(f"{tree}: {n} lines: {path}: {head}")
        for ring in rings:
            print(f"{tree}: circle of {len(ring)}: {' '.join(ring)}")
        for user, name, used in up:
            print(f"{tree}: upward: {user} uses {name} of {used}")
        for path, user in one:
            print(f"{tree}: only {user} uses {path}")
        for path, name in once:
            print(f"{tree}: one caller: {path}: {name}")
    return {
        "files .c": len([p for p in texts if p.endswith(".c")]),
        "files .h": len([p for p in texts if p.endswith(".h")]),
        "lines": sum(t.count("\n") for t in texts.values()),
        "lines of Python": python_lines(tree),
        "lines of a .c file, median": share(code, .5),
        "lines of a .c file, p90": share(code, .9),
        "functions": len(sizes),
        "lines of a function, median": share(sizes, .5),
        "lines of a function, p90": share(sizes, .9),
        "helpers with one caller, %": round(100 * len(once) / max(1, len(sizes)), 1),
        "functions over 60 lines": sum(n > 60 for n in sizes),
        "files in circles of calls": sum(map(len, rings)),
        "largest circle": max(map(len, rings), default=0),
        "upward calls": len(up),
        "files with one user": len(one),
        "comments that begin with a pronoun": f"{sum(bool(PRONOUN.match(c)) for c in said) / len(said):.1%}",
    }


def main():
    words = sys.argv[1:]
    trees = [w for w in words if w not in ("-v", "--max")] or [os.path.join(os.path.dirname(__file__) or ".", "..")]
    columns = [traits(tree, "-v" in words) for tree in trees]
    for name in columns[0]:
        print(f"{name:36}" + "".join(f"{column[name]!s:>10}" for column in columns))
    if "--max" in words:
        above = [f"{name} is {columns[0][name]}, at most {limit} is allowed"
                 for name, limit in LIMITS.items() if columns[0][name] > limit]
        sys.exit("\n".join(f"traits.py: {line}" for line in above) or 0)


if __name__ == "__main__":
    main()
