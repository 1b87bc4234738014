//! A mock backend and a load generator. They share the exact bytes of the responses, and an event loop for
//! many connections on one thread. Linux.

mod answer;
pub mod load;
pub mod mock;
pub mod poll;
mod request;
mod response;
pub mod watch;

pub use answer::Model;

/// Returns the value of the option `name` on the command line.
pub fn option(name: &str) -> Option<String> {
    std::env::args().skip_while(|word| word != name).nth(1)
}

/// Returns the number after the option `name`, or the default.
pub fn number(name: &str, default: f64) -> f64 {
    option(name).map_or(default, |word| word.parse().expect(name))
}
