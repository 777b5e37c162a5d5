#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""prose.py [PATH...] - find wording that readers without the code did not understand.

    prose.py [PATH...]           findings in these files (default: all tracked files)
    prose.py --count [PATH...]   only the number of findings for each rule
    prose.py --max N [PATH...]   fail if there are more than N findings
    prose.py --subjects RANGE    subjects of the commits in RANGE, such as main~20..

The script reads comments, docstrings, the string literals of programs (tests
excepted: their strings are for developers), manual pages and Markdown.  A finding
is a place to look at, not a verdict: a sentence is good if a reader understands it
without the code.  Exit status 1 if there are findings, or more than N.
"""
import ast
import os
import re
import subprocess
import sys

CLAUSE = r"(?:what|who|whoever|whatever|whose|that which|those who|he who)\b"
RULES = [
    ("starts with what/who/whose", re.compile(rf"^{CLAUSE}(?!.*\?$)", re.I)),
    ("starts with of/for/with/by + what/who",
     re.compile(rf"^(?:of|for|with|by|from|to|in) {CLAUSE}", re.I)),
    ("starts with a pronoun", re.compile(r"^(?:it|they|them|he|his|its|their)\b", re.I)),
    ("an error is reported, not said or told",
     re.compile(r"\b(?:is|are|was|were|be|been) (?:said|told)\b", re.I)),
    ("a user is 'it' or 'the user', not 'he'", re.compile(r"\b(?:he|his|him)\b")),
    ("clause with what/whoever as object",
     re.compile(r"\b(?:of|for|with|by|from|to) (?:what|whoever|whatever|that which)\b", re.I)),
    ("ends with ', too'", re.compile(r", too[.;)]")),
    ("'there' instead of a place",
     re.compile(r"\b(?:that is there|what is there|is there already)\b", re.I)),
]
VERBS = """accept add allow answer apply ask avoid begin bound build call cap carry change charge
check clean close collect compare compute copy correct count cover cut delete describe do document
drop end evict explain extend fail find fix flush fold follow free give handle hash hide ignore
index inline install join keep leave let limit link list load lock log lower make map mark measure
merge move name note offer open order parse pass pin place poll prefer print probe protect put
queue raise read rebuild reclaim record reduce refuse reject release remove rename replace reply
report require reserve reset restore resume retry return reuse revert rewrite run save say
schedule seal send separate serve set settle share shorten show shrink simplify skip spell split
start stop store support switch sync take teach test tidy time treat trim turn unify unlink unpin
update use validate verify wait wake walk warn withdraw wrap write""".split()
IMPERATIVE = re.compile(r"^(?:[\w./*+-]+(?:, ?[\w./*+-]+)*: )?(?:%s)\b" % "|".join(VERBS), re.I)
LANGUAGES = {".c": "c", ".h": "c", ".cu": "c", ".cuh": "c", ".inc": "c", ".cpp": "c", ".rs": "c",
             ".py": "python", ".pyi": "python", ".sh": "shell", ".mk": "shell", ".md": "markdown"}


def language(path, text):
    """Return the language of a file, by its name or its first line; None: ignored."""
    end = os.path.splitext(path)[1]
    if end in LANGUAGES:
        return LANGUAGES[end]
    if re.fullmatch(r"\.[1-8]", end) and path.startswith("man/"):
        return "man"
    first = text.split("\n", 1)[0]
    if first.startswith("#!"):
        return "python" if "python" in first else "shell" if "sh" in first else None
    if os.path.basename(path) == "Makefile" or first.startswith("# SPDX"):
        return "shell"
    return None


def joined(text):
    return " ".join(text.split())


def words_only(literal):
    """Return a string literal without escapes and printf conversions."""
    literal = re.sub(r"\\[ntre0]|%[-+ #0-9.*]*(?:hh|ll|[hlzjt])?[a-zA-Z]", " ", literal)
    return joined(literal.replace('\\"', '"'))


def is_prose(literal):
    return len(re.findall(r"[A-Za-z]{2,}", literal)) > 3 and " " in literal.strip()


def read_c(text, strings):
    """Yield block comments by paragraph, runs of line comments, and string literals."""
    token = re.compile(r"/\*(.*?)\*/|((?:[ \t]*//[^\n]*\n)+)|((?:\"(?:[^\"\\\n]|\\.)*\"\s*)+)"
                       r"|'(?:[^'\\\n]|\\.)+'|//[^\n]*", re.S)
    for m in token.finditer(text):
        line = text.count("\n", 0, m.start()) + 1
        if m.group(1) is not None:
            body = re.sub(r"\n\s*\*? ?", "\n", m.group(1))
        elif m.group(2) is not None:
            body = re.sub(r"(?m)^[ \t]*// ?", "", m.group(2))
        elif m.group(3) is not None:
            literal = words_only("".join(re.findall(r"\"((?:[^\"\\\n]|\\.)*)\"", m.group(3))))
            if strings and is_prose(literal):
                yield line, literal
            continue
        else:
            body = m.group(0)[2:]
        for part in re.split(r"\n\s*\n", body):
            part = joined(part)
            if part and "SPDX" not in part and not part.startswith("----"):
                yield line, part


def read_hashes(lines):
    """Yield runs of comment lines that begin with a hash."""
    block, at = [], 0
    for n, line in enumerate([*lines, ""], 1):
        m = re.match(r"\s*# ?(?!!)(.*)", line)
        if m:
            at = at or n
            block.append(m.group(1))
        elif block:
            for part in re.split(r"\n\s*\n", "\n".join(block)):
                if "SPDX" not in part:
                    yield at, joined(part)
            block, at = [], 0


def read_python(text, strings):
    yield from read_hashes(text.splitlines())
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) \
                    and isinstance(first.value.value, str):
                docstrings.add((first.value.lineno, first.value.col_offset))
                for part in re.split(r"\n\s*\n", first.value.value):
                    yield first.value.lineno, joined(part)
    if not strings:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            literal = "".join(v.value if isinstance(v, ast.Constant) else "X" for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) \
                and (node.lineno, node.col_offset) not in docstrings:
            literal = node.value
        else:
            continue
        if is_prose(literal) and "\n" not in literal.strip():
            yield node.lineno, joined(literal)


def read_shell(text, strings):
    yield from read_hashes(text.splitlines())
    if not strings:
        return
    for n, line in enumerate(text.splitlines(), 1):
        if not line.lstrip().startswith("#"):
            for literal in re.findall(r"\"((?:[^\"\\]|\\.)*)\"", line):
                if is_prose(literal) and not re.match(r"[$({]", literal):
                    yield n, joined(literal)


def read_man(text):
    """Yield paragraphs: font macros are words, other macros end one; examples are left
    out."""
    block, at, example = [], 0, False
    for n, line in enumerate([*text.splitlines(), ".PP"], 1):
        macro = re.match(r"\.(\w+|\\\")\s*(.*)", line)
        if macro and macro.group(1) in ("EX", "nf"):
            example = True
        elif macro and macro.group(1) in ("EE", "fi"):
            example = False
        elif macro and macro.group(1) in ("B", "I", "BR", "RB", "BI", "IB", "IR", "RI"):
            if not example:
                at = at or n
                block.append(re.sub(r"\"|(?<=\S) (?=[,.;:)])", "", macro.group(2)))
            continue
        elif not macro:
            if not example and line:
                at = at or n
                block.append(line)
            continue
        if block:
            body = re.sub(r"\\f.|\\&|\\c", "", " ".join(block))
            yield at, joined(body.replace("\\-", "-").replace("\\(dq", '"'))
            block, at = [], 0


def read_markdown(text):
    """Yield paragraphs, items and cells of tables; code is left out."""
    text = re.sub(r"```.*?```", lambda m: "\n" * m.group(0).count("\n"), text, flags=re.S)
    block, at = [], 0
    for n, line in enumerate([*text.splitlines(), ""], 1):
        if line.startswith("|"):
            for cell in re.split(r"(?<!\\)\|", line):
                if cell.strip(" -:"):
                    yield n, joined(cell)
        elif line.startswith("    ") and not block or line.startswith("#"):
            pass
        elif line.strip() and not re.match(r"\s*(?:[-*]|\d+\.) ", line):
            at = at or n
            block.append(line)
            continue
        if block:
            yield at, joined(" ".join(block))
            block, at = [], 0
        item = re.match(r"\s*(?:[-*]|\d+\.) (.*)", line)
        if item:
            block, at = [item.group(1)], n


def paragraphs(path, text):
    """Yield (line, paragraph) of all text for people in a file."""
    kind = language(path, text)
    strings = not path.startswith(("tests/", "connectors/tests/"))
    if kind == "c":
        return read_c(text, strings)
    if kind == "python":
        return read_python(text, strings)
    if kind == "shell":
        return read_shell(text, strings)
    if kind == "man":
        return read_man(text)
    if kind == "markdown":
        return read_markdown(text)
    return ()


def sentences(paragraph):
    paragraph = re.sub(r"\*\*|`", "", paragraph)
    return [s for s in re.split(r"(?<=[.:])\s+(?=[A-Z@])", paragraph) if len(s.split()) > 2]


def findings(path):
    try:
        text = open(path, encoding="utf-8").read()
    except (OSError, UnicodeDecodeError):
        return
    for line, paragraph in paragraphs(path, text):
        for sentence in sentences(paragraph):
            for name, rule in RULES:
                if rule.search(sentence):
                    yield line, name, sentence
                    break


def git(*args):
    return subprocess.run(["git", *args], capture_output=True, text=True, check=True).stdout


def subjects(arguments):
    bad = 0
    for line in git("log", "--format=%h %s", *arguments).splitlines():
        commit, subject = line.split(" ", 1)
        why = [f"{len(subject)} columns"] if len(subject) > 65 else []
        why += ["semicolon"] if ";" in subject else []
        why += [] if IMPERATIVE.match(subject) else ["no imperative verb known to this script"]
        why += ["what/who"] if re.search(r"\b(what|who|whose|whoever)\b", subject, re.I) else []
        if why:
            bad += 1
            print(f"{commit} {subject}  [{', '.join(why)}]")
    return bad


def main(arguments):
    if arguments[:1] == ["--subjects"]:
        return subjects(arguments[1:]) > 0
    only_count = arguments[:1] == ["--count"]
    limit = int(arguments[1]) if arguments[:1] == ["--max"] else None
    files = arguments[1 if only_count else 0 if limit is None else 2:]
    if not files:
        os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
        files = git("ls-files").splitlines()
    counts = {name: 0 for name, _ in RULES}
    found = []
    for path in files:
        for line, name, sentence in findings(path):
            counts[name] += 1
            found.append(f"{path}:{line}: {name}: {sentence[:110]}")
    if only_count:
        for name, n in counts.items():
            print(f"{n:6d}  {name}")
    elif found and (limit is None or len(found) > limit):
        print("\n".join(found))
    if limit is not None and len(found) > limit:
        print(f"{len(found)} findings, but at most {limit} are allowed (tests/prose.py)")
    return len(found) > (limit or 0)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BrokenPipeError:
        sys.exit(1)
