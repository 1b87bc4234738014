"""Mutations of multipart forms on which readers disagree.

Each mutation changes the form in place. `other` is the model that another reader may find.
"""

import base64
import gzip

from forms import Form, Part, disposition

# Mutations of Content-Type.


def second_form(form, boundary, other):
    """Returns a separate form for readers that use this boundary."""
    inner = Form(boundary, [Part([disposition(b"model")], other), Part([disposition(b"x")], b"1")])
    return inner.encoded()


def two_boundaries(rng, form, other):
    second = b"second"
    one, two = b"boundary=" + form.boundary, b"boundary=" + second
    name = rng.choice([b"boundary", b"Boundary", b"BOUNDARY", b"boundary*", b"boundary*0", b" boundary", b"boundary "])
    two = name + b"=" + (b"utf-8''" if name.endswith(b"*") else b"") + second
    pair = [one, two] if rng.random() < 0.5 else [two, one]
    form.kind = b"multipart/form-data; " + rng.choice([b"; ", b";", b", ", b" "]).join(pair)
    if rng.random() < 0.5:
        form.epilogue = b"\r\n" + second_form(form, second, other)
    else:
        form.preamble = second_form(form, second, other)


def boundary_spelling(rng, form, _other):
    value = form.boundary
    split = len(value) // 2
    form.kind = rng.choice(
        [
            b'multipart/form-data; boundary="%b"' % value,
            b"multipart/form-data; boundary='%b'" % value,
            b"multipart/form-data;boundary=%b" % value,
            b"multipart/form-data ; boundary=%b" % value,
            b"multipart/form-data; boundary = %b" % value,
            b"multipart/form-data; boundary=%b;" % value,
            b"multipart/form-data; boundary=%b; charset=utf-8" % value,
            b"multipart/form-data; charset=utf-8; boundary=%b" % value,
            b"Multipart/Form-Data; Boundary=%b" % value,
            b"MULTIPART/FORM-DATA; BOUNDARY=%b" % value,
            b"multipart/form-data; boundary*=utf-8''%b" % value,
            b"multipart/form-data; boundary*0=%b; boundary*1=%b" % (value[:split], value[split:]),
            b'multipart/form-data; boundary="%b\\%b"' % (value[:split], value[split:]),
            b'multipart/form-data; boundary="%b"x' % value,
            b"multipart/form-data; boundary=%b x" % value,
            b"multipart/form-data; boundary=%b, text/plain" % value,
            b'multipart/form-data; x="; boundary=second; "; boundary=%b' % value,
            b'multipart/form-data; x="\\"; boundary=second; \\""; boundary=%b' % value,
            b'multipart/form-data; x=a"; boundary=%b; y="b' % value,
            b"multipart/form-data; boundary=",
            b"multipart/form-data",
            b"multipart/form-data; boundary",
            b"multipart/form-data\tboundary=%b" % value,
            b"multipart/form-data;\tboundary=%b" % value,
            b"multipart/mixed; boundary=%b" % value,
            b"multipart/form-datax; boundary=%b" % value,
            b"multipart/*; boundary=%b" % value,
            b"multipart/form-data; boundary=%b (comment)" % value,
            b"multipart/form-data; boundary=%b%%20" % value,
        ]
    )


def odd_boundary(rng, form, _other):
    value = rng.choice(
        [
            b"a b",
            b"a;b",
            b"a'b()+_,-./:=?",
            b"x" * 71,
            b"x" * 300,
            b"b\xc3\xa9",
            b"a\\b",
            b'a"b',
            b"-",
            b"--",
            b"a ",
            b"%41",
            b"a,b",
            b"=",
        ]
    )
    form.boundary = value
    form.kind = b'multipart/form-data; boundary="' + value.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'
    if rng.random() < 0.4:
        form.kind = b"multipart/form-data; boundary=" + value


def quoted_semicolon(rng, form, other):
    """Adds a semicolon inside the quoted boundary, at which some readers end the boundary."""
    short = form.boundary
    form.boundary = short + b";" + rng.choice([b"x", b" x=1", b" boundary=y"])
    form.kind = b'multipart/form-data; boundary="' + form.boundary + b'"'
    form.epilogue = b"\r\n" + second_form(form, short, other)


# Mutations of the framing.


def line_ends(rng, form, _other):
    form.line = rng.choice([b"\n", b"\n", b"\r", b"\n\r", b"\r\r\n"])
    form.epilogue = form.line


def smuggled_part(rng, form, other):
    """Adds a part inside the content of another part, with a delimiter that only some readers accept."""
    line = rng.choice([b"\n", b"\r", b"\r\n", b"\x0b", b"\r\r\n"])
    mark = b"--" + form.boundary
    start, end = rng.choice(
        [
            (line + mark + line, line + mark + line),
            (b"x" + mark + b"\r\n", b"\r\n" + mark + b"\r\n"),
            (b"\r\n" + mark + b" \t\r\n", b"\r\n" + mark + b"\r\n"),
            (b"\r\n" + mark + b"x\r\n", b"\r\n" + mark + b"\r\n"),
            (b"\r\n " + mark + b"\r\n", b"\r\n" + mark + b"\r\n"),
            (b"\r\n" + mark + b"\n", b"\r\n" + mark + b"\r\n"),
            (b"\n" + mark + b"\r\n", b"\r\n" + mark + b"\r\n"),
            (b"\r\n-" + mark + b"\r\n", b"\r\n" + mark + b"\r\n"),
            (b"\r\n" + mark + b"-\r\n", b"\r\n" + mark + b"\r\n"),
            (b"\r\n" + mark.upper() + b"\r\n", b"\r\n" + mark.upper() + b"\r\n"),
            (b"\r\n" + mark + b"--x\r\n" + mark + b"\r\n", b"\r\n" + mark + b"\r\n"),
        ]
    )
    head_line = rng.choice([b"\r\n", b"\n", line])
    hidden = start + disposition(b"model") + head_line * 2 + other + end
    hidden += disposition(b"more") + b"\r\n\r\n1"
    carrier = Part([disposition(b"prompt")], b"text" + hidden)
    form.parts.insert(rng.randint(0, len(form.parts)), carrier)


def delimiter_padding(rng, form, _other):
    form.padding = rng.choice([b" ", b"\t", b"  \t ", b"x", b"-", b"--", b";", b"\x0b", b"\xc2\xa0"])


def preamble(rng, form, other):
    hidden = disposition(b"model") + b"\r\n\r\n" + other + b"\r\n"
    form.preamble = rng.choice(
        [
            b"\r\n",
            b"\n",
            b"This is a preamble.\r\n",
            b"text\n",
            b"text",
            b" ",
            hidden,
            b"\r\n\r\n" + hidden,
            b"--" + form.boundary + b"\n" + hidden,
            b"--" + form.boundary + b"--\r\n",
            b"\r\n--" + form.boundary + b"--\r\n",
            b"--" + form.boundary + b"x\r\n" + hidden,
            b"-",
            b"--\r\n",
        ]
    )


def epilogue(rng, form, other):
    more = Form(form.boundary, [Part([disposition(b"model")], other)]).encoded()
    form.epilogue = rng.choice(
        [
            b"",
            b"\n",
            b"\r\n\r\n",
            b"text",
            b"\r\ntext",
            b"\r\n" + more,
            b"\n" + more,
            more,
            b" \r\n" + more,
            b"-\r\n",
            b"\0",
        ]
    )


def last_delimiter(rng, form, _other):
    form.last = rng.choice([None, b"", b"-", b"-- ", b"--x", b" --", b"\r\n--", b"--\0"])


# Mutations of parts.


def second_model(rng, form, other):
    headers = [
        disposition(b"model", rng.choice([b"", b"", b'; filename="x"', b'; filename=""', b"; filename*=utf-8''x"]))
    ]
    form.parts.insert(rng.randint(0, len(form.parts)), Part(headers, other))


def similar_model(rng, form, other):
    name = rng.choice(
        [
            b"Model",
            b"MODEL",
            b"model ",
            b" model",
            b"model[]",
            b"model[0]",
            b"model\0",
            b"mod\\el",
            b"mod%65l",
            b"models",
            b"model\t",
        ]
    )
    if rng.random() < 0.3:
        form.model_part().headers = [disposition(name)]
    else:
        form.parts.insert(rng.randint(0, len(form.parts)), Part([disposition(name)], other))


NAMES = [
    b'form-data; name="/model"',
    b'form-data; name="//model"',
    b'form-data; name="\\/model"',
    b'form-data; name="\\model"',
    b"form-data; name=/model",
    b'form-data; name="model/"',
    b'form-data; name="x/model"',
    b'form-data; name="C:\\model"',
    b'form-data; name="model"; filename',
    b'form-data; filename="a;b"; name="model"',
    b'form-data; name="model"; filename="a;b;c"',
    b'form-data; name="x"; filename="a;name=model"',
    b'form-data; name="other"; x=y; name*0=model',
    b"form-data; name*0*=utf-8''mo; name*1=del",
    b"form-data; name*=model",
    b"form-data; name*=utf-8'en'mod%65l",
    b"form-data; name*=utf-7''+AG0-odel",
    b'form-data; name="&#109;odel"',
    b'form-data; name="model\xe2\x80\x8b"',
    b'form-data; name="\xef\xbb\xbfmodel"',
    b'form-data; name="MODEL"',
    b"form-data; name*=utf-8''model",
    b"form-data; name=\"model\"; name*=utf-8''other",
    b"form-data; name=\"other\"; name*=utf-8''model",
    b"form-data; name*=utf-8''model; name=\"other\"",
    b"form-data; name*0=mo; name*1=del",
    b'form-data; name*0="mo"; name*1="del"; name="other"',
    b"form-data; NAME=model",
    b'form-data; Name="model"',
    b'form-data; name = "model"',
    b'form-data; name ="model"',
    b"form-data; name='model'",
    b'form-data; name=mo"d"el',
    b'form-data; name="mod\\el"',
    b'form-data; name="mod\\\\el"',
    b'form-data; name="model\\"',
    b'form-data; name="model"x',
    b'form-data; name="model',
    b'form-data; name=model"',
    b"form-data; name=model; x",
    b"form-data; name=model x",
    b'form-data; name="mod%65l"',
    b'form-data; name="other"; name="model"',
    b'form-data; name="model"; name="other"',
    b'form-data; name="model"; name="model"',
    b'form-data; name="other"; Name="model"',
    b'form-data; x="; name=model; "; name="other"',
    b'form-data; name="other"; x="; name=model; "',
    b'form-data; x="\\"; name=model; \\""; name="other"',
    b'form-data; x=\\"; name="model"; y="',
    b'form-data; name="other"; filename="a\\"; name=model; b.txt"',
    b'form-data; name="model"; filename=""',
    b'form-data; name="model"; filename="x.txt"',
    b"form-data; name=\"model\"; filename*=utf-8''x",
    b'form-data; filename="x"; name="model"',
    b'form-data;name="model"',
    b'form-data ;name="model"',
    b'form-data;; name="model"',
    b'form-data; ; name="model"',
    b'form-data name="model"',
    b'form-data, name="model"',
    b'FORM-DATA; name="model"',
    b'attachment; name="model"',
    b'file; name="model"',
    b'name="model"',
    b'; name="model"',
    b'form-data; x=1; name="model"',
    b'form-data; name="=?utf-8?q?model?="',
    b'form-data; name="\xef\xbd\x8dodel"',
    b'form-data;\tname="model"',
    b'form-data; name="model"; ',
    b'form-data; name=""; name="model"',
    b"form-data; name=; name=model",
    b'form-data; name="mo\x00del"',
    b'form-data; xname="model"; name="other"',
    b'form-data; name="other\x22; name="model"',
]


def disposition_spelling(rng, form, other):
    header = b"Content-Disposition: " + rng.choice(NAMES)
    if rng.random() < 0.5:
        form.model_part().headers = [header]
    else:
        form.parts.insert(rng.randint(0, len(form.parts)), Part([header], other))


def header_spelling(rng, form, other):
    value = b'form-data; name="model"'
    headers = rng.choice(
        [
            [b'Content-Disposition: form-data;\r\n name="model"'],
            [b'Content-Disposition: form-data;\r\n\tname="model"'],
            [b"Content-Disposition:\r\n " + value],
            [b"Content-Disposition:" + value],
            [b"Content-Disposition : " + value],
            [b" Content-Disposition: " + value],
            [b"\tContent-Disposition: " + value],
            [b"content-disposition: " + value],
            [b"CONTENT-DISPOSITION: " + value],
            [b"Content-Disposition:\t" + value],
            [b"Content-Disposition: " + value + b"  "],
            [b"Content-Disposition: " + value, disposition(b"other")],
            [disposition(b"other"), b"Content-Disposition: " + value],
            [b"X: 1\r\n " + b"Content-Disposition: " + value],
            [b"X: 1\nContent-Disposition: " + value],
            [b"X: 1\rContent-Disposition: " + value],
            [b"X", b"Content-Disposition: " + value],
            [b": x", b"Content-Disposition: " + value],
            [b"Content-Disposition: " + value, b"X"],
            [b"Content-Disposition; " + value],
            [b"Content-Disposition= " + value],
            [b"Content_Disposition: " + value],
            [b"X-Content-Disposition: " + value, disposition(b"other")],
            [b"Content-Type: text/plain; " + value, disposition(b"other")],
            [b"Content-Disposition: " + value + b"\n"],
            [b"Content-Disposition: " + value + b"\0"],
            [b"Content-Disposition: \0" + value],
            [b"X: " + b"y" * rng.choice([1000, 9000, 20000]), b"Content-Disposition: " + value],
            [b"X: \xff\xfe", b"Content-Disposition: " + value],
            [b"Content-Id: <model>", b"Content-Disposition: " + value],
            [],
        ]
    )
    if rng.random() < 0.6:
        form.model_part().headers = headers
    else:
        form.parts.insert(rng.randint(0, len(form.parts)), Part(headers, other))


def part_encoding(rng, form, other):
    part = form.model_part()
    encodings = [
        (b"Content-Transfer-Encoding: base64", base64.b64encode(other)),
        (b"Content-Transfer-Encoding: BASE64", b"YmV0YQ=="),
        (b"Content-Transfer-Encoding: quoted-printable", b"alph=61"),
        (b"Content-Transfer-Encoding: 8bit", part.content),
        (b"Content-Transfer-Encoding: binary", part.content),
        (b"Content-Transfer-Encoding: 7bit", part.content),
        (b"Content-Transfer-Encoding: x-unknown", part.content),
        (b"Content-Encoding: gzip", gzip.compress(other, mtime=0)),
        (b"Content-Encoding: gzip", part.content),
        (b"Content-Encoding: deflate", part.content),
        (b"Content-Encoding: identity", part.content),
        (b"Content-Length: 2", part.content),
        (b"Content-Length: 9999", part.content),
        (b"Content-Length: x", part.content),
    ]
    header, part.content = rng.choice(encodings)
    part.headers = part.headers + [header]


def part_type(rng, form, other):
    part = form.model_part()
    kinds = [
        (b"text/plain", part.content),
        (b"text/plain; charset=utf-8", part.content),
        (b'text/plain; charset="UTF-8"', part.content),
        (b"text/plain; charset=us-ascii", part.content),
        (b"text/plain; charset=iso-8859-1", "caf\u00e9".encode()),
        (b"text/plain; charset=iso-8859-1", "caf\u00e9".encode("latin-1")),
        (b"text/plain; charset=utf-7", b"+AGI-eta"),
        (b"text/plain; charset=utf-16", other.decode("latin-1").encode("utf-16")),
        (b"text/plain; charset=cp037", part.content),
        (b"text/plain; charset=unknown", part.content),
        (b"text/plain; charset=raw_unicode_escape", b"alpha\\u0061"),
        (b"text/plain; charset", part.content),
        (b"application/json", b'"' + other + b'"'),
        (b"application/octet-stream", part.content),
        (b"audio/wav", part.content),
        (b"", part.content),
        (b"x", part.content),
        (b"application/x-www-form-urlencoded", b"bet%61"),
        (b"multipart/mixed; boundary=inner", Form(b"inner", [Part([disposition(b"model")], other)]).encoded()),
        (b"multipart/form-data; boundary=inner", Form(b"inner", [Part([disposition(b"model")], other)]).encoded()),
    ]
    kind, part.content = rng.choice(kinds)
    part.headers = [b"Content-Type: " + kind] + part.headers


def charset_field(rng, form, other):
    """Adds `_charset_`, which is the encoding of the other fields for some readers."""
    name = rng.choice([b"_charset_", b"_charset_", b"_CHARSET_", b"/_charset_", b"_charset"])
    charset, content = rng.choice(
        [
            (b"utf-7", b"+AGI-eta"),
            (b"UTF-7", b"+AGI-eta"),
            (b"utf-7\r\n", b"+AGI-eta"),
            (b"iso-8859-1", "caf\u00e9".encode()),
            (b"iso-8859-1", "caf\u00e9".encode("latin-1")),
            (b"utf-16", other),
            (b"cp037", other),
            (b"raw_unicode_escape", b"alpha\\u0061"),
            (b"utf-8", other),
        ]
    )
    form.model_part().content = content
    form.parts.insert(rng.choice([0, 0, len(form.parts)]), Part([disposition(name)], charset))


def odd_model(rng, form, _other):
    form.model_part().content = rng.choice(
        [
            b"",
            b" alpha",
            b"alpha ",
            b"alpha\r\n",
            b"alpha\n",
            b"alpha\0",
            b'"alpha"',
            b"'alpha'",
            b"ALPHA",
            b"bet%61",
            b"alph=61",
            "caf\u00e9".encode(),
            "caf\u00e9".encode("latin-1"),
            b"\xff",
            b"\xef\xbb\xbfalpha",
            b"\r\nalpha",
            b"alpha\r",
            b"\xc3",
            "cafe\u0301".encode(),
            "\ufffd".encode(),
            b"a" * 2000,
            b"YmV0YQ==",
            b"+AGI-eta",
        ]
    )


def no_model(_rng, form, _other):
    form.parts.remove(form.model_part())


def no_blank_line(rng, form, _other):
    part = form.model_part()
    part.headers = (
        part.headers + [b"alpha"]
        if rng.random() < 0.5
        else part.headers[:-1] + [part.headers[-1] + b"\r\n\r\n" + b"gamma"]
    )


def many_parts(rng, form, _other):
    count = rng.choice([50, 999, 1001, 2500])
    extra = [Part([disposition(b"x")], b"1") for _ in range(count)]
    form.parts = form.parts + extra if rng.random() < 0.5 else extra + form.parts


MUTATIONS = [
    two_boundaries,
    boundary_spelling,
    boundary_spelling,
    odd_boundary,
    quoted_semicolon,
    line_ends,
    smuggled_part,
    smuggled_part,
    delimiter_padding,
    preamble,
    epilogue,
    last_delimiter,
    second_model,
    similar_model,
    disposition_spelling,
    disposition_spelling,
    disposition_spelling,
    header_spelling,
    header_spelling,
    part_encoding,
    part_type,
    charset_field,
    odd_model,
    no_model,
    no_blank_line,
    many_parts,
]
