//! Delivers a million staged records to a receiver on this machine: recovery of an open entry,
//! consolidation, delivery over HTTP, and `verify`.
//!
//! `drain [DIRECTORY]` works below a directory on the disk to measure. Delivery runs in a new process,
//! so that its peak memory is measured alone.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use spool::{Cancel, Destination, Http, HttpOptions, Progress, Watch, run, verify};
use spool_bench::backlog::{self, RECORDS, peak_memory};
use spool_bench::{directory, options};

fn main() {
    let words: Vec<_> = std::env::args().skip(1).collect();
    if let [word, data, url] = &*words
        && word == "from"
    {
        return drain(Path::new(data), url);
    }
    let dir = directory();
    let data = backlog::make(dir.path());
    let receiver = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let url = format!("http://{}/", receiver.local_addr().expect("its address"));
    let batches = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&batches);
    thread::spawn(move || {
        for stream in receiver.incoming() {
            let (stream, count) = (stream.expect("a connection"), Arc::clone(&count));
            thread::spawn(move || answer(&stream, &count));
        }
    });
    let own = std::env::current_exe().expect("this program");
    let status = Command::new(own).arg("from").arg(&data).arg(url).status();
    assert!(status.expect("a process").success());
    println!(
        "the receiver got {} batches",
        batches.load(Ordering::SeqCst)
    );
}

/// Accepts every batch and counts them.
fn answer(stream: &TcpStream, batches: &AtomicU64) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            let lower = line.to_ascii_lowercase();
            if let Some(digits) = lower.strip_prefix("content-length:") {
                length = digits.trim().parse().expect("a length");
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).expect("a body");
        batches.fetch_add(1, Ordering::SeqCst);
        let mut stream = stream;
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            .expect("an answer");
    }
}

fn drain(data: &Path, url: &str) {
    let http = Http::new(url, HttpOptions::default()).expect("a receiver");
    let began = Instant::now();
    let first = Cell::new(None::<Duration>);
    let progress = |seen: Progress| {
        if matches!(seen, Progress::Delivered { .. }) && first.get().is_none() {
            first.set(Some(began.elapsed()));
        }
    };
    let watch = Watch {
        cancel: Cancel::new(),
        progress: &progress,
    };
    let (options, delivery) = (options(), spool::DeliveryOptions::default());
    let done = run(data, &options, &delivery, Destination::To(&http), &watch).expect("a run");
    let took = began.elapsed().as_secs_f64();
    let memory = peak_memory().unwrap_or_default();
    let delivered = done.delivered.records;
    println!("{delivered} of {RECORDS} staged records consolidated and delivered over HTTP:");
    println!("| first batch delivered, ms | all, s | records/s | memory, MB |");
    println!("|--:|--:|--:|--:|");
    let first = first.get().unwrap_or_default().as_secs_f64() * 1e3;
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no more precision")]
    let rate = delivered as f64 / took;
    println!("| {first:.0} | {took:.1} | {rate:.0} | {memory:.0} |");
    let began = Instant::now();
    let books = verify(data, &Watch::silent()).expect("the books");
    assert!(books.balance(), "{:?}", books.problems);
    let took = began.elapsed().as_secs_f64();
    println!(
        "the books balance: {} staged = {} delivered; verified in {took:.1} s",
        books.staged, books.delivered
    );
}
