"""Mutations of hostile requests. Each changes a case in place and may return a detail for its name."""

import gzip
import zlib

import form_mutations
import json_bodies
import names
import paths
from plain import JSON_TYPES


def method(rng, case):
    case.method = rng.choice(
        ["GET", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "post", "Post", "QUERY", "PURGE", "POST "]
    )


def path(rng, case):
    mutation = rng.choice(paths.PATHS)
    case.path = mutation(rng, case.path)
    return mutation.__name__


def query(rng, case):
    case.query = paths.model_in_query(rng, case)


def type_of_body(rng, case):
    boundary = b"x"
    case.content_type = rng.choice(
        [
            b"multipart/form-data; boundary=" + boundary,
            b"multipart/form-data",
            b"application/octet-stream",
            b"application/xml",
            b"application/x-www-form-urlencoded",
            b"application/x-www-form-urlencoded; charset=utf-8",
            b"",
            b"json",
            b"*/*",
            b"text/html",
            b"application/json; boundary=x",
            b"application/json, multipart/form-data; boundary=x",
            b"multipart/form-data; boundary=x, application/json",
            b"application/json;",
            b";",
            b"application/problem+json",
            b"application/jsonx",
            b"text/plain; charset=utf-8",
            b"audio/wav",
            b"multipart/mixed; boundary=x",
            b'"application/json"',
            b"application/json\tx",
            b"application/json; charset=utf-8; charset=utf-16",
            b"multipart/form-data; boundary=\xff",
            b"application/ndjson",
        ]
    )
    if rng.random() < 0.25:
        case.body = form_like_body(rng)


def form_like_body(rng):
    return rng.choice(
        [
            b"model=beta&prompt=x",
            b"model=alpha&model=beta",
            b"Model=beta",
            b"mod%65l=beta",
            b"prompt=x&model=bet%61",
            b"model=beta;model=alpha",
            b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nbeta\r\n--x--\r\n',
            b'{"model":"alpha","x":"\r\n--x\r\nContent-Disposition: form-data; name=\\"model\\"\r\n\r\nbeta\r\n--x--\r\n"}',
            b'{"model":"alpha","x":"&model=beta&"}',
            b'{"model":"alpha","&model":"beta"}',
            b'{"model":"alpha"}',
            b'[{"model":"alpha"}]',
        ]
    )


def charset(rng, case):
    value = rng.choice(
        [
            b"utf-8",
            b"utf8",
            b"UTF8",
            b"us-ascii",
            b"iso-8859-1",
            b"latin1",
            b"windows-1252",
            b"utf-16",
            b"utf-16le",
            b"utf-7",
            b"UTF-7",
            b"utf-32",
            b"cp037",
            b"raw_unicode_escape",
            b"unicode_escape",
            b"idna",
            b"punycode",
            b"rot13",
            b"hex",
            b"undefined",
            b"x-user-defined",
            b"",
            b'"utf-7"',
            b"'utf-7'",
            b"utf-8-sig",
            b"shift_jis",
            b"utf-8; charset=utf-7",
        ]
    )
    case.content_type = (
        rng.choice([b"application/json", b"text/plain", b"application/vnd.api+json"]) + b"; charset=" + value
    )
    members = case.members
    if members is not None and rng.random() < 0.6:
        json_bodies.quoted_in_another_charset(rng, members, "beta")
    elif members is not None and rng.random() < 0.3:
        codec = value.decode("latin-1").strip("\"'")
        if codec in ("utf-16", "utf-16le", "utf-7", "utf-32", "cp037", "iso-8859-1", "utf-8-sig", "shift_jis"):
            case.body = members.text().encode(codec, "replace")


def two_types(rng, case):
    kinds = [
        b"application/json",
        b"multipart/form-data; boundary=x",
        b"application/x-www-form-urlencoded",
        b"text/plain",
    ]
    if case.form is not None:
        second = form_mutations.second_form(case.form, b"second", b"beta")
        case.form.epilogue = b"\r\n" + second
        kinds = [b"multipart/form-data; boundary=second", b"multipart/form-data; boundary=second", b"application/json"]
        case.content_type = case.form.kind
    case.headers.insert(0, rng.choice([b"Content-Type: ", b"content-type:", b"CONTENT-TYPE: "]) + rng.choice(kinds))
    if rng.random() < 0.5:
        case.headers.insert(0, case.headers.pop(0))
        case.content_type, first = case.headers[0].partition(b":")[2].strip(), case.content_type
        case.headers[0] = b"Content-Type: " + (first or b"application/json")


def content_encoding(rng, case):
    coding = rng.choice(
        [
            b"gzip",
            b"gzip",
            b"deflate",
            b"br",
            b"identity",
            b"x-gzip",
            b"zstd",
            b"gzip, identity",
            b"identity, gzip",
            b"GZIP",
            b"",
            b"aws-chunked",
            b"unknown",
        ]
    )
    case.encode_body()
    body = case.body or b""
    if rng.random() < 0.7 and coding.lower() in (b"gzip", b"x-gzip", b"gzip, identity", b"identity, gzip"):
        case.body = gzip.compress(body, mtime=0)
    elif rng.random() < 0.7 and coding == b"deflate":
        case.body = zlib.compress(body)
    case.headers.append(b"Content-Encoding: " + coding)


def other_header(rng, case):
    case.headers.append(
        rng.choice(
            [
                b"X-HTTP-Method-Override: GET",
                b"X-HTTP-Method: PUT",
                b"X-Original-URL: /v1/chat/completions",
                b"X-Rewrite-URL: /v1/embeddings",
                b"X-Forwarded-Prefix: /v1",
                b"X-Script-Name: /v1",
                b"Content-Location: /v1/embeddings",
                b"X-Model: beta",
                b"Content-Disposition: form-data; name=model",
                b"Content-Transfer-Encoding: base64",
                b"Content-Type-Options: x",
                b"X-Content-Type: multipart/form-data",
                b"Content_Type: multipart/form-data; boundary=x",
                b"Forwarded: host=x;path=/v1/embeddings",
                b"Range: bytes=0-3",
                b"Accept-Charset: utf-7",
            ]
        )
    )


def body_of_a_method_without_body(rng, case):
    case.method = rng.choice(["GET", "HEAD", "DELETE", "OPTIONS"])
    case.body = rng.choice([b'{"model":"beta"}', b"x", b""])


def json_members(rng, case):
    mutation = rng.choice(json_bodies.MEMBERS)
    mutation(rng, case.members, rng.choice(["beta", "gamma"]))
    return mutation.__name__


def json_text(rng, case):
    mutation = rng.choice(json_bodies.TEXT)
    case.body = mutation(rng, case.members.text(), rng.choice(["beta", "gamma"]))
    return mutation.__name__


def form_body(rng, case):
    mutation = rng.choice(form_mutations.MUTATIONS)
    mutation(rng, case.form, rng.choice([b"beta", b"gamma"]))
    return mutation.__name__


def json_for_a_form(rng, case):
    """Sends JSON to an endpoint whose body may also be a form."""
    case.members = json_bodies.plain(rng, case.endpoint, rng.choice(names.PLAIN))
    if rng.random() < 0.5:
        json_bodies.form_inside(rng, case.members, "beta")
    kinds = [b"application/x-www-form-urlencoded", b"Application/X-WWW-Form-URLEncoded; charset=utf-8", b"text/plain"]
    kinds += [
        b"application/x-www-form-urlencoded, application/json",
        b"application/json, application/x-www-form-urlencoded",
    ]
    kinds += [
        b"application/x-www-form-urlencoded\tx",
        b"application/x-www-form-urlencoded;",
        b"application/x-www-form-urlencoded x",
    ]
    kinds += [b"multipart/form-data", b"multipart/form-data ;boundary=x", b"multipart/form-data, application/json", b""]
    case.content_type = rng.choice(JSON_TYPES + kinds + [case.form.kind])
    case.form = None


def trailers(rng, case):
    """Adds a trailer field after the last chunk."""
    case.chunks = case.chunks or 50
    case.trailers = rng.choice(
        [b"Content-Type: multipart/form-data; boundary=second", b"X-Model: beta", b"Content-Length: 3"]
    )


def mutations_for(case):
    general = [path] * 8 + [query, method, other_header, content_encoding, body_of_a_method_without_body, two_types, trailers]
    if case.endpoint["reads"] == "json":
        return general + [json_members] * 6 + [json_text] * 4 + [type_of_body] * 2 + [charset] * 3
    if case.endpoint["reads"] == "form":
        return general + [form_body] * 26 + [json_for_a_form, json_for_a_form, type_of_body, query, query]
    if case.endpoint["reads"] == "query":
        return general + [query] * 8
    return general


def mutate(rng, case):
    """Applies one to three mutations."""
    for _ in range(rng.choices([1, 2, 3], [70, 22, 8])[0]):
        mutation = rng.choice(mutations_for(case))
        if mutation in (json_members, json_text) and (case.members is None or case.body is not None):
            continue
        if mutation in (form_body, json_for_a_form) and (case.form is None or case.body is not None):
            continue
        detail = mutation(rng, case)
        case.mutations.append(mutation.__name__ + (":" + detail if detail else ""))
