"""Models that the backend of llmlb serves."""

# Names for plain requests.
PLAIN = ["alpha", "beta", "gamma", "acme/chat:7b", "caf\u00e9", "llama-3.3-70b-instruct"]

# Names that one reader decodes to another model and that another reader leaves unchanged. They must be
# known to llmlb, which would otherwise reject the request because of an unknown model.
ENCODED = [
    "alph=61",  # quoted-printable
    "YmV0YQ==",  # base64
    "+AGI-eta",  # UTF-7
    "bet%61",  # percent-encoding
    "Alpha",
    "ALPHA",
    " alpha",
    "alpha ",
    "alpha\n",
    '"alpha"',
    "'alpha'",
    "alpha\\u0061",
    "cafe\u0301",
    "caf\u00c3\u00a9",  # UTF-8 read as Latin-1
    "\ufffd",
]

ALL = PLAIN + ENCODED
