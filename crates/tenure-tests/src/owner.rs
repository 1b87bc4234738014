//! Another process that takes a key and does as it is told.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A running `owner` program. It is killed when dropped.
#[derive(Debug)]
pub struct Owner {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Owner {
    /// Starts `program` (the `owner` binary, perhaps behind another command) and asks it to take
    /// `key` in `dir`.
    pub fn start(mut program: Command, dir: &Path, key: &str) -> Self {
        let mut child = program
            .arg(dir)
            .arg(key)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the owner program starts");
        let input = child.stdin.take().expect("it has a stdin");
        let output = BufReader::new(child.stdout.take().expect("it has a stdout"));
        Self {
            child,
            input,
            output,
        }
    }

    /// Starts it and expects it to get the key.
    pub fn holding(program: &str, dir: &Path, key: &str) -> Self {
        let mut owner = Self::start(Command::new(program), dir, key);
        let answer = owner.answer();
        assert!(answer.starts_with("held "), "{answer}");
        owner
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Tells it something and returns what it answers.
    pub fn tell(&mut self, order: &str) -> String {
        self.order(order);
        self.answer()
    }

    /// Tells it something that it does not answer.
    pub fn order(&mut self, order: &str) {
        writeln!(self.input, "{order}").expect("the owner listens");
    }

    /// The next line that it says; empty when it is gone.
    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        let _ = self.output.read_line(&mut line);
        line.trim_end().to_owned()
    }

    /// Kills it, as by kill -9, and waits until it is gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits until it has ended by itself. Whether it went well.
    pub fn ended_well(&mut self) -> bool {
        self.child.wait().expect("it can be waited for").success()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.kill();
    }
}
