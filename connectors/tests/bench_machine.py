# SPDX-License-Identifier: Apache-2.0
"""bench_machine - check that the machine is idle enough to measure on."""
import time


def idle() -> None:
    """Wait until the machine is idle for a second; raise SystemExit after a minute."""
    for _ in range(60):
        one = [int(n) for n in open("/proc/stat").readline().split()[1:9]]
        time.sleep(1)
        two = [int(n) for n in open("/proc/stat").readline().split()[1:9]]
        spent = [b - a for a, b in zip(one, two)]
        if (sum(spent) - spent[3] - spent[4]) / max(1, sum(spent)) < 0.1:
            return
    raise SystemExit("the machine is busy: figures would say nothing")
