//! L12: every problem is reported with its origin, the value and the allowed values.

use super::super::settings;
use super::*;

/// Invalid configuration files, and the problems reported for them.
const MISTAKES: [(&str, &str); 40] = [
    // Values.
    (
        "[server]\nport = 99999\n",
        "llmlb.toml:2: server.port: 99999 is out of range; allowed: 0 to 65535",
    ),
    (
        "[server]\n\nport = -1\n",
        "llmlb.toml:3: server.port: -1 is out of range; allowed: 0 to 65535",
    ),
    (
        "[server]\nport = \"80\"\n",
        "llmlb.toml:2: server.port: \"80\" is text, not a whole number; allowed: 0 to 65535",
    ),
    (
        "[server]\nport = 8.5\n",
        "llmlb.toml:2: server.port: 8.5 is not a whole number; allowed: 0 to 65535",
    ),
    (
        "[server]\nport = [80]\n",
        "llmlb.toml:2: server.port: a list is not a whole number; allowed: 0 to 65535",
    ),
    (
        "[server]\nport = 99999999999999999999999999999999999999999999\n",
        "llmlb.toml:2: server.port: 9999999999999999999999999999999999999999 is out of range; \
         allowed: 0 to 65535",
    ),
    (
        "[server]\nhost = \"example.org\"\n",
        "llmlb.toml:2: server.host: \"example.org\" is not an IP address; \
         allowed: an IP address, or localhost",
    ),
    (
        "[server]\nallow_public = \"yes\"\n",
        "llmlb.toml:2: server.allow_public: \"yes\" is text, not true or false; \
         allowed: true or false",
    ),
    (
        "[server]\nworkers = 0\n",
        "llmlb.toml:2: server.workers: 0 is out of range; allowed: 1 to 1024",
    ),
    (
        "[server]\ndrain_timeout = 30\n",
        "llmlb.toml:2: server.drain_timeout: 30 has no unit; \
         allowed: text like \"500ms\", \"30s\", \"5m\" or \"1h\", from \"0s\" to \"24h\"",
    ),
    (
        "[server]\ndrain_timeout = \"half an hour\"\n",
        "llmlb.toml:2: server.drain_timeout: \"half an hour\" is not a duration; \
         allowed: text like \"500ms\", \"30s\", \"5m\" or \"1h\", from \"0s\" to \"24h\"",
    ),
    (
        "[server]\ndrain_timeout = \"25h\"\n",
        "llmlb.toml:2: server.drain_timeout: \"25h\" is out of range; \
         allowed: text like \"500ms\", \"30s\", \"5m\" or \"1h\", from \"0s\" to \"24h\"",
    ),
    (
        "[upstream]\nprobe_interval = \"99ms\"\n",
        "llmlb.toml:2: upstream.probe_interval: \"99ms\" is out of range; \
         allowed: text like \"500ms\", \"30s\", \"5m\" or \"1h\", from \"100ms\" to \"24h\"",
    ),
    (
        "[server]\nmax_body = \"32 megs\"\n",
        "llmlb.toml:2: server.max_body: \"32 megs\" is not a size; allowed: a number of bytes, or \
         text like \"64KiB\", \"32MiB\" or \"1GiB\" (also KB, MB, GB), from 1 to \"2GiB\"",
    ),
    (
        "[server]\nmax_body = 0\n",
        "llmlb.toml:2: server.max_body: 0 is out of range; allowed: a number of bytes, or \
         text like \"64KiB\", \"32MiB\" or \"1GiB\" (also KB, MB, GB), from 1 to \"2GiB\"",
    ),
    // Lists.
    (
        "[server]\nhosts = \"a\"\n",
        "llmlb.toml:2: server.hosts: \"a\" is text, not a list; \
         allowed: a list of host names and IP addresses, without ports",
    ),
    (
        "[server]\nhosts = [\"a:80\"]\n",
        "llmlb.toml:2: server.hosts: \"a:80\" is not a host name or IP address; \
         allowed: a list of host names and IP addresses, without ports",
    ),
    (
        "[server]\ntrusted_proxies = [\"10.0.0.1/8\"]\n",
        "llmlb.toml:2: server.trusted_proxies: 10.0.0.1/8 has host bits set \
         (did you mean 10.0.0.0/8?); allowed: a list of IP addresses and networks like 10.0.0.0/8",
    ),
    (
        "[server]\ntrusted_proxies = [7]\n",
        "llmlb.toml:2: server.trusted_proxies: 7 is not text; \
         allowed: a list of IP addresses and networks like 10.0.0.0/8",
    ),
    (
        "[server]\nmax_header = \"8191\"\n",
        "llmlb.toml:2: server.max_header: \"8191\" is out of range; allowed: a number of bytes, or \
         text like \"64KiB\", \"32MiB\" or \"1GiB\" (also KB, MB, GB), from \"8KiB\" to \"1MiB\"",
    ),
    (
        "[server]\nmax_connections = 0\n",
        "llmlb.toml:2: server.max_connections: 0 is out of range; allowed: 1 to 1000000",
    ),
    // Names.
    (
        "[sever]\nport = 80\n",
        "llmlb.toml:1: sever: unknown section (did you mean server?); \
         allowed: [server], [upstream], [log], [telemetry], [usage], [fleet], [[backend]], [[key]], [aliases]",
    ),
    (
        "port = 80\n",
        "llmlb.toml:1: port: unknown key (did you mean server.port?); \
         allowed: [server], [upstream], [log], [telemetry], [usage], [fleet], [[backend]], [[key]], [aliases]",
    ),
    (
        "server = 80\n",
        "llmlb.toml:1: server: 80 is not a section; allowed: [server]",
    ),
    (
        "[[server]]\nport = 80\n",
        "llmlb.toml:1: server: a list is not a section; allowed: [server]",
    ),
    (
        "[backend]\nurl = \"http://a\"\n",
        "llmlb.toml:1: backend: this is not a list of backends; allowed: [[backend]]",
    ),
    // TOML.
    (
        "[server]\nport = 1\nport = 2\n",
        "llmlb.toml:3:1: duplicate key",
    ),
    (
        "[server\nport = 1\n",
        "llmlb.toml:1:8: unclosed table, expected `]`",
    ),
    (
        "[server\nport = 1\n[upstream]\nconnect = 1\n",
        "llmlb.toml:1:8: unclosed table, expected `]`\n\
         llmlb.toml:4: upstream.connect: unknown key (did you mean connect_timeout?); \
         allowed: connect_timeout, first_byte_timeout, idle_timeout, forward_headers, probe_interval, \
         probe_timeout, max_models",
    ),
    (
        "[[backend]]\nurl = \"http://a\"\nmodels = [\"m\",\n\n[server]\nport = 70000\n",
        "llmlb.toml:3:10: unclosed array, expected `]`",
    ),
    (
        "[upstream]\n[server]\n[upstream]\nconnect = 1\n",
        "llmlb.toml:3:2: duplicate key\n\
         llmlb.toml:4: upstream.connect: unknown key (did you mean connect_timeout?); \
         allowed: connect_timeout, first_byte_timeout, idle_timeout, forward_headers, probe_interval, \
         probe_timeout, max_models",
    ),
    // Backends.
    (
        "[[backend]]\nname = \"a\"\n",
        "llmlb.toml:1: backend.url: missing; allowed: http://HOST[:PORT][/PREFIX] or https://..",
    ),
    (
        "[[backend]]\nurl = \"localhost:11434\"\n",
        "llmlb.toml:2: backend.url: the URL does not start with http:// or https://; \
         allowed: http://HOST[:PORT][/PREFIX] or https://..",
    ),
    (
        "[[backend]]\nurl = \"http://a\"\nname = \"gpu 1\"\n",
        "llmlb.toml:3: backend.name: \"gpu 1\" cannot be a name; \
         allowed: 1 to 64 of a-z A-Z 0-9 . _ : -",
    ),
    (
        "[[backend]]\nurl = \"http://a\"\nmodels = []\n",
        "llmlb.toml:3: backend.models: the list is empty; allowed: a list of names, at least one",
    ),
    (
        "[[backend]]\nurl = \"http://a\"\nmodels = [\"m\", 7]\n",
        "llmlb.toml:3: backend.models: 7 is not a name; allowed: a list of names, at least one",
    ),
    (
        "[[backend]]\nurl = \"http://a\"\n[[backend]]\nurl = \"http://A:80/v1/\"\n",
        "llmlb.toml:4: backend.url: http://a:80 occurs twice (first on line 2); allowed: once",
    ),
    (
        "[[backend]]\nurl = \"http://a\"\nname = \"x\"\n\
         [[backend]]\nurl = \"http://b\"\nname = \"x\"\n",
        "llmlb.toml:6: backend.name: \"x\" occurs twice (first on line 3); allowed: once",
    ),
    (
        "[[backend]]\nurl = \"http://a\"\napi_key_env = \"GPU_KEY\"\n",
        "llmlb.toml:3: backend.api_key_env: the variable GPU_KEY is not set, or empty",
    ),
    (
        "[[backend]]\nurl = \"https://a\"\n[[backend]]\nurl = \"https://a:443\"\n",
        "llmlb.toml:4: backend.url: https://a:443 occurs twice (first on line 2); allowed: once",
    ),
];

/// Configuration files with invalid balancing settings, and the problems reported for them.
const OF_SHARING: [(&str, &str); 20] = [
    (
        "[server]\nqueue = 1000001\n",
        "llmlb.toml:2: server.queue: 1000001 is out of range; allowed: 0 to 1000000",
    ),
    (
        "[server]\nqueue = \"many\"\n",
        "llmlb.toml:2: server.queue: \"many\" is text, not a whole number; allowed: 0 to 1000000",
    ),
    (
        "[server]\nqueue_timeout = \"0s\"\n",
        "llmlb.toml:2: server.queue_timeout: \"0s\" is out of range; \
         allowed: text like \"500ms\", \"30s\", \"5m\" or \"1h\", from \"1ms\" to \"24h\"",
    ),
    (
        "[upstream]\nidle_timeout = 300\n",
        "llmlb.toml:2: upstream.idle_timeout: 300 has no unit; \
         allowed: text like \"500ms\", \"30s\", \"5m\" or \"1h\", from \"1ms\" to \"24h\"",
    ),
    (
        "[log]\nrequests = \"some\"\n",
        "llmlb.toml:2: log.requests: \"some\" is text, not true or false; allowed: true or false",
    ),
    (
        "[log]\nrequest = true\n",
        "llmlb.toml:2: log.request: unknown key (did you mean requests?); allowed: requests, format",
    ),
    (
        "[[backend]]\nurl = \"http://a\"\nkind = \"olama\"\n",
        "llmlb.toml:3: backend.kind: \"olama\" is not known (did you mean ollama?); \
         allowed: ollama, vllm, llama.cpp, lm-studio, openai or anthropic",
    ),
    (
        "[[backend]]\nurl = \"http://a\"\nkind = 7\n",
        "llmlb.toml:3: backend.kind: 7 is not a name; \
         allowed: ollama, vllm, llama.cpp, lm-studio, openai or anthropic",
    ),
    (
        "[[backend]]\nurl = \"http://a\"\nweight = 0\n",
        "llmlb.toml:3: backend.weight: 0 is out of range; allowed: 1 to 1000",
    ),
    (
        "[[backend]]\nurl = \"http://a\"\nweight = 0.5\n",
        "llmlb.toml:3: backend.weight: 0.5 is not a whole number; allowed: 1 to 1000",
    ),
    (
        "[[backend]]\nurl = \"http://a\"\nmax_concurrent = 100001\n",
        "llmlb.toml:3: backend.max_concurrent: 100001 is out of range; allowed: 1 to 100000",
    ),
    (
        "[[backend]]\nurl = \"http://a\"\nonly_models = [\"*-large\"]\n",
        "llmlb.toml:3: backend.only_models: \"*-large\" has a * that is not at its end; allowed: \
         a list of names, at least one; a * at the end of one matches any rest",
    ),
    (
        "[[backend]]\nurl = \"http://a\"\nonly_models = []\n",
        "llmlb.toml:3: backend.only_models: the list is empty; allowed: \
         a list of names, at least one; a * at the end of one matches any rest",
    ),
    (
        "[[backend]]\nurl = \"http://a\"\nmodels = [\"a\", \"b\"]\nonly_models = [\"c\", \"d*\"]\n",
        "llmlb.toml:4: backend.only_models: no name in backend.models matches only_models, so the \
         backend would serve no model; allowed: a list of names, at least one; a * at the end of one \
         matches any rest",
    ),
    (
        "aliases = \"fast\"\n",
        "llmlb.toml:1: aliases: \"fast\" is text, not a section; allowed: [aliases]",
    ),
    (
        "[aliases]\nfast = 7\n",
        "llmlb.toml:2: aliases.fast: 7 is not the name of a model; \
         allowed: the name of a model, or a list of names",
    ),
    (
        "[aliases]\nfast = [\"a\", \"a\"]\n",
        "llmlb.toml:2: aliases.fast: \"a\" occurs twice; \
         allowed: the name of a model, or a list of names",
    ),
    (
        "[aliases]\nfast = \" \"\n",
        "llmlb.toml:2: aliases.fast: a name is empty; \
         allowed: the name of a model, or a list of names",
    ),
    (
        "[aliases]\nfast = \"smart\"\nsmart = \"llama\"\n",
        "llmlb.toml:2: aliases.fast: \"smart\" is an alias itself; \
         allowed: the name of a model, or a list of names",
    ),
    (
        "[aliases]\nfast = \"fast\"\n",
        "llmlb.toml:2: aliases.fast: an alias cannot stand for itself; \
         allowed: the name of a model, or a list of names",
    ),
];

#[test]
fn each_problem_names_its_line_the_value_and_the_allowed_values() {
    for (text, reported) in MISTAKES.into_iter().chain(OF_SHARING) {
        assert_eq!(
            LoadCase::with_file(text).problems(),
            reported,
            "in:\n{text}"
        );
    }
}

#[test]
fn unknown_key_lists_the_keys_of_its_section() {
    let allowed = settings::keys_of("server").join(", ");
    assert_eq!(
        LoadCase::with_file("[server]\nprot = 80\n").problems(),
        format!("llmlb.toml:2: server.prot: unknown key (did you mean port?); allowed: {allowed}")
    );
}

#[test]
fn all_problems_are_reported_at_once_in_the_order_of_the_layers() {
    let run = LoadCase::with_file(
        "[[backend]]\nurl = \"ftp://a\"\nkey = 1\n\n\
         [upstream]\nconnect_timeout = 5\n\n\
         [server]\nworkers = 5000\nprot = 1\nport = 70000\nhost = no quotes\n",
    )
    .env("LLMLB_PORT", "many")
    .env("LLMLB_MAX_BODY", "-5")
    .env("LLMLB_BACKEND", "http://a")
    .flags(Flags {
        host: Some("here".into()),
        backends: vec!["b".into()],
        ..Flags::default()
    });
    let reported: Vec<String> = run.problems().lines().map(str::to_owned).collect();
    let starts = [
        "llmlb.toml:2: backend.url: the URL does not start with http:// or https://; ",
        "llmlb.toml:3: backend.key: unknown key",
        "llmlb.toml:6: upstream.connect_timeout: 5 has no unit; ",
        "llmlb.toml:9: server.workers: 5000 is out of range; ",
        "llmlb.toml:10: server.prot: unknown key (did you mean port?)",
        "llmlb.toml:11: server.port: 70000 is out of range; ",
        "llmlb.toml:12:8: ",
        "LLMLB_PORT: \"many\" is not a whole number; allowed: 0 to 65535",
        "LLMLB_MAX_BODY: \"-5\" is not a size; ",
        "LLMLB_BACKEND: unknown variable (did you mean LLMLB_BACKENDS?)",
        "--host: \"here\" is not an IP address; allowed: an IP address, or localhost",
        "--backend: the URL does not start with http:// or https://; ",
    ];
    assert_eq!(reported.len(), starts.len(), "{reported:#?}");
    for (line, start) in reported.iter().zip(starts) {
        assert!(
            line.starts_with(start),
            "{line}\ndoes not start with\n{start}"
        );
    }
}

#[test]
fn each_line_with_a_syntax_error_is_reported_once() {
    let run = LoadCase::with_file("[server]\nport = \nhost = 12..3\nworkers = 4\nworkers = 5\n");
    let reported = run.problems();
    let places = ["llmlb.toml:2:8: ", "llmlb.toml:3:11: ", "llmlb.toml:5:1: "];
    assert_eq!(reported.lines().count(), places.len(), "{reported}");
    for (line, place) in reported.lines().zip(places) {
        assert!(line.starts_with(place), "{line}\nis not at\n{place}");
    }
}

#[test]
fn unknown_llmlb_variable_is_reported_and_other_variables_are_ignored() {
    let run = LoadCase::new().env("LLMLB_PROT", "80").env("PATH", "/bin");
    let reported = run.problems();
    assert!(
        reported.starts_with("LLMLB_PROT: unknown variable (did you mean LLMLB_PORT?); allowed: "),
        "{reported}"
    );
    LoadCase::new()
        .env("LLMLB_LOCK_DIR", "/locks")
        .env("LLMLB_DATA_DIR", "/data")
        .env("LLMLB_UNKNOWN_BUT_EMPTY", "")
        .good();
}

#[test]
fn variable_named_by_api_key_env_may_begin_with_llmlb() {
    let file = "[[backend]]\nurl = \"http://a\"\napi_key_env = \"LLMLB_KEY_OF_A\"\n";
    LoadCase::with_file(file).env("LLMLB_KEY_OF_A", "k").good();
}

#[test]
fn public_address_is_rejected_without_allow_public() {
    let why = "is not a loopback address: every client that reaches it could use the backends; \
               create an API key (llmlb key add NAME), or keep 127.0.0.1, or to run without keys set \
               server.allow_public = true, LLMLB_ALLOW_PUBLIC=true or --allow-public";
    for host in [
        "0.0.0.0",
        "192.168.1.5",
        "::",
        "2001:db8::1",
        "::ffff:10.0.0.1",
    ] {
        let file = format!("[server]\nhost = \"{host}\"\n");
        let reported = LoadCase::with_file(&file).problems();
        // An IPv4 address written as IPv6 must be rejected in the same way as the plain IPv4
        // address.
        let host = host.trim_start_matches("::ffff:");
        assert_eq!(reported, format!("llmlb.toml:2: server.host: {host} {why}"));

        let run = LoadCase::with_file(&format!("{file}allow_public = true\n"));
        assert_eq!(run.good().server.host.to_string(), host);
        LoadCase::with_file(&file)
            .env("LLMLB_ALLOW_PUBLIC", "true")
            .good();
        let allow_public = true;
        LoadCase::with_file(&file)
            .flags(Flags {
                allow_public,
                ..Flags::default()
            })
            .good();
    }
    // A second problem in the file does not hide the public address: both problems are reported.
    let run = LoadCase::with_file("[server]\nhost = \"0.0.0.0\"\nport = 70000\n");
    assert_eq!(run.problems().lines().count(), 2);
    // `LLMLB_HOST` overrides the file's public host, which is then not used and not reported.
    let run = LoadCase::with_file("[server]\nhost = \"0.0.0.0\"\n").env("LLMLB_HOST", "x");
    assert!(run.problems().starts_with("LLMLB_HOST: \"x\" is not"));
    let run = LoadCase::new().env("LLMLB_HOST", "0.0.0.0");
    assert_eq!(run.problems(), format!("LLMLB_HOST: 0.0.0.0 {why}"));
    // The suggested `llmlb key add` must name the same file with `--config`, because the file may
    // name the data directory.
    let run = LoadCase::with_file("[server]\nhost = \"0.0.0.0\"\n").flags(Flags {
        config: Some("llmlb.toml".into()),
        ..Flags::default()
    });
    let why = "(llmlb key add NAME --config llmlb.toml)";
    assert!(run.problems().contains(why), "{}", run.problems());
}

#[test]
fn loopback_address_needs_no_allow_public() {
    for host in [
        "127.0.0.1",
        "127.9.9.9",
        "::1",
        "::ffff:127.0.0.1",
        "localhost",
    ] {
        LoadCase::with_file(&format!("[server]\nhost = \"{host}\"\n")).good();
    }
}

#[test]
fn file_full_of_errors_is_parsed_quickly_and_without_panic() {
    let all: String = MISTAKES.iter().map(|(text, _)| *text).collect();
    for text in [
        "= [\n".repeat(100_000),
        "x = \n".repeat(100_000),
        "[[backend]]\nurl='http://a/x'\n".repeat(20_000),
        "[".repeat(300_000),
        "a.".repeat(300_000),
        all,
    ] {
        assert!(LoadCase::with_file(&text).read().is_err());
    }
}

#[test]
fn every_prefix_of_a_file_is_parsed_without_panic() {
    let text = include_str!("../../../../../docs/configuration.md");
    let all: String = MISTAKES.iter().map(|(text, _)| *text).collect();
    for text in [text, &all] {
        for (end, _) in text.char_indices().step_by(7) {
            let _ = LoadCase::with_file(&text[..end]).read();
        }
    }
}
