"""Differential test: llmlb and independent readers of HTTP, JSON and multipart.

Generated requests are sent to llmlb. The bytes that the backend receives are sent to real servers,
the readers: Werkzeug, Starlette on uvicorn, aiohttp, Express with busboy, and Go's net/http. Each
reader reports the endpoint and the model that it would serve. Both must equal the usage record. A
request that llmlb rejects is sent to the readers as the client sent it. If all readers agree on it,
the rejection counts against the limit of 2 %.

Exits 0 if there is no mismatch and at most 2 % of the requests on which all readers agree are
rejected, 1 if not, and 2 if the test cannot run.
"""

import argparse
import asyncio
import json
import pathlib
import shutil
import sys
import tempfile
import time

import generate
import known
import names
import processes
from backend import Backend
from case import Message
from client import exchange
from verdict import Outcome, Reading, Report, excerpt

LIMIT = 0.02
# Maximum number of requests in flight.
CONCURRENCY = 16


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000, help="number of generated requests (default 10000)")
    parser.add_argument("--seed", default="1", help="the same seed gives the same requests (default 1)")
    parser.add_argument(
        "--hostile",
        type=float,
        default=generate.HOSTILE,
        metavar="SHARE",
        help=f"share of hostile requests (default {generate.HOSTILE}); with more, the limit of 2 %% applies to benign requests only",
    )
    parser.add_argument("--llmlb-bin", required=True, help="program under test")
    parser.add_argument("--replay", metavar="FILE", help="send the requests of this file instead")
    parser.add_argument("--save", metavar="FILE", help="write the requests that failed to this file")
    parser.add_argument("--node", default=shutil.which("node"), help="Node program")
    parser.add_argument("--go", default=shutil.which("go"), help="Go program")
    parser.add_argument("--cache", metavar="DIR", help="directory for the compiled readers")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="print every mutation's count, and each replayed request"
    )
    return parser.parse_args()


async def in_parallel(function, items):
    """Calls the function for every item. Returns the results in the order of the items."""
    limit = asyncio.Semaphore(CONCURRENCY)

    async def limited(item):
        async with limit:
            return await function(item)

    return await asyncio.gather(*map(limited, items))


async def run(options, messages, endpoints, directory):
    """Sends all requests to llmlb and to the readers, and returns the outcomes."""
    cache = options.cache or directory
    tools = processes.Tools(sys.executable, options.node, options.go, cache)
    backend = Backend()
    await backend.start()
    started = await asyncio.to_thread(processes.readers, tools, directory)
    print("readers:", ", ".join(reader.name for reader in started), flush=True)
    llmlb = await asyncio.to_thread(processes.Llmlb, options.llmlb_bin, directory, backend.port)
    try:

        async def send(message):
            response = await exchange(llmlb.port, message.raw)
            return Outcome(message, response, backend.received.get(message.request_id))

        outcomes = await in_parallel(send, messages)

        async def read(pair):
            outcome, reader = pair
            raw = outcome.forwarded if outcome.forwarded is not None else outcome.message.raw
            outcome.readings[reader.name] = Reading(await exchange(reader.port, raw))

        await in_parallel(read, [(outcome, reader) for outcome in outcomes for reader in started])
        for reader in started:
            reader.check()
        await asyncio.to_thread(llmlb.stop)
        records = llmlb.records()
        for outcome in outcomes:
            outcome.readings = {reader.name: outcome.readings[reader.name] for reader in started}
            outcome.records = records.get(outcome.message.request_id, [])
        return outcomes
    finally:
        await asyncio.to_thread(llmlb.stop)
        for reader in started:
            reader.stop()


def main():
    options = arguments()
    options.llmlb_bin = str(pathlib.Path(options.llmlb_bin).resolve())
    if not pathlib.Path(options.llmlb_bin).is_file():
        raise processes.Failed(f"there is no program {options.llmlb_bin}\nRun: cargo build --release -p llmlb")
    endpoints = json.loads(processes.ENDPOINTS.read_text())
    if options.replay:
        lines = pathlib.Path(options.replay).read_text().splitlines()
        messages = [Message.from_line(line) for line in lines]
        print(f"{len(messages)} requests from {options.replay}", flush=True)
    else:
        messages = list(generate.messages(options.seed, options.requests, endpoints, options.hostile))
        messages += known.messages(len(messages))
        print(
            f"seed {options.seed}, {options.requests} generated requests, {len(known.REQUESTS)} known ones", flush=True
        )
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="llmlb-differential-") as directory:
        outcomes = asyncio.run(run(options, messages, endpoints, directory))
    report = Report(endpoints, set(names.ALL))
    for outcome in outcomes:
        report.add(outcome)
        if options.replay and options.verbose:
            show(outcome)
    return conclude(options, report, time.monotonic() - began)


def show(outcome):
    print(f"{outcome.message.request_id} {outcome.message.mutations}: {outcome.code()}")
    print("\n".join(f"    | {line}" for line in excerpt(outcome.message.raw)))
    print(f"    forwarded: {outcome.forwarded is not None}, records: {outcome.records}")
    for name, reading in outcome.readings.items():
        print(f"    {name}: {reading}")


def conclude(options, report, seconds):
    report.show(options.verbose)
    if report.plain_disagreements:
        outcome = report.plain_disagreements[0]
        show(outcome)
        raise processes.Failed(f"the readers differ on {len(report.plain_disagreements)} plain requests")
    mismatched = report.counts["mismatch"]
    is_usual_mix = options.hostile <= generate.HOSTILE and not options.replay
    share = report.share_of_false_rejections("" if is_usual_mix else "benign, and ")
    if options.save and report.failing:
        lines = [outcome.message.to_line(options.seed) for outcome in report.failing]
        pathlib.Path(options.save).write_text("\n".join(lines) + "\n")
        print(f"{len(lines)} requests saved; run them again with --replay {options.save}")
    print(
        f"{mismatched} mismatches; {share:.2%} of the {'' if is_usual_mix else 'benign '}requests "
        f"on which all readers agree are rejected "
        f"(limit {LIMIT:.0%}); {seconds:.0f} s"
    )
    return 1 if mismatched or share > LIMIT else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except processes.Failed as failure:
        print(f"differential: {failure}", file=sys.stderr)
        sys.exit(2)
