//! Proxy that loses responses of a store, although the store has executed the requests.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

/// Starts a proxy that closes connections after a number of bytes from the server, so that responses
/// are lost although the server has executed their requests. `limit` returns the number of bytes for
/// the connection with a given index. Returns the port of the proxy.
pub(crate) fn start_cutting_proxy(
    server: u16,
    limit: impl Fn(usize) -> usize + Send + 'static,
) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for (index, client) in listener.incoming().map_while(Result::ok).enumerate() {
            let limit = limit(index);
            let server = TcpStream::connect(("127.0.0.1", server)).unwrap();
            let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut from, &mut to));
            thread::spawn(move || forward(&server, &client, limit));
        }
    });
    port
}

fn forward(mut server: &TcpStream, mut client: &TcpStream, limit: usize) {
    let (mut left, mut buffer) = (limit, [0; 4096]);
    while let Ok(length @ 1..) = server.read(&mut buffer) {
        if length > left || client.write_all(&buffer[..length]).is_err() {
            break;
        }
        left -= length;
    }
    // The server has executed the request: its response is lost here.
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}
