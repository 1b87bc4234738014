"""Compares the usage records of llmlb with the readings of the readers."""

import collections
import json

from case import body_of, header_of


# Maximum number of groups of failures that are printed without --verbose.
GROUPS = 60


class Reading:
    """Endpoint and model that a reader would serve. `endpoint` is None if it rejects the request."""

    def __init__(self, response):
        self.endpoint, self.model = None, None
        # Frameworks respond to OPTIONS and HEAD without calling the endpoint.
        if response is not None and response.status == 200 and response.body.startswith(b"{"):
            read = json.loads(response.body)
            # An empty name means the default model, like a missing one.
            self.endpoint, self.model = read["endpoint"], read["model"] or None

    def __str__(self):
        return "rejects" if self.endpoint is None else f"{self.endpoint} model={self.model!r}"


class Outcome:
    """Results of one request: llmlb's response, the forwarded bytes, the readings and the records."""

    def __init__(self, message, response, forwarded):
        self.message = message
        self.response = response
        # Bytes that the backend received. None if llmlb did not forward the request.
        self.forwarded = forwarded
        self.readings = {}
        self.records = []

    def code(self):
        """Returns status and error code of llmlb's own response."""
        if self.response is None:
            return "closed"
        try:
            error = json.loads(self.response.body)["error"]
            code = error.get("code") or error.get("type") if isinstance(error, dict) else error
        except (ValueError, KeyError, TypeError):
            code = "-"
        # Errors under Ollama's endpoints are sentences.
        return f"{self.response.status} {code if ' ' not in str(code) else '(a sentence)'}"

    def agreement(self):
        """Returns the reading that all readers share; None if they differ or all of them reject."""
        readings = {(reading.endpoint, reading.model) for reading in self.readings.values()}
        if len(readings) != 1:
            return None
        endpoint, model = next(iter(readings))
        return None if endpoint is None else (endpoint, model)


def mismatches(outcome, endpoints):
    """Returns (kind, text) for each kind of difference between the record and the readings."""
    if outcome.forwarded is None:
        return []
    if not outcome.records:
        return [("unrecorded", "forwarded, but there is no usage record")]
    found = []
    if len(outcome.records) > 1:
        found.append(("recorded twice", f"{len(outcome.records)} usage records"))
    if changed(outcome):
        found.append(("body", "the backend received another body than the client sent"))
    record = outcome.records[0]
    api, path, model = record["api"], record["path"], record.get("model") or None
    wrong = {"endpoint": [], "model": []}
    for name, reading in outcome.readings.items():
        apis = {endpoint["api"] for endpoint in endpoints if endpoint["path"] == reading.endpoint}
        served = next(iter(apis), None)
        if served is None:
            continue
        if served != "*" and (api, path) != (served, reading.endpoint):
            wrong["endpoint"].append(f"{name}: {reading}")
        elif reading.model != model:
            wrong["model"].append(f"{name}: {reading}")
    recorded = f"recorded: {path} ({api}) model={model!r}; "
    return found + [(kind, recorded + "; ".join(texts)) for kind, texts in wrong.items() if texts]


def changed(outcome):
    """True if the body was changed. llmlb may add `stream_options` to a streamed request."""
    sent, received = outcome.message.body(), body_of(outcome.forwarded)
    is_coded = header_of(outcome.message.raw, b"content-encoding") is not None
    return sent != received and not (b"include_usage" in received or is_coded)


class Report:
    def __init__(self, endpoints, models):
        self.endpoints = endpoints
        self.models = models
        self.counts = collections.Counter()
        self.classes = collections.Counter()
        # Requests that a reader serves, by reader and class.
        self.readers = collections.Counter()
        self.rejections = collections.Counter()
        self.mismatches = collections.defaultdict(list)
        self.false_rejections = collections.defaultdict(list)
        self.failing = []
        # Stays empty, because all readers agree on plain requests.
        self.plain_disagreements = []

    def add(self, outcome):
        label = outcome.message.label
        is_benign = label in ("plain", "varied")
        self.classes[label] += 1
        for mutation in outcome.message.mutations:
            self.classes[f"  {label}, {mutation}"] += 1
        agreed = outcome.agreement()
        for name, reading in outcome.readings.items():
            self.readers[name, label] += reading.endpoint is not None
        if agreed is None and label == "plain":
            self.plain_disagreements.append(outcome)
        # Known requests are all hostile and would distort the shares.
        agreed = None if label == "known" else agreed
        self.counts["all readers agree"] += agreed is not None
        self.counts["benign, and all readers agree"] += agreed is not None and is_benign
        is_own_response = outcome.forwarded is None and outcome.response is not None and outcome.response.status < 400
        found = mismatches(outcome, self.endpoints)
        if found:
            self.counts["mismatch"] += 1
            self.failing.append(outcome)
            for kind, text in found:
                self.mismatches[kind, group(outcome)].append((outcome, text))
        elif outcome.forwarded is not None:
            self.counts["forwarded, record equals every reading"] += 1
        elif is_own_response:
            self.counts["response of llmlb itself"] += 1
        else:
            self.counts["rejected"] += 1
            self.rejections[outcome.code()] += 1
            self.add_rejection(outcome, agreed, is_benign)

    def add_rejection(self, outcome, agreed, is_benign):
        if agreed is None or (agreed[1] is not None and agreed[1] not in self.models):
            return
        self.counts["rejected although all readers agree"] += 1
        self.counts["benign, and rejected although all readers agree"] += is_benign
        text = f"all readers: {agreed[0]} model={agreed[1]!r}"
        self.false_rejections[outcome.code(), group(outcome)].append((outcome, text))
        self.failing.append(outcome)

    def share_of_false_rejections(self, prefix=""):
        """Returns the share of all requests, or of benign ones with the prefix `benign, and `."""
        rejected = self.counts[prefix + "rejected although all readers agree"]
        return rejected / max(1, self.counts[prefix + "all readers agree"])

    def show(self, is_verbose):
        print("requests by class (one request can have several mutations):")
        for name, count in sorted(self.classes.items(), key=lambda item: (item[0].startswith(" "), -item[1])):
            if is_verbose or not name.startswith(" "):
                print(f"  {count:6} {name}")
        print("results:")
        for name, count in sorted(self.counts.items()):
            print(f"  {count:6} {name}")
        print("requests that each reader serves:")
        for (name, label), count in sorted(self.readers.items()):
            print(f"  {count:6} {label} by {name}")
        print("rejections by status and code:")
        for name, count in self.rejections.most_common():
            print(f"  {count:6} {name}")
        self.show_groups("REJECTED although all readers agree", self.false_rejections, is_verbose)
        self.show_groups("MISMATCH", self.mismatches, is_verbose)

    def show_groups(self, title, groups, is_verbose):
        # Groups with a single mutation come first, because their cause is evident.
        ordered = sorted(groups.items(), key=lambda item: (item[0][1].count(","), -len(item[1])))
        for (kind, mutations), found in ordered if is_verbose else ordered[:GROUPS]:
            outcome, detail = min(found, key=lambda pair: len(pair[0].message.raw))
            print(f"{title}: {kind} [{mutations}], {len(found)} times; shortest: {outcome.message.request_id}")
            print(f"    {detail}")
            for line in excerpt(outcome.message.raw):
                print(f"    | {line}")
        if len(ordered) > GROUPS and not is_verbose:
            print(f"{title}: {len(ordered) - GROUPS} more groups; --verbose prints them")


def group(outcome):
    return ", ".join([outcome.message.label, *outcome.message.mutations])


def excerpt(raw):
    """Returns the lines of a request as text. Long lines are truncated."""
    lines = [repr(line)[2:-1] for line in raw.split(b"\r\n")]
    lines = lines if len(lines) <= 40 else lines[:30] + ["..."] + lines[-9:]
    return [line if len(line) <= 300 else line[:200] + " ... " + line[-80:] for line in lines]
