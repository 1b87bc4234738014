//! A backend that costs little: one thread, answers made in advance.
//!
//!   mock --listen 127.0.0.1:8001

use std::io;
use std::net::TcpListener;

use llmlb_bench::mock::Mock;
use llmlb_bench::{option, poll};

fn main() -> io::Result<()> {
    poll::prepare()?;
    let listener = TcpListener::bind(option("--listen").expect("--listen ADDRESS"))?;
    // Thousands may come at once.
    rustix::net::listen(&listener, 16384)?;
    Mock::new(listener)?.serve()
}
