//! Tests of the selection of the backends, and of their URLs.

use super::super::setting::AnySetting;
use super::super::{Alias, BackendUrl, Kind, settings};
use super::*;

fn names(config: &Config) -> Vec<&str> {
    config
        .backends
        .iter()
        .map(|backend| backend.name.as_str())
        .collect()
}

#[test]
fn backend_has_the_fields_of_the_file() {
    let config = LoadCase::with_file(
        "[[backend]]\nname = \"gpu-1\"\nurl = \"http://10.0.0.5:8000/openai/v1\"\n\
         models = [\"llama\", \"qwen\"]\napi_key_env = \"GPU_KEY\"\n\
         [[backend]]\nurl = \"http://10.0.0.6\"\n",
    )
    .env("GPU_KEY", "sk-1")
    .good();
    let [first, second] = config.backends.as_slice() else {
        panic!("{config:?}")
    };
    assert_eq!(first.name, "gpu-1");
    assert_eq!(first.url.authority().as_str(), "10.0.0.5:8000");
    assert_eq!(first.url.prefix(), "/openai");
    assert_eq!(
        first.models.as_deref(),
        Some(["llama".into(), "qwen".into()].as_slice())
    );
    assert_eq!(
        first.api_key.as_ref().map(super::super::Secret::expose),
        Some("sk-1")
    );
    assert_eq!(second.name, "10.0.0.6:80");
    assert_eq!(second.models, None);
    assert!(second.api_key.is_none());
    assert_eq!(config.origins.backends[1].to_string(), "llmlb.toml:6");
}

#[test]
fn only_models_may_select_a_part_of_models() {
    for only in ["[\"b\"]", "[\"x\", \"b*\"]", "[\"*\"]"] {
        LoadCase::with_file(&format!(
            "[[backend]]\nurl = \"http://a\"\nmodels = [\"a\", \"b\"]\nonly_models = {only}\n"
        ))
        .good();
    }
}

#[test]
fn balancing_fields_and_aliases_are_read_from_the_file() {
    let config = LoadCase::with_file(
        "[[backend]]\nurl = \"http://a\"\nkind = \"llama.cpp\"\nweight = 1000\n\
         max_concurrent = 100000\nonly_models = [\"llama*\", \"*\"]\n\
         [[backend]]\nurl = \"http://b\"\n\
         [aliases]\n\"gpt-4\" = [\"gpt-4\", \"llama\"]\nfast = \"phi\"\n",
    )
    .good();
    let [first, second] = config.backends.as_slice() else {
        panic!("{config:?}")
    };
    assert_eq!(first.kind, Some(Kind::LlamaCpp));
    assert_eq!((first.weight, first.max_concurrent), (1000, Some(100_000)));
    let only = ["llama*".to_owned(), "*".to_owned()];
    assert_eq!(first.only_models.as_deref(), Some(only.as_slice()));
    assert_eq!((second.kind, &second.only_models), (None, &None));
    assert_eq!((second.weight, second.max_concurrent), (1, None));

    let alias = |name: &str, models: &[&str]| Alias {
        name: name.to_owned(),
        models: models.iter().map(ToString::to_string).collect(),
    };
    let aliases = [alias("fast", &["phi"]), alias("gpt-4", &["gpt-4", "llama"])];
    assert_eq!(config.aliases, aliases);
    let lines = config.origins.aliases.iter().map(ToString::to_string);
    assert_eq!(
        lines.collect::<Vec<_>>(),
        ["llmlb.toml:11", "llmlb.toml:10"]
    );
}

#[test]
fn every_kind_has_a_documented_name() {
    for kind in Kind::all() {
        assert_eq!(Kind::from_name(kind.name()), Some(kind));
        assert_eq!(Kind::from_number(kind as u8), Some(kind));
        assert!(settings::BACKEND_KIND.allowed().contains(kind.name()));
    }
    assert_eq!(Kind::from_name("Ollama"), None);
}

#[test]
fn known_services_are_recognized_by_their_host() {
    let urls = [
        "https://API.anthropic.com/v1",
        "https://api.openai.com",
        "https://api.openai.com.example",
    ];
    let config = LoadCase::new().flags(flags_with_backends(&urls)).good();
    let kinds: Vec<_> = config.backends.iter().map(|one| one.kind).collect();
    assert_eq!(kinds, [Some(Kind::Anthropic), Some(Kind::OpenAi), None]);
    let said = "[[backend]]\nurl = \"https://api.openai.com\"\nkind = \"vllm\"\n";
    assert_eq!(
        LoadCase::with_file(said).good().backends[0].kind,
        Some(Kind::Vllm)
    );
}

#[test]
fn backends_of_a_higher_layer_replace_those_of_a_lower_layer() {
    let run = LoadCase::with_file("[[backend]]\nurl = \"http://file\"\n");
    assert_eq!(names(&run.good()), ["file:80"]);
    let run = run.env("LLMLB_BACKENDS", "http://env1, http://env2 http://env3,");
    assert_eq!(names(&run.good()), ["env1:80", "env2:80", "env3:80"]);
    let run = run.flags(flags_with_backends(&["http://flag:1"]));
    assert_eq!(names(&run.good()), ["flag:1"]);
}

#[test]
fn demo_ignores_the_backends_but_validates_a_named_file() {
    let demo = || Flags {
        demo: true,
        config: Some("llmlb.toml".into()),
        ..Flags::default()
    };
    let run = LoadCase::with_file("[[backend]]\nurl = \"http://file\"\n")
        .env("LLMLB_BACKENDS", "http://a");
    assert!(run.flags(demo()).good().backends.is_empty());
    let run = LoadCase::with_file("[[backend]]\nurl = \"\"\n").flags(demo());
    assert!(run.problems().starts_with("llmlb.toml:2: backend.url: "));
}

#[test]
fn demo_does_not_read_the_default_file() {
    let demo = Flags {
        demo: true,
        ..Flags::default()
    };
    let config = LoadCase::with_file("not valid").flags(demo).good();
    assert_eq!(config.file, None);
}

#[test]
fn key_of_an_unused_backend_may_be_missing() {
    let file = "[[backend]]\nurl = \"http://a\"\napi_key_env = \"GPU_KEY\"\n";
    LoadCase::with_file(file)
        .flags(flags_with_backends(&["http://b"]))
        .good();
    let reported = LoadCase::with_file(file).env("GPU_KEY", "").problems();
    assert_eq!(
        reported,
        "llmlb.toml:3: backend.api_key_env: the variable GPU_KEY is not set, or empty"
    );
}

#[test]
fn invalid_url_among_several_is_named_by_its_number() {
    let run = LoadCase::new().env("LLMLB_BACKENDS", "http://a b http://a");
    assert_eq!(
        run.problems(),
        "LLMLB_BACKENDS: URL 2: the URL does not start with http:// or https://; \
         allowed: http://HOST[:PORT][/PREFIX] or https://..\n\
         LLMLB_BACKENDS: http://a:80 occurs twice; allowed: once"
    );
    let run = LoadCase::new().env("LLMLB_BACKENDS", " , ");
    assert!(
        run.problems()
            .starts_with("LLMLB_BACKENDS: there is no URL; ")
    );
}

#[test]
fn number_of_backends_is_limited() {
    let urls: Vec<String> = (0..=65_535).map(|n| format!("http://h{n}")).collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let run = LoadCase::new().flags(flags_with_backends(&urls));
    let reported = "--backend: there are 65536 backends; allowed: up to 65535";
    assert_eq!(run.problems(), reported);
    LoadCase::new()
        .flags(flags_with_backends(&urls[1..]))
        .good();
}

#[test]
fn default_names_are_unique() {
    let urls = ["http://h/a", "http://h/b", "http://h/c", "http://[::1]:8/"];
    let config = LoadCase::new().flags(flags_with_backends(&urls)).good();
    assert_eq!(names(&config), ["h:80", "h:80-2", "h:80-3", "::1:8"]);

    let config = LoadCase::with_file(
        "[[backend]]\nurl = \"http://h\"\n[[backend]]\nurl = \"http://g\"\nname = \"h:80\"\n",
    );
    assert_eq!(names(&config.good()), ["h:80-2", "h:80"]);
}

#[test]
fn common_forms_of_urls_are_accepted() {
    for (text, url, prefix) in [
        ("http://localhost", "http://localhost:80", ""),
        ("http://localhost/", "http://localhost:80", ""),
        ("http://localhost:11434/v1", "http://localhost:11434", ""),
        ("http://localhost:11434/v1/", "http://localhost:11434", ""),
        ("http://h:1/openai/v1//", "http://h:1/openai", "/openai"),
        ("http://h:1/openai/", "http://h:1/openai", "/openai"),
        ("http://h:1/a/b/v1", "http://h:1/a/b", "/a/b"),
        ("http://h:1/v1beta", "http://h:1/v1beta", "/v1beta"),
        (
            "HTTP://Gpu_1.Example:65535",
            "http://gpu_1.example:65535",
            "",
        ),
        ("http://[::1]:8000/v1", "http://[::1]:8000", ""),
        ("http://[2001:db8::1]", "http://[2001:db8::1]:80", ""),
        ("http://10.0.0.1:80", "http://10.0.0.1:80", ""),
        ("https://h/v1", "https://h:443", ""),
        (
            "HTTPS://h:8443/openai/v1",
            "https://h:8443/openai",
            "/openai",
        ),
    ] {
        let parsed = BackendUrl::parse(text).unwrap();
        assert_eq!(parsed.is_https(), url.starts_with("https:"), "{text}");
        assert_eq!(parsed.to_string(), url, "{text}");
        assert_eq!(parsed.prefix(), prefix, "{text}");
        assert!(parsed.authority().port_u16().is_some(), "{text}");
    }
}

#[test]
fn invalid_urls_are_rejected() {
    for (text, why) in [
        ("", "does not start with http://"),
        ("localhost:80", "does not start with http://"),
        ("ftp://h", "does not start with http://"),
        ("https://", "host is empty or contains a character"),
        ("https://u:p@h", "user or password"),
        ("http://", "host is empty or contains a character"),
        ("http:///v1", "host is empty or contains a character"),
        ("http://:80", "host is empty or contains a character"),
        ("http://a b", "host is empty or contains a character"),
        ("http://hö", "host is empty or contains a character"),
        ("http://h%20", "host is empty or contains a character"),
        ("http://1.2.3.4.5", "not an IPv4 address"),
        ("http://256.0.0.1", "not an IPv4 address"),
        ("http://::1", "needs brackets"),
        ("http://[::g]:80", "not an IPv6 address"),
        ("http://h:", "port is not a number from 1 to 65535"),
        ("http://h:0", "port is not a number"),
        ("http://h:65536", "port is not a number"),
        ("http://h:+80", "port is not a number"),
        ("http://u:p@h", "user or password"),
        ("http://h/?k=v", "query"),
        ("http://h/#f", "fragment"),
        ("http://h/a b", "path is not valid"),
        ("http://h/a\r\nX: y", "path is not valid"),
        ("http://h/ä", "path is not valid"),
        ("http://h//x", "path is not valid"),
    ] {
        let error = BackendUrl::parse(text).unwrap_err();
        assert!(error.contains(why), "{text}: {error}");
    }
}
