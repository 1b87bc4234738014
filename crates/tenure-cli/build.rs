//! Sets the cfg `args_without_runtime` for systems whose C library provides the arguments without
//! the set-up of Rust's runtime: glibc and macOS.

fn main() {
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|now| now == value);
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(args_without_runtime)");
    let glibc = is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu");
    if glibc || is("CARGO_CFG_TARGET_OS", "macos") {
        println!("cargo::rustc-cfg=args_without_runtime");
    }
}
