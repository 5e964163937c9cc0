"""`python -m tests.simulation`: run seeds, or one seed again with the trace of its failure."""

import argparse
import sys
import time
from multiprocessing import get_context

from tests.simulation.replay import run_seed, run_seeds

CHUNK = 50
PROGRESS_S = 10.0


def say(what: object) -> None:
    """One more line for whoever waits."""
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def main() -> int:
    """The exit code: 1 when a seed failed, or when many have not once used the relay."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one seed and print its whole trace")
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--processes", type=int, default=2)
    chosen = parser.parse_args()
    if chosen.seed is not None:
        failure = run_seed(chosen.seed, trace_lines=400)
        say(failure or f"seed {chosen.seed}: everything held")
        return failure is not None
    started = time.monotonic()
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    failures = relayed = 0
    told = started
    with get_context("spawn").Pool(chosen.processes) as pool:
        for done, found in enumerate(pool.imap_unordered(run_seeds, chunks), 1):
            relayed += found.relayed
            for failure in found.failures:
                failures += 1
                say(f"{failure}\n")
            if time.monotonic() - told > PROGRESS_S:
                told = time.monotonic()
                seen = min(done * CHUNK, len(seeds))
                say(f"{seen} of {len(seeds)} seeds, {failures} failed")
    took_s = time.monotonic() - started
    told_of = f"{failures} failed, {relayed} used the HTTP relay"
    say(f"{len(seeds)} seeds in {took_s:.1f} s, {told_of}")
    return failures > 0 or (len(seeds) >= CHUNK and not relayed)


if __name__ == "__main__":
    sys.exit(main())
