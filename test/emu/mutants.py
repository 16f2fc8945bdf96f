#!/usr/bin/env python3
"""mutants.py - do the tests notice when a kernel loses a barrier, a wait or a guard?

usage: test/emu/mutants.py [-j N] [-k REGEX] [-t REGEX] [-c N] [-r LOG] [FILE...]        (also: make mutants FILES=...)

All faults are built at once, into a copy of the tree under a temporary folder: each stands behind
a switch that the environment throws, so that a file is compiled once and not for every fault. A
first run of each test case records which switches it passes; then every fault is run through the
cases that pass it, the quickest first, until one fails. Faults that none notices are printed with
file and line, except those of mutants.txt, which are known to change nothing. Status 1 when there
are others. Only for kernels/cuda; needs what `make emu` needs.

  sync     __syncthreads or __syncwarp removed, or the barrier of sync_any
  wait     cp_async_wait removed, or one group less waited for; commit: cp_async_commit removed
  compare  < becomes <=, <= becomes < and so on, in device code (not against constants in loops)
  guard    the condition of an if always holds, or never before return, continue and break
  operand  one side of && or || left out, also on the host: paths are chosen there
  else     c ? x : 0 becomes x
  clamp    min or max returns its first or second argument whatever the other
"""
import argparse
import concurrent.futures
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import namedtuple

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KNOWN = "test/emu/mutants.txt"
Mutant = namedtuple("Mutant", "kind line text start end")  # text: the source that it changes
OPENING, CLOSING = "([{", ")]}"
OTHER = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
CALL = {"<": "mut_lt", "<=": "mut_le", ">": "mut_gt", ">=": "mut_ge"}
NOTHING = re.compile(r"^(0|0u|0\.0|0\.0f|nullptr|-?INFINITY|T\(0\)|false)$")
CONSTANT = re.compile(r"^[A-Z0-9_:() +*/=!<>&|-]+$")

HEADER = """#pragma once
extern "C" int mutant(int k);
template <typename A, typename B> bool mut_lt(int k, A a, B b) { return mutant(k) ? a <= b : a < b; }
template <typename A, typename B> bool mut_le(int k, A a, B b) { return mutant(k) ? a < b : a <= b; }
template <typename A, typename B> bool mut_gt(int k, A a, B b) { return mutant(k) ? a >= b : a > b; }
template <typename A, typename B> bool mut_ge(int k, A a, B b) { return mutant(k) ? a > b : a >= b; }
#define MUT_CLAMP(name, op)                                                                        \\
    template <typename A, typename B> auto mut_##name(int k, A a, B b) -> decltype(a + b) {        \\
        return mutant(k) ? a : mutant(k + 1) ? b : a op b ? a : b;                                 \\
    }
MUT_CLAMP(min, <)
MUT_CLAMP(max, >)
#define mut_any(k, ...) (mutant(k) ? (__VA_ARGS__) : sync_any(__VA_ARGS__))
"""
SWITCH = """#include <stdio.h>
#include <stdlib.h>
extern "C" int mutant(int k);
static char passed[100000];
static int chosen = -2;
static void write_passed() {
    FILE *f = fopen(getenv("MUTANTS_PASSED"), "w");
    for (int k = 0; f && k < (int)sizeof passed; k++) {
        if (passed[k]) fprintf(f, "%d\\n", k);
    }
    if (f) fclose(f);
}
extern "C" int mutant(int k) {
    if (chosen == -2) {
        const char *s = getenv("MUTANT");
        chosen = s ? atoi(s) : -1;
        if (getenv("MUTANTS_PASSED")) atexit(write_passed);
    }
    passed[k] = 1;
    return k == chosen;
}
"""


def masked(text):
    """The text with comments, strings and preprocessor lines blanked, so that offsets stay, and
    f<A, B>(x) as f(A, B)(x): what holds template arguments is a bracket like others."""
    blank = lambda m: re.sub(r"[^\n]", " ", m.group())
    text = re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"', blank, text, flags=re.S)
    text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", blank, text, flags=re.M)
    more = 1
    while more:
        text, more = re.subn(r"(?<=\w)<([^<>;{}]*)>", r"(\1)", text)  # a less-than has a space before it
    return text


def closing(text, at):
    """Where the bracket at `at` is closed."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] in OPENING) - (text[i] in CLOSING)
        if depth == 0:
            return i
    raise ValueError("unbalanced brackets")


def device_ranges(text):
    """Bodies of the functions that run on a GPU."""
    ranges = []
    for m in re.finditer(r"__(?:global|device)__", text):
        at = m.end()
        while text[at] not in "{;":
            at = closing(text, at) + 1 if text[at] == "(" else at + 1
        if text[at] == "{":
            ranges.append((at, closing(text, at)))
    return ranges


LOGIC = r" && | \|\| | \? | : |&& |\|\| |\? |: "
ASSIGN = r"(?<![<>=!])=(?!=)\s|\breturn "


def extent(text, at, end, stops):
    """The expression around text[at:end], an operator, as far as brackets and `stops` let it."""
    stop = re.compile(r"[;,]|" + ASSIGN + "|" + stops)
    depth, left = 0, at
    while left > 0:
        c = text[left - 1]
        if c in OPENING and depth == 0:
            break
        depth += (c in CLOSING) - (c in OPENING)
        if depth == 0 and c in "{}":
            break
        if depth == 0 and any(m.end() == left for m in stop.finditer(text, max(0, left - 8), left)):
            break
        left -= 1
    depth, right = 0, end
    while right < len(text):
        c = text[right]
        if c in CLOSING and depth == 0:
            break
        depth += (c in OPENING) - (c in CLOSING)
        if depth == 0 and stop.match(text, right):
            break
        right += 1
    while text[left].isspace():
        left += 1
    while text[right - 1].isspace():
        right -= 1
    return left, right


# Edits that put a switch around a condition: with it the condition always, or never, holds.
def always(k):
    return "(mutant(%d) || (" % k, "))", []


def never(k):
    return "(!mutant(%d) && (" % k, "))", []


class File:
    """Finds the mutants of one source file and writes the file that holds them all."""

    def __init__(self, path, text):
        self.path, self.text, self.m = path, text, masked(text)
        self.device = device_ranges(self.m)
        self.mutants, self.edits = [], []
        for find in (self.syncs, self.compares, self.guards, self.operands, self.elses, self.clamps):
            find()

    def in_device(self, at):
        return any(a < at < b for a, b in self.device)

    def line_of(self, at):
        return self.text.count("\n", 0, at) + 1

    def add(self, kind, start, end, edit, what=""):
        """edit(k): (prefix, suffix, replacements of (from, to, text) inside)"""
        text = " ".join(self.text[start:end].split()) + what
        self.mutants.append(Mutant(kind, self.line_of(start), text, start, end))
        self.edits.append(edit)

    def excluded(self, at):
        """In a line that is evaluated by the compiler."""
        line = self.m[self.m.rfind("\n", 0, at) + 1:self.m.find("\n", at)]
        return re.search(r"\b(constexpr|static_assert|enum|template|typedef)\b", line)

    def syncs(self):
        for m in re.finditer(r"(__syncthreads|__syncwarp|cp_async_commit)\(\);"
                             r"|cp_async_wait\(([^;]*)\)\(\);", self.m):
            if not self.in_device(m.start()):
                continue
            kind = "sync" if m.group().startswith("__") else "commit" if m.group(1) else "wait"
            self.add(kind, m.start(), m.end(), lambda k: ("{ if (!mutant(%d)) " % k, " }", []))
            if kind == "wait":
                less = "if (mutant(%%d)) cp_async_wait<(%s) + 1>(); else " % m.group(2)
                self.add("wait", m.start(), m.end(), lambda k, less=less: ("{ " + less % k, " }", []))

        for m in re.finditer(r"\bsync_any\(", self.m):
            if self.in_device(m.start()) and not self.m[:m.start()].endswith("bool "):
                end, name = closing(self.m, m.end() - 1) + 1, m.span()
                self.add("sync", m.start(), end, lambda k, name=name: (
                    "", "", [name + ("mut_any(%d, " % k,)]))

    def compares(self):
        loops = [(m.end() - 1, closing(self.m, m.end() - 1)) for m in re.finditer(r"\bfor \(", self.m)]
        for m in re.finditer(r" (<=?|>=?) ", self.m):
            if not self.in_device(m.start()) or self.excluded(m.start()):
                continue
            a, b = extent(self.m, m.start(), m.end(), LOGIC + r"| == | != | & | \| | \^ ")
            left, right = self.m[a:m.start()].strip(), self.m[m.end():b].strip()
            if CONSTANT.match(left) and CONSTANT.match(right):
                continue
            if CONSTANT.match(right) and any(x < a < y for x, y in loops):
                continue
            op = m.group(1)
            at = m.span()
            self.add("compare", a, b, lambda k, op=op, at=at: (
                "%s(%d, " % (CALL[op], k), ")", [at + (", ",)]))

    def guards(self):
        for m in re.finditer(r"\bif \(", self.m):
            if not self.in_device(m.start()) or self.excluded(m.start()):
                continue
            end = closing(self.m, m.end() - 1)
            if CONSTANT.match(self.m[m.end():end]):
                continue
            leaves = re.match(r"\)\s*(return|continue|break)\b", self.m[end:])
            self.add("guard", m.end(), end, never if leaves else always)

    def operands(self):
        seen = set()
        for m in re.finditer(r"\s(&&|\|\|)\s", self.m):
            if self.excluded(m.start()):
                continue
            for side in (m.start(), m.end()):
                a, b = extent(self.m, side, side, LOGIC + r"|\s&&\s|\s\|\|\s")
                if (a, b) in seen or re.match(r"^!?[A-Z_]+( [=!<>]=? [A-Z0-9_]+)?$", self.m[a:b]):
                    continue
                seen.add((a, b))
                self.add("operand", a, b, always if m.group(1) == "&&" else never)

    def elses(self):
        for m in re.finditer(r" \? ", self.m):
            if not self.in_device(m.start()) or self.excluded(m.start()):
                continue
            a, b = extent(self.m, m.start(), m.start(), r" \? | : |\? |: ")
            _, middle = extent(self.m, m.end(), m.end(), r" \? | : ")
            if not self.m.startswith(" : ", middle):
                continue
            _, end = extent(self.m, middle + 3, middle + 3, r" \? | : ")
            yes, no = self.m[m.end():middle].strip(), self.m[middle + 3:end].strip()
            if CONSTANT.match(self.m[a:b]) or bool(NOTHING.match(yes)) == bool(NOTHING.match(no)):
                continue
            self.add("else", a, b, always if NOTHING.match(no) else never)

    def clamps(self):
        for m in re.finditer(r"\b(min|max)\(", self.m):
            if not self.in_device(m.start()) or self.excluded(m.start()):
                continue
            end = closing(self.m, m.end() - 1) + 1
            name = m.span()
            self.add("clamp", m.start(), end, lambda k, name=name, f=m.group(1): (
                "", "", [name + ("mut_%s(%d, " % (f, k),)]), " = first")
            self.add("clamp", m.start(), end, lambda k: ("", "", []), " = second")

    def build(self, first, dropped):
        """The source with every mutant but the dropped ones, numbered from `first`."""
        opens, closes, replace = [], [], []
        for i, (mut, edit) in enumerate(zip(self.mutants, self.edits)):
            if i in dropped:
                continue
            prefix, suffix, inside = edit(first + i)
            inner = mut.kind == "compare"  # around its operator alone
            opens.append((mut.start, -(mut.end - mut.start), inner, i, prefix))
            closes.append((mut.end, mut.end - mut.start, not inner, -i, suffix))
            replace += inside
        points = {}
        for at, *_, s in sorted(closes) + sorted(opens):
            points[at] = points.get(at, "") + s
        out, at, replace = [], 0, sorted(replace)
        for i in range(len(self.text) + 1):
            if i < at:
                continue
            out.append(points.get(i, ""))
            if replace and replace[0][0] == i:
                start, at, s = replace.pop(0)
                out.append(s)
                out += [points[p] for p in range(start + 1, at) if p in points]
            elif i < len(self.text):
                out.append(self.text[i])
        return "".join(out)


def write(path, text):
    with open(path, "w") as f:
        f.write(text)


def make_tree(tree, mutated):
    """Copies what differs; the mutated files are written by build_all."""
    files = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                           stdout=subprocess.PIPE, check=True).stdout.decode().split("\0")
    for f in filter(None, files):
        source, copy = os.path.join(ROOT, f), os.path.join(tree, f)
        if os.path.isfile(source) and not (os.path.exists(copy) and (
                f in mutated or open(source, "rb").read() == open(copy, "rb").read())):
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            shutil.copy2(source, copy)
    if os.path.isdir(os.path.join(ROOT, "build")) and not os.path.isdir(os.path.join(tree, "build")):
        subprocess.run(["cp", "-a", os.path.join(ROOT, "build"), tree], check=True)
    for name, text in (("mutant.h", HEADER), ("mutant_switch.cpp", SWITCH)):
        path = os.path.join(tree, "test/emu", name)
        if not os.path.exists(path) or open(path).read() != text:
            write(path, text)


def build_all(tree, files, programs, jobs):
    """Leaves out what does not compile. Returns {path: dropped indices}."""
    dropped = {f.path: set() for f in files}
    for attempt in range(12):
        first = 0
        for f in files:
            source, path = f.build(first, dropped[f.path]), os.path.join(tree, f.path)
            if open(path).read() != source:
                write(path, source)
            first += len(f.mutants)
        r = subprocess.run(["make", "-k", "-j%d" % jobs, "CUDA=0",
                            "CXXFLAGS=-w -include test/emu/mutant.h"] + programs,
                           cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
        if r.returncode == 0:
            return dropped
        before = sum(map(len, dropped.values()))
        for f in files:
            bad = {int(n) for n in re.findall(re.escape(f.path) + r":(\d+):", r.stdout)}
            for i, mut in enumerate(f.mutants):
                last = f.line_of(mut.end)
                if any(mut.line <= n <= last for n in bad):
                    dropped[f.path].add(i)
        if sum(map(len, dropped.values())) == before:
            sys.exit(r.stdout[-4000:] + "\nmutants.py: the mutated tree does not build")
    sys.exit("mutants.py: the mutated tree does not build")


def case_names(tree, program):
    source = open(glob.glob(os.path.join(tree, program[len("build/check/"):] + ".c*"))[0]).read()
    return re.findall(r'\{\s*"(\w+)"', source[source.index("TEST_MAIN("):])


def run_case(tree, program, case, env, limit):
    start = time.time()
    try:
        code = subprocess.run([os.path.join(tree, program), case], cwd=tree,
                              env=dict(os.environ, **env), timeout=limit, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL).returncode
    except subprocess.TimeoutExpired:
        code = -1
    return code, time.time() - start


def first_runs(tree, programs, pool):
    """[(seconds, program, case, switches passed)], quickest first."""
    def first(at):
        program, case = at
        passed = os.path.join(tree, "passed." + os.path.basename(program) + "." + case)
        took = passed + ".seconds"
        if os.path.exists(took) and os.path.getmtime(took) > os.path.getmtime(os.path.join(tree, program)):
            seconds = float(open(took).read())  # of an earlier run in the same tree
        else:
            code, seconds = run_case(tree, program, case, {"MUTANTS_PASSED": passed}, 600)
            if code:
                sys.exit("mutants.py: %s %s fails without a mutant" % (program, case))
            write(took, str(seconds))
        switches = open(passed).read().split() if os.path.exists(passed) else []
        return seconds, program, case, set(map(int, switches))

    cases = [(program, case) for program in programs for case in case_names(tree, program)]
    return sorted(pool.map(first, cases), key=lambda c: c[0])


def known_equivalents(all_of):
    """{(file, kind, source text)} of mutants.txt: "file | kind | text | reason" lines."""
    known = set(re.findall(r"^(\w[^ ]*) \| (\w+) \| (.*) \| .*$", open(KNOWN).read(), re.M))
    gone = known - {(f.path, m.kind, m.text) for f, _, m in all_of}
    paths = {f.path for f, _, _ in all_of}
    for path, kind, text in sorted(k for k in gone if k[0] in paths or not os.path.exists(k[0])):
        print("no such mutant: %s: %s: %s (%s)" % (path, kind, text, KNOWN))
    return known


def chosen(o, all_of):
    """The numbers of those that -k and -r let through."""
    log = open(o.r).read() if o.r else ""
    before = set(re.findall(r"^(?:survived|not reached|not built): (.*?):\d+: (\w+): (.*)$", log, re.M))
    return [k for k, (f, _, m) in enumerate(all_of) if re.search(o.k, " ".join((m.kind, f.path, m.text)))
            and (not o.r or (f.path, m.kind, m.text) in before)]


def main():
    p = argparse.ArgumentParser(usage=__doc__.split("\n")[2])
    p.add_argument("files", nargs="*")
    p.add_argument("-j", type=int, default=2)
    p.add_argument("-k", default="", help="only mutants in whose 'kind file source' this expression is found")
    p.add_argument("-t", default="", help="only test programs in whose name this expression is found")
    p.add_argument("-c", type=int, help="at most so many test cases for each fault, the quickest: a first look")
    p.add_argument("-r", help="only mutants that this file, the output of an earlier run, says were not noticed")
    p.add_argument("-d", help="keep the mutated tree in this folder, and take up what an earlier run left there")
    p.add_argument("-n", action="store_true", help="list them, run nothing")
    o = p.parse_args()
    os.chdir(ROOT)
    paths = o.files or sorted(f for f in glob.glob("kernels/cuda/*.*") if not f.endswith("/ptx.cuh"))
    files = [File(path, open(path).read()) for path in paths]
    all_of = [(f, i, m) for f in files for i, m in enumerate(f.mutants)]
    if o.n:
        for k in chosen(o, all_of):
            f, _, m = all_of[k]
            print("%s:%d: %s: %s" % (f.path, m.line, m.kind, m.text))
        return
    tree = o.d or tempfile.mkdtemp(prefix="mutants.")
    try:
        sys.exit(run_all(o, tree, files, all_of))
    finally:
        if not o.d:
            shutil.rmtree(tree, ignore_errors=True)


def run_all(o, tree, files, all_of):
    make_tree(tree, [f.path for f in files])
    # Whole models are not in the check build.
    whole = re.findall(r"\w+", re.search(r"^EMU_WHOLE = (.*)$", open("Makefile").read(), re.M).group(1))
    tests = [os.path.splitext(f)[0] for f in glob.glob("test/kernels/cuda/test_*.c") + glob.glob("test/emu/test_*.cu")]
    programs = sorted("build/check/" + f for f in tests
                      if f.split("test_cuda_")[-1] not in whole and re.search(o.t, os.path.basename(f)))
    dropped = build_all(tree, files, programs, o.j)
    known, order = known_equivalents(all_of), {}
    count = dict.fromkeys(["killed", "survived", "equivalent", "not reached", "not built"], 0)

    def fate(k):
        f, i, m = all_of[k]
        if i in dropped[f.path]:
            return "not built"
        mine = [c for c in cases if k in c[3]]
        # A case that killed a neighbour is tried first.
        mine.sort(key=lambda c: (-order.get((f.path, c[2]), 0), c[0]))
        for seconds, program, case, _ in mine[:o.c]:
            code, _ = run_case(tree, program, case, {"MUTANT": str(k)}, 20 + 10 * seconds)
            if code:
                order[f.path, case] = order.get((f.path, case), 0) + 1
                return "killed"
        return "survived" if mine else "not reached"

    picked = chosen(o, all_of)
    with concurrent.futures.ThreadPoolExecutor(o.j) as pool:
        cases = first_runs(tree, programs, pool)
        for k, end in zip(picked, pool.map(fate, picked)):
            f, i, m = all_of[k]
            if end in ("survived", "not reached") and (f.path, m.kind, m.text) in known:
                end = "equivalent"
            count[end] += 1
            if end not in ("killed", "equivalent"):
                print("%s: %s:%d: %s: %s" % (end, f.path, m.line, m.kind, m.text), flush=True)
    print("%d mutants: " % len(picked) + ", ".join("%d %s" % (n, what) for what, n in count.items()))
    return 1 if count["survived"] + count["not reached"] else 0


if __name__ == "__main__":
    main()
