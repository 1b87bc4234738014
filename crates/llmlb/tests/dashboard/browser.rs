//! The page in a real browser: Debian's chromium, driven over a pipe with its own protocol.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use testkit::backends::{backend, ok, serve};
use testkit::{eventually, has_tool};

struct Browser {
    process: Child,
    commands: ChildStdin,
    messages: BufReader<ChildStdout>,
    session: Option<String>,
    number: u64,
    /// Exceptions and errors of the page.
    errors: Vec<Value>,
    _profile: tempfile::TempDir,
}

impl Browser {
    fn start() -> Self {
        let profile = tempfile::tempdir().unwrap();
        let words = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync \
                     --disable-background-networking --disable-component-update --disable-dev-shm-usage \
                     --remote-debugging-pipe";
        let profile_flag = format!("--user-data-dir={}", profile.path().display());
        // The browser reads commands from descriptor 3 and writes to 4.
        let shell = "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1";
        let mut process = Command::new("sh")
            .args(["-c", shell, "sh", "chromium"])
            .args(words.split_whitespace())
            .args([&profile_flag, "about:blank"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut browser = Self {
            commands: process.stdin.take().unwrap(),
            messages: BufReader::new(process.stdout.take().unwrap()),
            process,
            session: None,
            number: 0,
            errors: Vec::new(),
            _profile: profile,
        };
        let target = browser.send("Target.createTarget", &json!({ "url": "about:blank" }));
        let target = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.send("Target.attachToTarget", &target);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.send(domain, &json!({}));
        }
        browser
    }

    fn send(&mut self, method: &str, params: &Value) -> Value {
        self.number += 1;
        let mut command = json!({ "id": self.number, "method": method, "params": params });
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        write!(self.commands, "{command}\0").unwrap();
        loop {
            let mut text = Vec::new();
            self.messages.read_until(0, &mut text).unwrap();
            text.pop();
            let message: Value = serde_json::from_slice(&text).unwrap();
            if message["id"] == self.number {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
            let is_error = match message["method"].as_str() {
                Some("Runtime.exceptionThrown" | "Log.entryAdded") => true,
                Some("Runtime.consoleAPICalled") => message["params"]["type"] == "error",
                _ => false,
            };
            if is_error {
                self.errors.push(message["params"].clone());
            }
        }
    }

    fn evaluate(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "returnByValue": true });
        self.send("Runtime.evaluate", &params)["result"]["value"].clone()
    }

    fn open(&mut self, url: &str) {
        self.send("Page.navigate", &json!({ "url": url }));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn page_shows_live_backends_in_a_browser() {
    if !has_tool("chromium").unwrap() {
        return;
    }
    let sandbox = testkit::sandbox!();
    let hostile = "<img src=x onerror=window.attacked=1>";
    let backends = [backend(ok), testkit::backends::backend_of(&[hostile], ok)];
    let server = serve(&sandbox, &[&backends[0], &backends[1]], &[]);
    let mut browser = Browser::start();
    browser.open(&format!("http://127.0.0.1:{}/dashboard", server.port()));
    let name = backends[0].address.to_string();
    let shown = "document.readyState == 'complete' && document.body.dataset.state == 'live' \
                 ? document.getElementById('backends').innerText : ''";
    let text = eventually("the page shows the backends", || {
        let text = browser.evaluate(shown);
        let text = text.as_str().unwrap_or_default().to_owned();
        text.contains(&name).then_some(text)
    });
    assert!(text.contains("up") && text.contains(hostile), "{text}");
    assert_eq!(browser.evaluate("window.attacked"), Value::Null);
    assert_eq!(
        browser.evaluate("document.querySelectorAll('main img').length"),
        0
    );
    // The table changes without a reload of the page.
    browser.evaluate("window.before = document.querySelector('#backends-table tbody tr')");
    server.post(testkit::backends::CHAT, testkit::backends::ASK);
    eventually("the page counts the request", || {
        let shown = browser.evaluate("document.getElementById('t-total').textContent");
        shown.as_str()?.starts_with("1 ").then_some(())
    });
    let is_same = "window.before === document.querySelector('#backends-table tbody tr')";
    assert_eq!(browser.evaluate(is_same), true);
    // An operator drains the backend with the keyboard.
    browser.evaluate("document.querySelector('#backends-table button').focus()");
    for kind in ["keyDown", "keyUp"] {
        let key = json!({ "type": kind, "key": "Enter", "code": "Enter", "text": "\r",
                          "windowsVirtualKeyCode": 13 });
        browser.send("Input.dispatchKeyEvent", &key);
    }
    eventually(
        "the page asks, because no other backend has the model",
        || {
            browser
                .evaluate("document.getElementById('confirm').open")
                .as_bool()?
                .then_some(())
        },
    );
    browser.evaluate("document.getElementById('confirm-yes').click()");
    eventually("the backend is drained", || {
        let status = server.backend_status(&name).ok()?;
        (status["drained"] == true).then_some(())
    });
    assert!(browser.errors.is_empty(), "{:?}", browser.errors);
}
