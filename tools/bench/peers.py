#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""peers.py BUILD - measure kvfs and other stores on the same blocks, and write BUILD/peers.md.

Each peer (stores.py) is set up below BUILD/peers, from Debian or PyPI, and is skipped with a
reason if that fails.  In each of ROUNDS rounds every peer runs once, in a process of its own, in
another order each round.  The rows, for all blocks of a size at once:

  save     from the engine's memory until a reader finds every block
  durable  the same until every block survives a power cut
  load     blocks that the peer has in memory, to the engine's memory
  cold     blocks that are only on disk, to the engine's memory

A difference below 5 % is called equal."""
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from stores import PEERS, ROWS, SIZES, Peer

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.realpath(f"{HERE}/../..")
ROUNDS, LONGEST, EQUAL = int(os.environ.get("ROUNDS", "5")), 20 * 60, 0.05  # LONGEST: seconds of all rounds


def run(*command: str, **env: str) -> None:
    """Run a command; raise RuntimeError with the last line that it printed if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env={**os.environ, **env})
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]}: {(done.stdout.strip() or 'no message').splitlines()[-1]}")


def setup(kind: type[Peer], build: str) -> None:
    """Make the peer's Python environment, unless it is there."""
    folder, downloads = f"{build}/peers/{kind.env}", f"{build}/peers/downloads"
    if kind.debian:
        run(f"{ROOT}/tests/need.sh", *kind.debian)
    if kind.env and not os.path.exists(f"{folder}/ready"):
        shutil.rmtree(folder, ignore_errors=True)
        run("/usr/bin/python3", "-m", "venv", folder)
        for words in (one.split() for one in kind.pip):
            try:
                run(f"{folder}/bin/pip", "install", "--no-index", "--find-links", downloads, *words)
            except RuntimeError:  # not all of them were downloaded earlier
                print(f"downloading {' '.join(words)} from PyPI", flush=True)
                run(f"{folder}/bin/pip", "download", "-d", downloads, *words)
                run(f"{folder}/bin/pip", "install", "--no-index", "--find-links", downloads, *words)
        run("/bin/sh", "-c", kind.after, ROOT=ROOT, ENV=folder)
        open(f"{folder}/ready", "w").close()
    run("/bin/sh", "-c", kind.each_time, ROOT=ROOT, ENV=folder, B=build)


def busy() -> float:
    """Return the share of the processors, in %, that others use while this process waits."""
    def read() -> list[int]:
        with open("/proc/stat", encoding="ascii") as file:
            return [int(word) for word in file.readline().split()[1:9]]
    one = read()
    time.sleep(0.5)
    spent = [b - a for a, b in zip(one, read())]
    return 100 * (sum(spent) - spent[3] - spent[4]) / max(1, sum(spent))


def take_turn(name: str, build: str, figures: dict) -> str:
    """Run a peer once, and end all of its processes.  Return the reason if it failed."""
    folder, kind = tempfile.mkdtemp(prefix="run.", dir=f"{build}/peers"), PEERS[name]
    python = f"{build}/peers/{kind.env}/bin/python" if kind.env else sys.executable
    with open(f"{folder}/log", "w+") as log:
        peer = subprocess.Popen([python, f"{HERE}/stores.py", build, name, folder],
                                stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
        try:
            out, _ = peer.communicate(timeout=180)
            for label, row, speed in (json.loads(line) for line in out.splitlines() if line.startswith('["')):
                figures.setdefault((label, row), {}).setdefault(name, []).append(speed)
            log.seek(0)
            return "" if peer.returncode == 0 else (log.read().strip() or "no message").splitlines()[-1]
        except subprocess.TimeoutExpired:
            return "no end after 180 s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(peer.pid, signal.SIGKILL)
            peer.wait()
            subprocess.run(["umount", "-l", f"{folder}/mnt"], stderr=subprocess.DEVNULL)
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(f"/dev/shm/kvfs-{os.path.basename(folder)}", ignore_errors=True)


def times(ours: list[float], theirs: list[float]) -> float:
    """Return our speed as a multiple of theirs: the median over rounds."""
    return statistics.median(a / b for a, b in zip(ours, theirs))


def table(label: str, figures: dict, names: list[str]) -> list[str]:
    lines = [f"| {label} blocks, GB/s | {' | '.join(ROWS.values())} |", "|---|" + "---|" * len(ROWS)]
    for name in names:
        cells = []
        for row in ROWS:
            speeds = figures.get((label, row), {})
            cells.append("–")
            if name in speeds:
                ratio = times(speeds["kvfs"], speeds[name]) if "kvfs" in speeds else 1
                cells[-1] = (f"{statistics.median(speeds[name]):.2f} ({min(speeds[name]):.2f}–{max(speeds[name]):.2f})"
                             + (f", {ratio:.2f} ×" if abs(ratio - 1) >= EQUAL else ", equal" if name != "kvfs" else ""))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return [*lines, ""]


def main() -> None:
    build, figures, skipped, loads, rounds = os.path.realpath(sys.argv[1]), {}, {}, [], 0
    os.makedirs(f"{build}/peers", exist_ok=True)
    for name, kind in PEERS.items():
        try:
            setup(kind, build)
        except (RuntimeError, OSError) as error:
            skipped[name] = str(error)
            print(f"{name}: skipped: {error}", flush=True)
    begun, names = time.monotonic(), [name for name in PEERS if name not in skipped]
    while rounds < ROUNDS and (time.monotonic() - begun) * (rounds + 1) < LONGEST * max(1, rounds):
        for name in names[rounds * 4 % len(names):] + names[:rounds * 4 % len(names)]:
            if name not in skipped:
                loads.append(busy())
                if why := take_turn(name, build, figures):
                    skipped[name] = f"failed in round {rounds + 1}: {why}"
                    print(f"{name}: {skipped[name]}", flush=True)
        rounds += 1
        print(f"round {rounds} of {ROUNDS}: {time.monotonic() - begun:.0f} s", flush=True)
    with open("/proc/cpuinfo") as file:
        cpu = next((line.split(": ")[1].strip() for line in file if line.startswith("model name")), "?")
    lines = [f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores of {cpu}, Linux {os.uname().release}, "
             f"{subprocess.getoutput(f'df --output=fstype {build} | tail -n 1')}; "
             f"{rounds} rounds in {time.monotonic() - begun:.0f} s.  Before the turns other programs used "
             f"{statistics.median(loads):.0f} % of the processors (median; {max(loads):.0f} % at most).", ""]
    lines += [line for label in SIZES for line in table(label, figures, names)]
    lines += ["| peer | settings | verifies bytes | durable by | index |", "|---|---|---|---|---|"]
    lines += [f"| {name} | {PEERS[name].settings} | {PEERS[name].verifies} | {PEERS[name].survives} | "
              f"{PEERS[name].index} |" for name in names]
    lines += ["", *(f"- Skipped: {name}: {why}" for name, why in skipped.items())]
    for (label, row), speeds in figures.items():
        for us in (name for name in speeds if name.startswith("kvfs")):
            others = [name for name in speeds if name[:4] != "kvfs"
                      and ("mount" not in us or name.startswith(("files", "no-op")))]
            behind = [f"{name} ({times(speeds[us], speeds[name]):.2f} ×)" for name in others
                      if times(speeds[us], speeds[name]) <= 1 - EQUAL]
            if behind:
                lines.append(f"- {us}, {label}, {ROWS[row]}: behind {', '.join(behind)}")
    with open(f"{build}/peers.md", "w") as file:
        file.write("\n".join(lines) + "\n")
    print("\n".join(lines))


main()
