"""Processes of a run: llmlb, and one reader for each independent implementation."""

import json
import os
import pathlib
import signal
import subprocess
import time

import names

HERE = pathlib.Path(__file__).resolve().parent
READERS = HERE / "readers"
ENDPOINTS = HERE / "endpoints.json"
# Maximum seconds for starting and stopping a process.
TIMEOUT = 60


class Failed(Exception):
    """Error that prevents a run. The message names the missing program or file."""


class Reader:
    """Server that reports the endpoint and the model that it reads in each request."""

    def __init__(self, name, directory, command):
        self.name = name
        # A file, because frameworks print a trace for many rejected requests.
        self.log = pathlib.Path(directory) / f"{name}.log"
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, cwd=READERS
            )

    def wait(self):
        line = self.process.stdout.readline()
        if not line.strip():
            raise Failed(f"reader {self.name} ended before it listened:\n{self.log.read_text(errors='replace')}")
        self.port = int(line)

    def check(self):
        """Raises an error if the reader has ended, since a missing reader would seem to reject everything."""
        if self.process.poll() is not None:
            text = self.log.read_text(errors="replace")
            raise Failed(f"reader {self.name} ended with {self.process.returncode}:\n{text[-3000:]}")

    def stop(self):
        self.process.stdin.close()
        self.process.wait(TIMEOUT)


def readers(tools, directory):
    """Starts every reader."""
    started = [
        Reader("werkzeug", directory, [tools.python, "werkzeug_reader.py"]),
        Reader("starlette", directory, [tools.python, "starlette_reader.py"]),
        Reader("aiohttp", directory, [tools.python, "aiohttp_reader.py"]),
        Reader("express", directory, [tools.node, "node/express_reader.mjs", str(ENDPOINTS)]),
        Reader("go", directory, [tools.go_reader(), str(ENDPOINTS)]),
    ]
    for reader in started:
        reader.wait()
    return started


class Tools:
    """Programs that run the readers. Compiled readers are stored in `cache`."""

    def __init__(self, python, node, go, cache):
        self.python, self.node, self.go = python, node, go
        self.cache = pathlib.Path(cache).resolve()
        self.cache.mkdir(parents=True, exist_ok=True)
        for name, program, proof in (
            ("node", node, READERS / "node" / "node_modules" / "installed.json"),
            ("go", go, READERS),
        ):
            if program is None or not proof.exists():
                raise Failed(f"the {name} reader cannot run\nRun: scripts/install-test-tools")

    def go_reader(self):
        environment = os.environ | {"GO111MODULE": "off", "GOCACHE": str(self.cache / "go-cache")}
        command = [self.go, "build", "-o", str(self.cache / "go-reader"), "main.go"]
        subprocess.run(command, cwd=READERS / "go", env=environment, check=True)
        return str(self.cache / "go-reader")


class Llmlb:
    """llmlb server under test with one backend, and its usage records."""

    def __init__(self, program, directory, backend_port):
        self.directory = pathlib.Path(directory)
        models = ", ".join(json.dumps(name) for name in names.ALL)
        config = (
            f'[[backend]]\nname = "b"\nurl = "http://127.0.0.1:{backend_port}"\nkind = "ollama"\nmodels = [{models}]\n'
        )
        (self.directory / "llmlb.toml").write_text(config)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LLMLB_")}
        environment["LLMLB_LOCK_DIR"] = str(self.directory / "locks")
        environment["LLMLB_DATA_DIR"] = str(self.directory / "data")
        environment["LLMLB_USAGE_EVERY"] = "1h"
        self.log = self.directory / "llmlb.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [program, "serve", "-p", "0", "--config", "llmlb.toml"],
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.port = self.wait()

    def wait(self):
        mark, deadline = "listening on http://", time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            text = self.log.read_text(errors="replace")
            if mark in text and " " in text.split(mark, 1)[1]:
                return int(text.split(mark, 1)[1].split(" ", 1)[0].rsplit(":", 1)[1].strip("/"))
            if self.process.poll() is not None:
                raise Failed(f"llmlb ended before it listened:\n{text}")
            time.sleep(0.02)
        raise Failed("llmlb does not listen")

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(TIMEOUT)

    def records(self):
        """Returns the usage records by request id."""
        found = {}
        data = self.directory / "data"
        for file in sorted(data.glob("_staging/*.jsonl*")):
            lines = (line for line in file.read_text(errors="replace").splitlines() if '"record"' in line)
            add_records(found, (json.loads(line)["record"] for line in lines))
        for file in sorted(data.glob("spool/*.json")) + sorted(data.glob("archive/*.json")):
            add_records(found, json.loads(file.read_text()).get("records", []))
        return found


def add_records(found, records):
    for record in records:
        found.setdefault(record["request_id"], []).append(record)
