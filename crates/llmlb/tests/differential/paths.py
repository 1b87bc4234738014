"""Spellings of a path and of a query."""

UNICODE = {
    "a": ["\uff41", "\u0430", "\u00aa"],
    "c": ["\uff43", "\u0441", "\u217d"],
    "e": ["\uff45", "\u0435", "e\u0301"],
    "k": ["\u212a"],
    "s": ["\u017f"],
    "/": ["\u2215", "\uff0f"],
    ".": ["\uff0e"],
}


def plain_query(rng, _case):
    return rng.choice([b"", b"beta=true", b"api-version=2024-10-21", b"timeout=600&x=a%20b", b"stream=true"])


def random_at(rng, path, characters=None):
    """Returns a random position after the first slash, at one of these characters."""
    positions = [at for at in range(1, len(path)) if characters is None or path[at] in characters]
    return rng.choice(positions) if positions else len(path) - 1


def case_of_letters(rng, path):
    if rng.random() < 0.5:
        return b"/".join(part.capitalize() for part in path.split(b"/"))
    at = random_at(rng, path, b"abcdefghijklmnopqrstuvwxyz")
    return (
        path[:at] + path[at : at + rng.randint(1, 4)].upper() + path[at + 4 :] if rng.random() < 0.5 else path.upper()
    )


def escape(byte, rng):
    return (b"%%%02x" if rng.random() < 0.5 else b"%%%02X") % byte


def escaped_character(rng, path):
    for _ in range(rng.choice([1, 1, 2, 4])):
        at = random_at(rng, path)
        if path[at : at + 1] != b"%":
            path = path[:at] + escape(path[at], rng) + path[at + 1 :]
    return path


def escaped_slash(rng, path):
    at = random_at(rng, path, b"/")
    return path[:at] + rng.choice([b"%2F", b"%2f"]) + path[at + 1 :]


def escaped_twice(rng, path):
    at = random_at(rng, path)
    return path[:at] + b"%25" + escape(path[at], rng)[1:] + path[at + 1 :]


def parameters(rng, path):
    parameter = rng.choice([b";", b";x=1", b";jsessionid=1/..", b"%3Bx=1", b";a;b", b";v=1.2"])
    at = rng.choice([at for at in range(1, len(path) + 1) if path[at : at + 1] in (b"/", b"")])
    return path[:at] + parameter + path[at:]


def repeated_slash(rng, path):
    at = rng.choice([at for at in range(len(path)) if path[at] == ord("/")])
    return path[:at] + b"/" * rng.randint(1, 3) + path[at:]


def trailing_slash(rng, path):
    return path + b"/" * rng.choice([1, 1, 1, 2, 3])


def ending(rng, path):
    endings = [b"%2F", b"%2f", b"%20", b"%00", b".", b"/.", b"/./", b"%2e", b"%09", b"%0a", b"%0d%0a"]
    endings += [b"%3F", b"%23", b"#", b"#x", b".json", b"%2e%2e", b"/..", b"*", b"~", b"\\", b"%5C", b":", b"%"]
    return path + rng.choice(endings)


def dot_segments(rng, path):
    at = rng.choice([at for at in range(len(path)) if path[at] == ord("/")])
    dots = [b"/.", b"/x/..", b"/%2e", b"/x/%2e%2e", b"/x/.%2E", b"/x/..;", b"/..;", b"/%252e", b"/x/%252e%252e"]
    dots += [b"/x%2F..", b"/x%2f%2e%2e", b"/x/..;a=b", b"/.;x", b"/v1/..", b"/..", b"/x/y/../.."]
    return path[:at] + rng.choice(dots) + path[at:]


def backslash(rng, path):
    at = random_at(rng, path, b"/")
    return path[:at] + rng.choice([b"\\", b"%5C", b"%5c", b"/\\", b"\\/"]) + path[at + 1 :]


def unicode(rng, path):
    at = random_at(rng, path, "".join(UNICODE).encode())
    lookalikes = UNICODE.get(chr(path[at]), ["\u200b"])
    text = rng.choice(lookalikes).encode()
    if rng.random() < 0.7:
        text = b"".join(escape(byte, rng) for byte in text)
    return path[:at] + text + path[at + 1 :]


def overlong(rng, path):
    at = random_at(rng, path)
    low = path[at]
    encoded = bytes([0xC0 | low >> 6, 0x80 | low & 0x3F])
    if rng.random() < 0.7:
        encoded = b"".join(escape(byte, rng) for byte in encoded)
    return path[:at] + encoded + path[at + 1 :]


def inside_another_endpoint(rng, path):
    rest = path[len(b"/v1/") :] if path.startswith(b"/v1/") else path[1:]
    slash = rng.choice([b"/", b"%2F", b"%2f", b"%252F", b"\\", b"%5C"])
    up = rng.choice([b"..", b"%2e%2e", b"..;", b".%2E", b"%252e%252e"])
    before = rng.choice([b"/v1/files/", b"/v1/models/", b"/v1/files/x" + slash + up + slash, b"/v1/vendor/"])
    return before + up + slash + slash.join(rest.split(b"/"))


def other_prefix(rng, path):
    rest = path[len(b"/v1/") :] if path.startswith(b"/v1/") else path[1:]
    prefixes = [b"/", b"/V1/", b"/v1%2F", b"/%76%31/", b"/v1;x/", b"/openai/v1/", b"//v1/", b"/./v1/", b"/v1/v1/"]
    prefixes += [b"/x/../v1/", b"/api/v1/", b"/v01/", b"/v1\x0b/", b"/v1%20/", b"/%2Fv1/", b"/api/", b"/v1.0/"]
    return rng.choice(prefixes) + rest


def absolute_form(rng, path):
    authority = rng.choice([b"localhost", b"localhost:80", b"LOCALHOST", b"user@localhost", b"other.example"])
    return rng.choice([b"http://", b"https://", b"HTTP://", b"//", b"ws://"]) + authority + path


def raw_byte(rng, path):
    at = random_at(rng, path)
    byte = rng.choice(
        [b"\x00", b"\x01", b"\t", b"\x7f", b"\x80", b"\xff", b"\xc3\xa9", b'"', b"<", b"^", b"`", b"|", b"{"]
    )
    return path[:at] + byte + path[at:]


def model_in_query(rng, case):
    other = rng.choice([b"beta", b"alpha", b"", b"%62eta", b"a+b", b"caf%C3%A9", b"%ff", b"%zz"])
    name = rng.choice([b"model", b"model", b"Model", b"mod%65l", b"model[]", b"%6Dodel", b"model%00", b" model"])
    name = name.replace(b" ", b"+")
    first = rng.choice([b"", b"x=1&", b"x=1;", b"model=gamma&", b"&&", b"?", b"model&", b"x=%26"])
    return (
        first + name + b"=" + other + rng.choice([b"", b"&model=alpha", b";model=alpha", b"#&model=x", b"&Model=beta"])
    )


PATHS = [
    case_of_letters,
    escaped_character,
    escaped_slash,
    escaped_twice,
    parameters,
    repeated_slash,
    trailing_slash,
    ending,
    dot_segments,
    backslash,
    unicode,
    overlong,
    inside_another_endpoint,
    other_prefix,
    absolute_form,
    raw_byte,
]
