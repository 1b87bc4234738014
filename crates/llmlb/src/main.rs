//! `llmlb`: one OpenAI-compatible endpoint before many LLM servers.

#[global_allocator]
static ALLOCATOR: llmlb::Allocator = llmlb::ALLOCATOR;

fn main() -> std::process::ExitCode {
    llmlb::cli::run()
}
