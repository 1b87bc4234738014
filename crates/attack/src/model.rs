//! Item 3 of docs/attacks.md: requests that llmlb records and routes as one model and a backend serves as
//! another.
//!
//! Each variation has a small parser that finds the model as some form library does. A request must be
//! rejected, or its record must have the model that this parser finds.

use std::io;

use testkit::{FakeLlm, Received, Reply, Request, Sandbox, chat_completion};

use crate::{Attack, Outcome, Target, rejected, verdict};

/// Cheap model, as which the attacker wants a request to be billed.
const CHEAP: &str = "cheap";
/// Expensive model, which the attacker wants the backend to serve for that request.
const DEAR: &str = "dear";

/// Parser of a backend. Returns the model that the backend serves, which llmlb's record must name
/// too.
type Reader = fn(&Received) -> Option<String>;

/// A request whose body has two models, of which parsers find different ones.
struct Variation {
    name: &'static str,
    /// Values of the request's `Content-Type` header fields. A request may have several such
    /// fields.
    content_types: &'static [&'static str],
    body: String,
    reader: Reader,
}

pub(crate) fn attacks() -> Vec<Attack> {
    let mut attacks: Vec<_> = variations()
        .into_iter()
        .map(|variation| {
            Attack::fast(
                format!("3-multipart-{}", variation.name),
                "a form is billed as one model and served as another",
                move |target| swapped(target, "/v1/audio/transcriptions", &variation),
            )
        })
        .collect();
    attacks.push(Attack::fast(
        "3-json-labelled-multipart",
        "a JSON body labelled multipart is recorded without its model",
        |target| swapped(target, "/v1/chat/completions", &labelled()),
    ));
    attacks.push(Attack::fast(
        "3-only-models-bypassed",
        "a JSON body labelled multipart reaches a model outside of only_models",
        only_models,
    ));
    attacks
}

fn labelled() -> Variation {
    let body = serde_json::json!({
        "model": DEAR,
        "messages": [{ "role": "user", "content": "hi" }],
    });
    Variation {
        name: "json",
        content_types: &["multipart/form-data; boundary=x"],
        body: body.to_string(),
        reader: json_model,
    }
}

fn variations() -> Vec<Variation> {
    const PLAIN: &[&str] = &["multipart/form-data; boundary=x"];
    // A form within a form: with the inner boundary a parser finds the cheap model, with the outer boundary
    // the expensive model.
    let nested = |outer: &str, inner: &str| {
        let inside = part(inner, "name=\"model\"", CHEAP) + &end(inner);
        part(outer, "name=\"note\"", &inside) + &part(outer, "name=\"model\"", DEAR) + &end(outer)
    };
    vec![
        Variation {
            name: "two-boundaries",
            content_types: &["multipart/form-data; boundary=inner; boundary=outer"],
            body: nested("outer", "inner"),
            reader: |request| form_model(request, b"--outer"),
        },
        Variation {
            name: "quoted-semicolon",
            content_types: &["multipart/form-data; boundary=\"inner;outer\""],
            body: nested("inner;outer", "inner"),
            reader: |request| form_model(request, b"--inner;outer"),
        },
        Variation {
            name: "extended-boundary",
            content_types: &["multipart/form-data; boundary=inner; boundary*=utf-8''outer"],
            body: nested("outer", "inner"),
            reader: |request| form_model(request, b"--outer"),
        },
        Variation {
            name: "two-content-types",
            content_types: &[
                "multipart/form-data; boundary=inner",
                "multipart/form-data; boundary=outer",
            ],
            body: nested("outer", "inner"),
            reader: |request| form_model(request, b"--outer"),
        },
        Variation {
            name: "lf-line-ends",
            content_types: PLAIN,
            // Parsers that accept LF find two parts, of which the first names the expensive model.
            // Parsers that require CRLF find a single part: its name is `model`, and its content is
            // the cheap model.
            body: format!(
                "--x\nContent-Disposition: form-data; name=\"model\"\n\n{DEAR}\n--x\r\n\
                 Content-Disposition: form-data; name=\"note\"\r\n\r\n{CHEAP}\r\n--x--\r\n"
            ),
            reader: lf_model,
        },
        Variation {
            name: "extended-name",
            content_types: PLAIN,
            body: part("x", "name*=utf-8''model", DEAR)
                + &part("x", "name=\"model\"", CHEAP)
                + &end("x"),
            reader: extended_name_model,
        },
        Variation {
            name: "folded-part-header",
            content_types: PLAIN,
            body: part("x", "\r\n name=\"model\"", DEAR)
                + &part("x", "name=\"model\"", CHEAP)
                + &end("x"),
            reader: folded_model,
        },
        Variation {
            name: "preamble",
            content_types: PLAIN,
            // Werkzeug accepts a first boundary that does not begin a line, and so finds the
            // expensive model. Other parsers skip that part as a preamble and find the cheap model.
            body: format!("preamble{}", part("x", "name=\"model\"", DEAR))
                + &part("x", "name=\"model\"", CHEAP)
                + &end("x"),
            reader: preamble_model,
        },
        Variation {
            name: "model-twice",
            content_types: PLAIN,
            body: part("x", "name=\"model\"", CHEAP)
                + &part("x", "name=\"model\"", DEAR)
                + &end("x"),
            reader: |request| form_models(request, b"--x").pop(),
        },
    ]
}

fn part(boundary: &str, parameter: &str, content: &str) -> String {
    format!("--{boundary}\r\nContent-Disposition: form-data; {parameter}\r\n\r\n{content}\r\n")
}

fn end(boundary: &str) -> String {
    format!("--{boundary}--\r\n")
}

fn json_model(request: &Received) -> Option<String> {
    request.json()["model"].as_str().map(str::to_owned)
}

/// Returns the first model of a form with this boundary, parsed as RFC 7578 defines.
fn form_model(request: &Received, boundary: &[u8]) -> Option<String> {
    form_models(request, boundary).into_iter().next()
}

fn form_models(request: &Received, boundary: &[u8]) -> Vec<String> {
    let text = request.text();
    let boundary = String::from_utf8_lossy(boundary);
    let line = format!("{boundary}\r\n");
    let parts = text.split(&line).skip(1);
    let model = |part: &str| {
        let (head, content) = part.split_once("\r\n\r\n")?;
        let content = content.split(&format!("\r\n{boundary}--")).next()?;
        let content = content.strip_suffix("\r\n").unwrap_or(content);
        head.contains("; name=\"model\"")
            .then(|| content.to_owned())
    };
    parts.filter_map(model).collect()
}

/// Finds the model as Werkzeug and Go do: parses line by line and accepts LF.
fn lf_model(request: &Received) -> Option<String> {
    let text = request.text().replace("\r\n", "\n");
    let mut parts = text.split("--x\n").skip(1);
    parts.find_map(|part| {
        let (head, content) = part.split_once("\n\n")?;
        let content = content.lines().next()?;
        head.contains("name=\"model\"").then(|| content.to_owned())
    })
}

/// Finds the model as Werkzeug and aiohttp do: decodes `name*=` and uses the first field.
fn extended_name_model(request: &Received) -> Option<String> {
    first_model(
        &request
            .text()
            .replace("name*=utf-8''model", "name=\"model\""),
    )
}

/// Finds the model as Python's email package does: unfolds part headers and uses the first field.
fn folded_model(request: &Received) -> Option<String> {
    first_model(&request.text().replace("\r\n name=", "name="))
}

/// Finds the model as Werkzeug does: accepts a first boundary within a line and uses the first
/// field.
fn preamble_model(request: &Received) -> Option<String> {
    first_model(&request.text())
}

fn first_model(text: &str) -> Option<String> {
    let (_, after) = text.split_once("name=\"model\"\r\n\r\n")?;
    after.split("\r\n").next().map(str::to_owned)
}

/// Sends a variation and compares the model in the usage record with the model that the backend
/// served. llmlb holds if they are equal, or if it rejects the request.
fn swapped(target: &Target, path: &str, variation: &Variation) -> Outcome {
    let llm = backend(&[CHEAP, DEAR])?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend(&llm.url()).start()?;
    let mut request = Request::new("POST", path);
    for content_type in variation.content_types {
        request = request.field("content-type", content_type);
    }
    let status = server
        .send(&request.body(variation.body.as_str()))?
        .status();
    let Some(served) = llm.requests().pop() else {
        return rejected(status);
    };
    let served = (variation.reader)(&served).unwrap_or_else(|| "no model".to_owned());
    let recorded = recorded(&sandbox)?;
    let evidence = format!("recorded as {recorded}, served as {served}");
    verdict(recorded == served, evidence)
}

fn recorded(sandbox: &Sandbox) -> io::Result<String> {
    let record = sandbox.records()?.pop().unwrap_or_default();
    let model = record["model"].as_str();
    Ok(model.unwrap_or("no model").to_owned())
}

/// Requests an expensive model that the operator excluded with `only_models`, in a JSON body that
/// is labelled as another type. llmlb holds if the backend does not serve that model.
fn only_models(target: &Target) -> Outcome {
    let llm = backend(&[CHEAP, DEAR])?;
    let sandbox = target.sandbox()?;
    let allowed = format!("only_models = [\"{CHEAP}\"]");
    let server = sandbox.server().backend_with(&llm.url(), &allowed);
    let server = server.start()?;
    let variation = labelled();
    let request = Request::new("POST", "/v1/chat/completions")
        .field("content-type", variation.content_types[0])
        .body(variation.body);
    let status = server.send(&request)?.status();
    match llm.requests().pop().and_then(|served| json_model(&served)) {
        None => rejected(status),
        Some(model) => verdict(
            model == CHEAP,
            format!("only_models = [{CHEAP}], served {model}"),
        ),
    }
}

fn backend(models: &[&str]) -> io::Result<FakeLlm> {
    let builder = FakeLlm::builder(models);
    builder.start(|_| Reply::json(200, chat_completion("ok", 100, 50)))
}
