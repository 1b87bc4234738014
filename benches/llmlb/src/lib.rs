//! A mock backend and a load generator. They share the answers, byte for byte, and the means to serve
//! and watch many connections from one thread. Linux.

mod answer;
pub mod load;
pub mod mock;
pub mod poll;
mod request;
mod response;
pub mod watch;

pub use answer::Model;

/// The value of `--name` among the arguments.
pub fn option(name: &str) -> Option<String> {
    std::env::args().skip_while(|word| word != name).nth(1)
}

/// The number given by `--name`, or the usual one.
pub fn number(name: &str, usual: f64) -> f64 {
    option(name).map_or(usual, |word| word.parse().expect(name))
}
