//! Handle with which a test controls a process of the `owner` program. That process acquires a key
//! and executes the requests that the test writes to its stdin.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A running `owner` program, killed when dropped.
#[derive(Debug)]
pub struct Owner {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Owner {
    /// Starts `program` (the `owner` binary, perhaps behind another command), which tries to
    /// acquire `key` in `dir`.
    pub fn start(mut program: Command, dir: &Path, key: &str) -> Self {
        let mut child = program
            .arg(dir)
            .arg(key)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the owner program starts");
        let input = child.stdin.take().expect("stdin is a pipe");
        let output = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        Self {
            child,
            input,
            output,
        }
    }

    /// Starts the program and asserts that it acquires the key.
    pub fn holding(program: &str, dir: &Path, key: &str) -> Self {
        let mut owner = Self::start(Command::new(program), dir, key);
        let answer = owner.answer();
        assert!(answer.starts_with("held "), "{answer}");
        owner
    }

    /// Process id of the program.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a request and returns the response.
    pub fn request(&mut self, order: &str) -> String {
        self.send(order);
        self.answer()
    }

    /// Sends a request that has no response.
    pub fn send(&mut self, order: &str) {
        writeln!(self.input, "{order}").expect("the owner reads its input");
    }

    /// Returns the next line of the program's output; empty after the program has exited.
    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        let _ = self.output.read_line(&mut line);
        line.trim_end().to_owned()
    }

    /// Kills the program with SIGKILL and waits until it has exited.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits until the program exits by itself. Returns true if its exit code is 0.
    pub fn wait_for_success(&mut self) -> bool {
        self.child
            .wait()
            .expect("the owner is waited for")
            .success()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.kill();
    }
}
