//! Comparison of `docs/configuration.md` with the table of settings.

use super::super::setting::{AnySetting, Reload, key_of, section_of};
use super::super::settings;
use super::*;

const PAGE: &str = include_str!("../../../../../docs/configuration.md");
const BEGIN: &str = "<!-- generated from config/settings/ -->\n";
const END: &str = "<!-- end -->\n";

#[test]
fn page_has_the_table_of_settings() {
    let page = PAGE.replace("\r\n", "\n");
    let written = page
        .split_once(BEGIN)
        .and_then(|(_, rest)| rest.split_once(END));
    let (written, _) = written.expect("docs/configuration.md lost its markers");
    let generated = generated();
    if std::env::var_os("UPDATE_PAGES").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        fs::write(path, page.replace(written, &generated)).unwrap();
        return;
    }
    assert!(
        written == generated,
        "docs/configuration.md is out of date; run this test with UPDATE_PAGES=1, which writes:\n\n{generated}"
    );
}

#[test]
fn every_setting_of_the_table_is_effective() {
    let config = LoadCase::new().good();
    let mut read: Vec<&str> = config.origins.settings.keys().copied().collect();
    let mut listed: Vec<&str> = settings::all().map(AnySetting::name).collect();
    let shown: Vec<&str> = config.effective().iter().map(|line| line.name).collect();
    assert_eq!(shown, listed);
    read.sort_unstable();
    listed.sort_unstable();
    assert_eq!(read, listed);
}

#[test]
fn every_default_is_an_allowed_value() {
    for setting in settings::all() {
        let (Some(variable), default) = (setting.variable(), setting.default_text()) else {
            continue;
        };
        if let Some(text) = default.strip_prefix('`') {
            let text = text.trim_end_matches('`');
            let config = LoadCase::new().env(variable, text).good();
            let mut lines = config.effective().into_iter();
            let line = lines.find(|line| line.name == setting.name()).unwrap();
            assert_eq!(line.value, text, "{variable}");
        }
    }
}

#[test]
fn every_section_has_settings_and_every_setting_a_section() {
    for section in settings::SECTIONS {
        let free = section == settings::ALIASES;
        assert_eq!(settings::keys_of(section).is_empty(), free, "{section}");
    }
    for setting in everything() {
        let name = setting.name();
        assert!(settings::SECTIONS.contains(&section_of(name)), "{name}");
    }
}

#[test]
fn example_of_the_page_is_valid() {
    let page = PAGE.replace("\r\n", "\n");
    let (_, rest) = page.split_once("```toml\n").unwrap();
    let (example, _) = rest.split_once("```").unwrap();
    let config = LoadCase::with_file(example)
        .env("GPU_2_KEY", "k")
        .env("CI_KEY", "sk-0123456789abcdef")
        .env("BILLING_TOKEN", "t")
        .good();
    assert_eq!(config.backends.len(), 3);
    assert_eq!(config.aliases.len(), 2);
    assert_eq!(config.keys.len(), 2);
    for setting in everything().filter(|setting| section_of(setting.name()) != settings::ALIASES) {
        let key = key_of(setting.name());
        assert!(example.contains(key), "the example does not show {key}");
    }
}

#[test]
fn production_example_is_valid() {
    let page = include_str!("../../../../../docs/production.md").replace("\r\n", "\n");
    let (_, rest) = page.split_once("```toml\n").unwrap();
    let (example, _) = rest.split_once("```").unwrap();
    let config = LoadCase::with_file(example)
        .env("OPENAI_API_KEY", "k")
        .env("BILLING_TOKEN", "t")
        .good();
    assert_eq!(config.backends.len(), 2);
}

fn everything() -> impl Iterator<Item = &'static dyn AnySetting> {
    let alias: &'static dyn AnySetting = &settings::ALIAS;
    settings::all()
        .chain(settings::of_backends())
        .chain(settings::of_keys())
        .chain([alias])
}

fn generated() -> String {
    let mut page =
        String::from("\n| setting | variable | flag | default | reload | allowed | meaning |\n");
    page.push_str("|---|---|---|---|---|---|---|\n");
    for setting in everything() {
        page.push_str(&row(setting));
    }
    page.push_str("\n| other variable | meaning |\n|---|---|\n");
    for (name, about) in settings::OTHER_VARIABLES {
        page.extend(["| `", name, "` | ", about, " |\n"]);
    }
    page.push('\n');
    page
}

fn row(setting: &dyn AnySetting) -> String {
    let code = |text: &str| format!("`{text}`");
    let none = || "–".to_owned();
    let flag = match setting.flag() {
        Some(flag) => match flag.short {
            Some(short) => format!("`{short}`, `{}`", flag.long),
            None => code(flag.long),
        },
        None => none(),
    };
    format!(
        "| `{}` | {} | {flag} | {} | {} | {} | {} |\n",
        setting.name(),
        setting.variable().map_or_else(none, code),
        setting.default_text(),
        match setting.reload() {
            Reload::Applies => "yes",
            Reload::AfterRestart => "restart",
        },
        setting.allowed(),
        setting.about(),
    )
}
