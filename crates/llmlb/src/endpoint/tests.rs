use super::*;

fn post(path: &str) -> Result<(Endpoint, String), PathError> {
    parse(&Method::POST, path).map(|(endpoint, path)| (endpoint, path.into_owned()))
}

fn api(path: &str) -> Api {
    post(path).unwrap().0.api
}

#[test]
fn path_determines_the_api() {
    for (path, expected) in [
        ("/v1/chat/completions", Api::Chat),
        ("/v1/completions", Api::Completions),
        ("/v1/responses", Api::Responses),
        ("/v1/responses/compact", Api::Responses),
        ("/v1/embeddings", Api::Embeddings),
        ("/v1/messages", Api::Messages),
        ("/v1/rerank", Api::Rerank),
        ("/v1/reranking", Api::Rerank),
        ("/v1/score", Api::Score),
        ("/v1/audio/transcriptions", Api::Audio),
        ("/v1/images/generations", Api::Images),
        ("/v1/moderations", Api::Moderations),
        ("/api/chat", Api::OllamaChat),
        ("/api/generate", Api::OllamaGenerate),
        ("/api/embed", Api::OllamaEmbed),
    ] {
        assert_eq!(api(path), expected, "{path}");
        assert_eq!(label(path), path);
    }
}

#[test]
fn repeated_and_trailing_slashes_are_removed() {
    for path in [
        "/v1//chat/completions",
        "//v1/chat/completions",
        "/v1/chat/completions/",
        "/v1/chat///completions//",
    ] {
        let (endpoint, forwarded) = post(path).unwrap();
        assert_eq!(endpoint.api, Api::Chat, "{path}");
        assert_eq!(forwarded, "/v1/chat/completions");
        assert_eq!(label(path), "/v1/chat/completions");
    }
    let (_, root) = parse(&Method::GET, "//").unwrap();
    assert_eq!(root, "/");
}

#[test]
fn other_spellings_of_known_endpoints_are_rejected_with_the_plain_spelling() {
    for (path, plain) in [
        ("/v1/chat%2Fcompletions", "/v1/chat/completions"),
        ("/v1/Chat/Completions", "/v1/chat/completions"),
        ("/V1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions;x=1", "/v1/chat/completions"),
        ("/v1;x/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions%2F", "/v1/chat/completions"),
        ("/v1/chat/completions%252F", "/v1/chat/completions"),
        ("/v1/chat%252Fcompletions", "/v1/chat/completions"),
        ("/v1/chat\\completions", "/v1/chat/completions"),
        ("/v1/chat/completions%20", "/v1/chat/completions"),
        ("/v1/chat/completions%3Fx", "/v1/chat/completions"),
        ("/v1/chat/completions%3Bx", "/v1/chat/completions"),
        ("/v1/meſſages", "/v1/messages"),
        ("/v1/me%C5%BFsages", "/v1/messages"),
        ("/API/chat", "/api/chat"),
        ("/v1/responses/%2F", "/v1/responses/ID"),
        ("/v1/Files", "/v1/files"),
        ("/v1/Files/file-1", "/v1/files/ID"),
        ("/v1/responses/a%2Fb", "/v1/responses/ID"),
        ("/v1%2Ffiles/x", "/v1/files/ID"),
    ] {
        assert_eq!(
            post(path),
            Err(PathError::Misspelled(plain.to_owned())),
            "{path}"
        );
    }
}

#[test]
fn path_that_could_be_resolved_to_another_is_rejected() {
    for path in [
        "/v1/..",
        "/v1/../api/tags",
        "/v1/a/../b",
        "/v1/%2e%2E/x",
        "/v1/a/.%2e/b",
        "/v1/./x",
        "/v1/a\\..\\b",
        "/v1/chat/c%6fmpletions",
        "/v1/files/a%5Cb",
        "/v1/a%2F..%2Fb",
        "/v1/..;/x",
        "/v1/..;a=b/x",
        "/v1/%252e%252e/x",
        "/v1/%25252e%25252e/x",
        "/v1/files/..%2Fchat/completions",
        "/v1/x%00",
        "/v1/x%0a",
        "/v1/x%2509",
    ] {
        assert_eq!(post(path), Err(PathError::Ambiguous), "{path}");
    }
}

#[test]
fn path_of_an_unknown_endpoint_is_forwarded_unchanged() {
    for path in [
        "/v1/files/a..b",
        "/v1/models/.hidden",
        "/v1/x/...",
        "/v1/models/meta%2Fllama",
        "/v1/models/Meta/Llama",
        "/v1/models/a%20b",
        "/v1/files/100%",
        "/v1/files/A%2FB",
        "/v1/threads/T1/runs",
        "/v1/anything;x=1",
        "/v1/x%2Fy",
    ] {
        let (endpoint, forwarded) = post(path).unwrap();
        assert_eq!(endpoint.service, Service::Backend, "{path}");
        assert_eq!(forwarded, path);
    }
}

#[test]
fn stored_results_are_not_metered_again() {
    for (method, path) in [
        (Method::GET, "/v1/responses/resp_1"),
        (Method::GET, "/v1/responses"),
        (Method::POST, "/v1/responses/resp_1/cancel"),
        (Method::GET, "/v1/chat/completions"),
        (Method::GET, "/v1/chat/completions/chatcmpl-1"),
        (Method::POST, "/v1/chat/completions/chatcmpl-1"),
        (Method::POST, "/v1/messages/count_tokens"),
        (Method::POST, "/v1/messages/batches"),
        (Method::POST, "/v1/batches"),
        (Method::GET, "/v1/unheard_of"),
        (Method::POST, "/chat/completions"),
        (Method::POST, "/v1/"),
    ] {
        let (endpoint, _) = parse(&method, path).unwrap();
        assert_eq!(endpoint.api, Api::Other, "{method} {path}");
    }
}

#[test]
fn unknown_endpoint_is_metered_by_reported_usage_and_never_retried() {
    for path in [
        "/v1/unheard_of",
        "/v1/threads/t_1/runs",
        "/v1/chat",
        "/v1/chat/completions/x/y",
        "/v1/responses/foo",
        "/v1/responses/foo/bar",
        "/v1/realtime/whatever",
        "/v1/models/secret:generateContent",
        "/v1/files/x",
        "/v1/batches/x/cancel/y",
    ] {
        for method in [Method::POST, Method::PUT, Method::PATCH] {
            let (endpoint, _) = parse(&method, path).unwrap();
            let seen = (endpoint.api, endpoint.is_known);
            assert_eq!(seen, (Api::Unknown, false), "{method} {path}");
            assert!(!endpoint.is_repeatable(&method), "{method} {path}");
        }
    }
}

#[test]
fn actions_on_stored_objects_are_not_metered() {
    for path in [
        "/v1/assistants/asst_1",
        "/v1/batches/batch_1/cancel",
        "/v1/conversations/conv_1/items",
        "/v1/fine_tuning/jobs",
        "/v1/realtime/sessions",
        "/v1/uploads/upload_1/parts",
        "/v1/vector_stores/vs_1/file_batches/vsfb_1/cancel",
    ] {
        let (endpoint, _) = post(path).unwrap();
        assert_eq!((endpoint.api, endpoint.is_known), (Api::Other, true));
        assert_eq!(endpoint.body, BodyFormat::JsonIfLabelled, "{path}");
    }
    for path in [
        "/v1/chat/completions/chatcmpl-1",
        "/v1/responses/resp_1/cancel",
    ] {
        let (endpoint, _) = post(path).unwrap();
        assert_eq!((endpoint.api, endpoint.is_known), (Api::Other, true));
        assert_eq!(endpoint.body, BodyFormat::JsonWithoutPrompt, "{path}");
    }
}

#[test]
fn inference_endpoints_reject_methods_other_than_post_and_safe_ones() {
    for method in [Method::PUT, Method::PATCH, Method::DELETE] {
        let error = parse(&method, "/v1/chat/completions").unwrap_err();
        assert!(matches!(error, PathError::MethodNotAllowed(_)), "{method}");
    }
    let (endpoint, _) = parse(&Method::GET, "/v1/chat/completions").unwrap();
    assert!(!endpoint.is_inference);
    assert!(parse(&Method::POST, "/healthz").is_err());
}

#[test]
fn requests_that_change_an_ollama_backend_are_not_served() {
    for (method, path) in [
        (Method::POST, "/api/pull"),
        (Method::DELETE, "/api/delete"),
        (Method::GET, "/api/chat"),
        (Method::POST, "/api/tags"),
        (Method::GET, "/api"),
    ] {
        let (endpoint, _) = parse(&method, path).unwrap();
        assert_eq!(endpoint.service, Service::NotServed, "{method} {path}");
    }
    let (version, _) = parse(&Method::GET, "/api/version").unwrap();
    assert_eq!(version.service, Service::Ollama);
}

#[test]
fn id_in_a_path_is_the_first_segment_that_is_no_word() {
    for (path, id) in [
        ("/v1/files/file-abc", Some("file-abc")),
        ("/v1/files/file-abc/content", Some("file-abc")),
        ("/v1/responses/resp_1/input_items", Some("resp_1")),
        ("/v1/fine_tuning/jobs/ftjob-1/cancel", Some("ftjob-1")),
        ("/v1/vector_stores/vs1", Some("vs1")),
        ("/v1/files", None),
        ("/v1/chat/completions", None),
        ("/v1/messages/count_tokens", None),
        ("/v1/responses/input_tokens", None),
        ("/api/chat", None),
    ] {
        assert_eq!(id_in(path), id, "{path}");
    }
}

#[test]
fn label_of_a_path_contains_no_id() {
    for (path, expected) in [
        ("/v1/files/file-1/content", "/v1/files"),
        ("/v1/models/secret", "/v1/models"),
        ("/v1/unheard_of/of/x", "/v1/unheard_of"),
        ("/v1/Secret", "other"),
        ("/healthz", "/healthz"),
        ("/secret/path", "other"),
        ("/api/pull", "/api/pull"),
    ] {
        assert_eq!(label(path), expected, "{path}");
    }
}

#[test]
fn member_of_a_collection_has_an_id() {
    for path in [
        "/v1/files/word",
        "/v1/responses/resp_1/cancel",
        "/v1/pooling/p-1",
    ] {
        assert!(has_id(path), "{path}");
    }
    for path in [
        "/v1/chat/completions",
        "/v1/messages/count_tokens",
        "/v1/messages/batches",
        "/v1/files",
        "/v1/pooling",
        "/api/chat",
    ] {
        assert!(!has_id(path), "{path}");
    }
}
