//! `llmlb check`: validates the configuration and prints every effective setting.

use std::time::SystemTime;

use crate::config::{self, Config, Flags, Problems};
use crate::tls::TlsConfig;

use super::args::Check;
use super::exit::{self, Failure};
use super::serve::tls_failure;
use super::server_keys;
use super::table::aligned;
use super::{check_ask, check_machine, output};

pub(super) fn check(args: &Check, quiet: bool) -> Result<u8, Failure> {
    if args.schema {
        output::data(&output::json(&config::schema())?)?;
        return Ok(exit::DONE);
    }
    let flags = Flags {
        config: args.config.clone(),
        allow_shared_config: args.allow_shared_config,
        has_stored_keys: Some(server_keys::are_stored),
        ..Flags::default()
    };
    let config = config::load(&flags).map_err(|problems| refused(&problems))?;
    let tls = TlsConfig::load(&config.server).map_err(|error| tls_failure(&error))?;
    if !quiet {
        let mut text = report(&config);
        text.extend(tls.map(|tls| certificate(&tls)));
        output::data(&text)?;
    }
    let problems = check_machine::problems(&config);
    for problem in &problems {
        output::message(problem);
    }
    server_keys::check(&config)?;
    let reaches_all = !args.ask || check_ask::ask(&config)?;
    Ok(if problems.is_empty() && reaches_all {
        exit::DONE
    } else {
        exit::FAILED
    })
}

/// Returns the error for an invalid configuration: the number of problems, then one line for each.
pub(super) fn refused(problems: &Problems) -> Failure {
    let count = match problems.len() {
        1 => "1 problem".to_owned(),
        many => format!("{many} problems"),
    };
    Failure::new(
        exit::FAILED,
        format!("{count} in the configuration:\n{problems}"),
    )
}

/// Describes the names and the validity of the server's TLS certificate, with a warning if clients
/// would reject it.
fn certificate(tls: &TlsConfig) -> String {
    let certificate = tls.certificate();
    let warning = certificate.warning(SystemTime::now());
    let warning = warning.map_or_else(String::new, |warning| format!("\nwarning: {warning}"));
    format!(
        "\n\ntls: certificate for {}{warning}",
        certificate.summary()
    )
}

fn report(config: &Config) -> String {
    let verdict = match &config.file {
        Some(file) => format!("{} is valid", file.display()),
        None => "No configuration file (llmlb.toml, --config): defaults apply".to_owned(),
    };
    let settings = config.effective().into_iter().map(|setting| {
        vec![
            setting.name.to_owned(),
            setting.value,
            setting.origin.to_string(),
        ]
    });
    let settings = aligned(&settings.collect::<Vec<_>>());
    let backends = backends(config);
    let aliases = aliases(config);
    let keys = api_keys(config);
    format!("{verdict}\n\n{settings}\n\n{backends}{aliases}{keys}")
}

/// Lists the API keys that the configuration file declares. Those of the data directory are shown
/// by `llmlb key list` only.
fn api_keys(config: &Config) -> String {
    if config.keys.is_empty() {
        return String::new();
    }
    let rows = config.keys.iter().zip(&config.origins.keys);
    let rows = rows.map(|(key, origin)| vec![format!("  {}", key.rights.name), origin.to_string()]);
    format!("\n\nAPI keys:\n{}", aligned(&rows.collect::<Vec<_>>()))
}

fn backends(config: &Config) -> String {
    if config.backends.is_empty() {
        return "backends: none set".to_owned();
    }
    let rows = config.backends.iter().zip(&config.origins.backends);
    let rows = rows.map(|(backend, origin)| {
        let models = match &backend.models {
            Some(models) => format!("models: {}", models.join(", ")),
            None => "models: from the backend".to_owned(),
        };
        let key = if backend.api_key.is_some() {
            "key: set"
        } else {
            "key: none"
        };
        vec![
            format!("  {}", backend.name),
            backend.url.to_string(),
            models,
            key.to_owned(),
            further(backend),
            origin.to_string(),
        ]
    });
    format!("backends:\n{}", aligned(&rows.collect::<Vec<_>>()))
}

/// Describes the optional settings of a backend that differ from their defaults.
fn further(backend: &config::Backend) -> String {
    let mut words = Vec::new();
    if let Some(kind) = backend.kind {
        words.push(format!("kind: {}", kind.name()));
    }
    if backend.weight != 1 {
        words.push(format!("weight: {}", backend.weight));
    }
    if let Some(limit) = backend.max_concurrent {
        words.push(format!("max_concurrent: {limit}"));
    }
    if let Some(only) = &backend.only_models {
        words.push(format!("only: {}", only.join(", ")));
    }
    words.join("; ")
}

fn aliases(config: &Config) -> String {
    if config.aliases.is_empty() {
        return String::new();
    }
    let rows = config.aliases.iter().zip(&config.origins.aliases);
    let rows = rows.map(|(alias, origin)| {
        vec![
            format!("  {}", alias.name),
            alias.models.join(", "),
            origin.to_string(),
        ]
    });
    format!("\n\naliases:\n{}", aligned(&rows.collect::<Vec<_>>()))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::args::Args;
    use super::*;
    use crate::config::settings;

    fn load(name: &str, text: &str) -> Result<Config, Problems> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(name);
        std::fs::write(&file, text).unwrap();
        config::load_without_environment(&Flags {
            config: Some(file),
            ..Flags::default()
        })
    }

    #[test]
    fn report_of_a_valid_file_shows_every_setting_and_backend() {
        let text = "[server]\nport = 7\n[[backend]]\nurl = \"http://gpu:8000/v1\"\n";
        let report = report(&load("my.toml", text).unwrap());
        assert!(
            report.lines().next().unwrap().ends_with("my.toml is valid"),
            "{report}"
        );
        for setting in settings::all() {
            assert!(report.contains(setting.name()), "{report}");
        }
        let port = report
            .lines()
            .find(|line| line.starts_with("server.port "))
            .unwrap();
        assert!(
            port.contains(" 7 ") && port.ends_with("my.toml:2"),
            "{port}"
        );
        let backend = report.lines().last().unwrap();
        let start = "  gpu:8000  http://gpu:8000  models: from the backend  key: none  ";
        assert!(
            backend.starts_with(start) && backend.ends_with("my.toml:3"),
            "{backend}"
        );
    }

    #[test]
    fn report_shows_optional_backend_settings_and_aliases() {
        let text = "[[backend]]\nurl = \"https://gpu\"\nkind = \"vllm\"\nweight = 3\n\
                    max_concurrent = 8\nonly_models = [\"llama*\", \"phi\"]\n\
                    [aliases]\nsmart = [\"llama3:70b\", \"meta/llama-3-70b\"]\nfast = \"phi\"\n";
        let report = report(&load("my.toml", text).unwrap());
        let line = |start: &str| {
            let mut lines = report.lines().map(str::trim_start);
            lines.find(|line| line.starts_with(start)).unwrap()
        };
        let words = "kind: vllm; weight: 3; max_concurrent: 8; only: llama*, phi  ";
        assert!(
            line("gpu:443  https://gpu:443 ").contains(words),
            "{report}"
        );
        let smart = line("smart ");
        assert!(
            smart.contains(" llama3:70b, meta/llama-3-70b ") && smart.ends_with("my.toml:8"),
            "{report}"
        );
        assert!(line("fast ").contains(" phi "), "{report}");
    }

    #[test]
    fn error_starts_with_the_number_of_problems() {
        let text = "[server]\nport = 70000\nworkers = 0\n";
        let failure = refused(&load("my.toml", text).unwrap_err());
        assert_eq!(failure.code, exit::FAILED);
        let shown = format!("{failure:?}");
        assert!(
            shown.contains("2 problems in the configuration:\\n"),
            "{shown}"
        );
    }

    #[test]
    fn every_documented_flag_exists_on_the_command_line() {
        let command = Args::command();
        let serve = command.find_subcommand("serve").unwrap();
        for flag in settings::all().filter_map(|setting| setting.flag()) {
            let long = |arg: &&clap::Arg| arg.get_long() == flag.long.strip_prefix("--");
            let arg = serve.get_arguments().find(long).expect(flag.long);
            let short = arg.get_short().map(|short| format!("-{short}"));
            assert_eq!(short.as_deref(), flag.short, "{}", flag.long);
        }
    }
}
