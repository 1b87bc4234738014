//! `llmlb`: one OpenAI-compatible endpoint before many LLM servers.

/// A request allocates about 24 times, and many requests are open at a time. The C library's allocator
/// takes 5 % more CPU per request for that (docs/decisions/0009-an-allocator-of-its-own.md).
#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    llmlb::cli::run()
}
