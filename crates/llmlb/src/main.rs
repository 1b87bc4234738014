//! `llmlb`: one OpenAI-compatible endpoint in front of many LLM servers.

#[global_allocator]
static ALLOCATOR: llmlb::Allocator = llmlb::ALLOCATOR;

fn main() -> std::process::ExitCode {
    llmlb::cli::run()
}
