//! A backend with little overhead: one thread, and responses generated in advance.
//!
//!   mock --listen 127.0.0.1:8001

use std::io;
use std::net::TcpListener;

use llmlb_bench::mock::Mock;
use llmlb_bench::{option, poll};

fn main() -> io::Result<()> {
    poll::prepare()?;
    let listener = TcpListener::bind(option("--listen").expect("--listen ADDRESS"))?;
    // Thousands of connections may arrive at once.
    rustix::net::listen(&listener, 16384)?;
    Mock::new(listener)?.serve()
}
