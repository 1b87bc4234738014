//! `llmlb`: one OpenAI-compatible endpoint before many LLM servers.

fn main() -> std::process::ExitCode {
    llmlb::cli::run()
}
