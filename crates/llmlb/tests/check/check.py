"""Validates TOML files against a JSON Schema; prints a list of booleans. Input: a JSON file with `schema` and `files`."""

import datetime
import json
import sys
import tomllib

from jsonschema import Draft202012Validator


def plain(value):
    """Replaces dates, which JSON does not have, by text."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    return value


with open(sys.argv[1], encoding="utf-8") as file:
    given = json.load(file)
schema = json.loads(given["schema"])
Draft202012Validator.check_schema(schema)
validator = Draft202012Validator(schema)
print(json.dumps([validator.is_valid(plain(tomllib.loads(text))) for text in given["files"]]))
