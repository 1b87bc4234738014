"""JSON requests: plain ones, and mutations on which readers disagree."""

import json

TEXTS = [
    "Hello",
    'Which model are you? "model":"beta"',
    "caf\u00e9 \U0001f600 \u2028",
    "a\tb\nc\\d/e",
    "&model=beta&",
    "",
    '--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nbeta\r\n--x--',
    '{"model":"beta"}',
]
CASES = ["Model", "MODEL", "mODEL", "modeL", "mOdEl"]
OTHER_NAMES = [
    "model ",
    " model",
    "model\u0000",
    "\uff4dodel",
    "mode\u217c",
    "model\u200b",
    "models",
    "m\u043edel",
    "model_",
]


class Members:
    """JSON object as a list of texts, so that it can contain invalid JSON."""

    def __init__(self, pairs, rng):
        self.pairs = pairs
        self.space = rng.choice(["", "", " ", "\n  "])
        self.ascii = rng.random() < 0.5
        self.after = rng.choice(["", "", "", "\n", " \r\n"])

    def text(self):
        colon, comma = (":", ",") if not self.space else (": ", "," + self.space)
        inside = comma.join(name + colon + value for name, value in self.pairs)
        return "{" + self.space + inside + self.space + "}" + self.after

    def quoted(self, value):
        return json.dumps(value, ensure_ascii=self.ascii)


def plain(rng, endpoint, model):
    """Returns a valid request for this model."""
    members = Members([], rng)
    content = rng.choice(TEXTS)
    message = {"role": "user", "content": content}
    if rng.random() < 0.1:
        message["content"] = [{"type": "text", "text": content, "model": "nested"}]
    fields = {
        "/v1/chat/completions": {"messages": [message]},
        "/v1/messages": {"messages": [message], "max_tokens": 64},
        "/v1/messages/count_tokens": {"messages": [message]},
        "/v1/responses": {"input": content},
        "/v1/responses/compact": {"input": [message]},
        "/v1/rerank": {"query": "q", "documents": [content, "b"]},
        "/v1/reranking": {"query": "q", "documents": [content]},
        "/v1/score": {"text_1": "q", "text_2": content},
        "/v1/audio/speech": {"input": content, "voice": "alloy"},
        "/v1/images/generations": {"prompt": content},
        "/v1/completions": {"prompt": content},
        "/api/chat": {"messages": [message]},
        "/api/generate": {"prompt": content},
    }.get(endpoint["path"], {"input": content})
    extra = {
        "temperature": 0.5,
        "max_tokens": 9007199254740993,
        "seed": -1,
        "user": "u1",
        "n": 1e2,
        "stop": None,
        "tools": [{"type": "function", "function": {"name": "model", "parameters": {"model": "beta"}}}],
        "metadata": {"model": "beta", "Model": "gamma"},
        "response_format": {"type": "text"},
        "logit_bias": {},
    }
    for name in rng.sample(sorted(extra), rng.randint(0, 3)):
        fields[name] = extra[name]
    if rng.random() < 0.2:
        fields["stream"] = rng.random() < 0.7
    if rng.random() < 0.02:
        fields["padding"] = "x" * rng.choice([5000, 70000, 300000])
    pairs = [(members.quoted(name), members.quoted(value)) for name, value in fields.items()]
    pairs.insert(rng.randint(0, len(pairs)), ('"model"', members.quoted(model)))
    members.pairs = pairs
    return members


def inserted(rng, members, *pairs):
    for pair in pairs:
        members.pairs.insert(rng.randint(0, len(members.pairs)), pair)


def position_of_model(members):
    """Returns the position of the field `model`."""
    for at, (name, _) in enumerate(members.pairs):
        if name == '"model"':
            return at
    return 0


def escaped_name(rng):
    at = rng.randint(0, 4)
    escape = "\\u%04x" % ord("model"[at])
    return (
        '"'
        + "model"[:at]
        + (escape if rng.random() < 0.5 else escape[:2] + escape[2:].upper())
        + "model"[at + 1 :]
        + '"'
    )


# Mutations of the members. Each changes `members` in place.


def same_name_twice(rng, members, other):
    inserted(rng, members, ('"model"', json.dumps(rng.choice([other, other, "alpha", None, 5]))))


def name_in_another_case(rng, members, other):
    name = json.dumps(rng.choice(CASES))
    if rng.random() < 0.3:
        members.pairs[position_of_model(members)] = (name, members.pairs[position_of_model(members)][1])
    else:
        inserted(rng, members, (name, json.dumps(other)))


def similar_name(rng, members, other):
    inserted(rng, members, (json.dumps(rng.choice(OTHER_NAMES), ensure_ascii=rng.random() < 0.5), json.dumps(other)))


def name_with_escape(rng, members, other):
    if rng.random() < 0.5:
        members.pairs[position_of_model(members)] = (escaped_name(rng), members.pairs[position_of_model(members)][1])
    else:
        inserted(rng, members, (escaped_name(rng), json.dumps(other)))


def stream_in_another_case(rng, members, _other):
    name = rng.choice(['"Stream"', '"\u017ftream"', '"stream"', '"STREAM_OPTIONS"', '"\\u017ftream"'])
    inserted(rng, members, (name, rng.choice(["true", "false", "1", "null", '"true"', "{}"])))


def broken_name(rng, members, other):
    names = [
        "model",
        "'model'",
        '"mod\\el"',
        '"mod\nel"',
        '"model',
        '"\\ud800model"',
        '"mod\\u00el"',
        '"mod\\x65l"',
        '""',
        "null",
        "5",
    ]
    inserted(rng, members, (rng.choice(names), json.dumps(other)))


def model_of_another_type(rng, members, _other):
    values = ["5", "null", '["alpha"]', '{"model":"alpha"}', "true", '""', "1e400", "[]", '[""]', "-0"]
    members.pairs[position_of_model(members)] = ('"model"', rng.choice(values))


def model_absent(_rng, members, _other):
    del members.pairs[position_of_model(members)]


def model_with_odd_text(rng, members, _other):
    values = [
        '"\\u0061lpha"',
        '"alph\\u0061"',
        '" alpha"',
        '"alpha "',
        '"ALPHA"',
        '"alpha\\u0000"',
        '"alpha\\n"',
        '"alpha\\ud800"',
    ]
    values += [
        '"\\ud83d\\ude00"',
        '"alpha\n"',
        '"alph\\a"',
        '"alpha\x7f"',
        '"caf\\u00e9"',
        '"cafe\u0301"',
        '"\\ufffd"',
        '"+AGI-eta"',
        '"alpha\t"',
    ]
    members.pairs[position_of_model(members)] = ('"model"', rng.choice(values))


def odd_value(rng, members, _other):
    values = [
        "NaN",
        "Infinity",
        "-Infinity",
        "01",
        "+1",
        ".5",
        "1.",
        "0x10",
        "1e400",
        "-1e400",
        "1_000",
        "9" * 400,
        "9" * 5000,
    ]
    values += [
        "undefined",
        "True",
        "None",
        "'x'",
        '"\\ud800"',
        '"\\udc00\\ud800"',
        '"a\x01b"',
        '"a\tb"',
        '"\\q"',
        "[1,]",
        "{,}",
        "-",
        "1e",
    ]
    inserted(rng, members, ('"extra"', rng.choice(values)))


def deep_value(rng, members, _other):
    depth = rng.choice([20, 60, 100, 120, 127, 128, 129, 150, 300, 800, 2000, 20000])
    opening, closing = rng.choice([("[", "]"), ('{"a":', "}"), ('{"model":', "}")])
    inserted(rng, members, ('"extra"', opening * depth + "1" + closing * depth))


def many_members(rng, members, _other):
    count = rng.choice([200, 3000])
    members.pairs += [('"k%d"' % number, "1") for number in range(count)]


def prototype(rng, members, other):
    name = rng.choice(['"__proto__"', '"constructor"', '"toJSON"', '"$ref"', '"_model"'])
    inserted(rng, members, (name, json.dumps({"model": other})))


def quoted_in_another_charset(rng, members, other):
    """Adds a string that ends early for readers that decode UTF-7 or Python's escapes first."""
    quote = rng.choice(["+ACI-", "\\u0022", "\\x22"])
    text = "x" + quote + "," + quote + "model" + quote + ":" + quote + other
    members.pairs.append(('"user"', '"' + text + '"'))


def form_inside(rng, members, other):
    """Adds a value that is a field for readers that parse the body as a URL-encoded form."""
    inserted(rng, members, ('"user"', rng.choice(['"&model=%s&"', '"&model=%s"', '"\\u0026model=%s"']) % other))


MEMBERS = [
    same_name_twice,
    name_in_another_case,
    similar_name,
    name_with_escape,
    stream_in_another_case,
    broken_name,
    model_of_another_type,
    model_absent,
    model_with_odd_text,
    odd_value,
    deep_value,
    many_members,
    prototype,
    quoted_in_another_charset,
    form_inside,
]


# Mutations of the whole text. Each returns the new body.


def trailing_data(rng, text, other):
    more = [
        "{}",
        "x",
        "\0",
        json.dumps({"model": other}),
        "\n" + json.dumps({"model": other}),
        ",",
        "]",
        "}",
        "\ufeff",
        "\x0c",
        "//",
        "\u00a0",
    ]
    return (text + rng.choice(more)).encode()


def leading_data(rng, text, other):
    more = [
        "\ufeff",
        "\x0c",
        "\u00a0",
        "\x0b",
        "/**/",
        "#\n",
        ")]}',\n",
        json.dumps({"model": other}),
        "x=",
        "\0",
        "\x1e",
        "data: ",
    ]
    return (rng.choice(more) + text).encode()


def other_encoding(rng, text, _other):
    codecs = ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be", "utf-8-sig", "utf-7", "cp037"]
    return text.encode(rng.choice(codecs), "replace")


def invalid_utf8(rng, text, _other):
    bad = rng.choice([b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xc3", b"\x80", b"\xf4\x90\x80\x80"])
    encoded = text.encode()
    positions = [
        at for at in range(1, len(encoded)) if encoded[at - 1 : at].isalpha() and encoded[at : at + 1].isalpha()
    ]
    at = rng.choice(positions)
    return encoded[:at] + bad + encoded[at:]


def comments(rng, text, other):
    comment = rng.choice(["/* x */", "// x\n", "# x\n", '/*"model":"%s",*/' % other])
    return (
        text.replace(",", comment + ",", 1).encode()
        if rng.random() < 0.5
        else text.replace("{", "{" + comment, 1).encode()
    )


def odd_space(rng, text, _other):
    space = rng.choice(["\u00a0", "\x0c", "\x0b", "\u2028", "\ufeff", "\0", "\x1f", "\x85"])
    return text.replace(":", ":" + space, 1).encode()


def truncated(rng, text, _other):
    return text.encode()[: rng.randint(0, max(0, len(text) - 1))]


def not_an_object(rng, text, other):
    others = [
        "[" + text + "]",
        json.dumps(text),
        "null",
        "5",
        "",
        " ",
        "model=" + other,
        "[]",
        "{}",
        "true",
        '"' + other + '"',
    ]
    return rng.choice(others).encode()


def trailing_comma(_rng, text, _other):
    return (
        "}".join(text.rsplit("}", 1)).replace("}", ",}", 1).encode()
        if text.count("}") == 1
        else (text.rstrip()[:-1] + ",}").encode()
    )


TEXT = [
    trailing_data,
    leading_data,
    other_encoding,
    invalid_utf8,
    comments,
    odd_space,
    truncated,
    not_an_object,
    trailing_comma,
]
