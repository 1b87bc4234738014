//! The files of the page. They are parts of this program and contain no data of the server.

use std::sync::LazyLock;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use sha2::{Digest, Sha256};

use crate::config::bytes_to_hex;
use crate::endpoint::DASHBOARD_FILES;

/// Permits scripts, styles and connections of this server only. A name that contains HTML could not run a script
/// even if the page inserted it as HTML.
const SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                               img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the page.
struct PageFile {
    content_type: &'static str,
    text: &'static str,
}

/// Version of all files together, so that a browser never mixes files of two releases.
static ETAG: LazyLock<Option<HeaderValue>> = LazyLock::new(|| {
    let mut hash = Sha256::new();
    for name in DASHBOARD_FILES {
        hash.update(find(name).map_or("", |file| file.text));
    }
    let hash: [u8; 32] = hash.finalize().into();
    let hash = bytes_to_hex(&hash);
    HeaderValue::try_from(format!("\"{}\"", &hash[..16])).ok()
});

/// Returns a file of the page by its name.
fn find(name: &str) -> Option<PageFile> {
    const HTML: &str = "text/html; charset=utf-8";
    const CSS: &str = "text/css; charset=utf-8";
    const JS: &str = "text/javascript; charset=utf-8";
    let (content_type, text) = match name {
        "index.html" => (HTML, include_str!("page/index.html")),
        "style.css" => (CSS, include_str!("page/style.css")),
        "actions.js" => (JS, include_str!("page/actions.js")),
        "api.js" => (JS, include_str!("page/api.js")),
        "app.js" => (JS, include_str!("page/app.js")),
        "backends.js" => (JS, include_str!("page/backends.js")),
        "charts.js" => (JS, include_str!("page/charts.js")),
        "dom.js" => (JS, include_str!("page/dom.js")),
        "keys.js" => (JS, include_str!("page/keys.js")),
        "panels.js" => (JS, include_str!("page/panels.js")),
        "playground.js" => (JS, include_str!("page/playground.js")),
        _ => return None,
    };
    Some(PageFile { content_type, text })
}

/// Responds with a file of the page; 304 if the browser has it.
pub(crate) fn respond(name: &str, headers: &HeaderMap) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    let Some(file) = find(name) else {
        *response.status_mut() = StatusCode::NOT_FOUND;
        return response;
    };
    let fields = response.headers_mut();
    let mut insert = |name, value| fields.insert(name, HeaderValue::from_static(value));
    insert(header::CONTENT_TYPE, file.content_type);
    insert(header::CONTENT_SECURITY_POLICY, SECURITY_POLICY);
    insert(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    insert(header::X_FRAME_OPTIONS, "DENY");
    insert(header::REFERRER_POLICY, "no-referrer");
    // The browser asks each time, so that a new release is seen at once.
    insert(header::CACHE_CONTROL, "no-cache");
    insert(
        header::HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    );
    insert(
        header::HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    );
    if let Some(etag) = &*ETAG {
        fields.insert(header::ETAG, etag.clone());
        if headers.get(header::IF_NONE_MATCH) == Some(etag) {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            return response;
        }
    }
    *response.body_mut() = Full::from(file.text);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Maximum size of all files together, which docs/dashboard.md names.
    const MAX_BYTES: usize = 64 << 10;

    #[test]
    fn every_file_exists_and_the_page_is_small() {
        let files = DASHBOARD_FILES.map(|name| find(name).unwrap());
        let bytes: usize = files.iter().map(|file| file.text.len()).sum();
        assert!(bytes <= MAX_BYTES, "{bytes} bytes");
    }

    #[test]
    fn page_loads_nothing_from_other_servers_and_inserts_no_html() {
        for name in DASHBOARD_FILES {
            let text = find(name).unwrap().text;
            let text = text.replace("http://www.w3.org/2000/svg", "");
            for forbidden in [
                "http://",
                "https://",
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                " style=\"",
                " onclick=",
            ] {
                assert!(!text.contains(forbidden), "{name} has {forbidden}");
            }
        }
    }

    #[test]
    fn browser_that_has_the_file_gets_304() {
        let first = respond("app.js", &HeaderMap::new());
        assert_eq!(first.status(), 200);
        let mut headers = HeaderMap::new();
        headers.insert(header::IF_NONE_MATCH, first.headers()[header::ETAG].clone());
        assert_eq!(respond("app.js", &headers).status(), 304);
        headers.insert(header::IF_NONE_MATCH, HeaderValue::from_static("\"x\""));
        assert_eq!(respond("app.js", &headers).status(), 200);
        assert_eq!(respond("../mod.rs", &headers).status(), 404);
    }
}
