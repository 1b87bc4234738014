"""Generates requests. Most are benign, as clients send them. The others are hostile."""

import random

import mutations
import plain
import variations
from case import Message

# Share of hostile requests, and share of variations among the benign ones.
HOSTILE = 0.2
VARIED = 0.25


def messages(seed, count, endpoints, hostile):
    """Returns the requests of a seed. Each depends only on the seed, its number and the share."""
    for number in range(count):
        rng = random.Random(f"{seed}/{number}")
        is_hostile, is_varied = rng.random() < hostile, rng.random() < VARIED
        case = plain.request(rng, number, endpoints)
        if is_hostile:
            case.label = "hostile"
            mutations.mutate(rng, case)
        elif is_varied:
            case.label = "varied"
            variations.vary(rng, case)
        case.encode_body()
        yield Message.from_case(case)
