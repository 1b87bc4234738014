//! `llmlb top` in a terminal of its own, that of `tmux`: keys, sizes, a restart of the server, and the state of the
//! terminal afterwards.

use std::process::Command;

use crate::world::World;

/// A terminal with a shell.
struct Terminal {
    socket: String,
}

impl Terminal {
    /// Starts a shell in a terminal of this size, with the variables of the sandbox.
    fn start(world: &World, width: u16, height: u16) -> Self {
        let socket = world.sandbox.path("tmux").to_string_lossy().into_owned();
        let terminal = Self { socket };
        let size = [width.to_string(), height.to_string()];
        let shell = ["new-session", "-d", "-x", &size[0], "-y", &size[1], "sh"];
        let mut command = world.sandbox.command_of("tmux", &[]);
        command.env("TERM", "xterm-256color");
        let started = terminal.run_in(command, &shell);
        assert!(started.0, "{}", started.1);
        terminal.keys(&["echo ready-$((6*7))", "Enter"]);
        terminal.until("ready-42");
        terminal
    }

    fn run(&self, args: &[&str]) -> String {
        self.run_in(Command::new("tmux"), args).1
    }

    fn run_in(&self, mut command: Command, args: &[&str]) -> (bool, String) {
        let output = command
            .args(["-f", "/dev/null", "-S", &self.socket])
            .args(args)
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.success(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    }

    fn keys(&self, keys: &[&str]) {
        self.run(&[&["send-keys", "-t", "0"], keys].concat());
    }

    fn screen(&self) -> String {
        self.run(&["capture-pane", "-p", "-t", "0"])
    }

    /// Waits until the screen has these words, and returns the screen.
    #[track_caller]
    fn until(&self, words: &str) -> String {
        testkit::eventually(&format!("the screen has {words:?}"), || {
            Some(self.screen()).filter(|screen| screen.contains(words))
        })
    }
}

/// True if `tmux` can be started. If not, the calling test is skipped.
fn has_tmux() -> bool {
    let found = Command::new("tmux").arg("-V").output();
    let is_found = found.is_ok_and(|ran| ran.status.success());
    if !is_found {
        testkit::skip("tmux: scripts/install-test-tools").unwrap();
    }
    is_found
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.run(&["kill-server"]);
    }
}

#[test]
fn screen_follows_keys_and_sizes_and_restores_the_terminal() {
    if !has_tmux() {
        return;
    }
    let world = World::start();
    assert_eq!(world.chat("broken"), 500);
    let terminal = Terminal::start(&world, 80, 24);
    let program = world.sandbox.llmlb().display();
    let top = format!("{program} top; echo code=$?");
    terminal.keys(&[&top, "Enter"]);
    let screen = terminal.until("q quit");
    assert!(screen.contains("backends: 2 of 2 up"), "{screen}");
    assert!(screen.contains("no requests in flight"), "{screen}");
    let _stream = world.open_stream();
    terminal.until("streaming");
    terminal.keys(&["3"]);
    terminal.until("500");
    terminal.keys(&["s"]);
    terminal.until("by name");
    terminal.run(&["resize-window", "-t", "0", "-x", "40", "-y", "12"]);
    terminal.keys(&["?"]);
    terminal.until("sort the backends");
    terminal.keys(&["Escape"]);
    let narrow = terminal.until("backends");
    assert!(
        narrow.lines().all(|line| line.chars().count() <= 40),
        "{narrow}"
    );
    terminal.keys(&["q"]);
    let screen = terminal.until("code=0");
    assert!(
        !screen.contains("backends"),
        "the screen is as it was:\n{screen}"
    );
    // The terminal is not in raw mode: what is typed is shown and read as a line.
    terminal.keys(&["echo typed-$((6*7))", "Enter"]);
    terminal.until("typed-42");
    world.gate.open();
}

#[test]
fn signal_restores_the_terminal() {
    if !has_tmux() {
        return;
    }
    let world = World::start();
    let terminal = Terminal::start(&world, 80, 24);
    let program = world.sandbox.llmlb().display();
    let pid = world.sandbox.path("pid");
    let run = format!(
        "sh -c 'echo $$ > {}; exec {program} top'; echo code=$?",
        pid.display()
    );
    terminal.keys(&[&run, "Enter"]);
    terminal.until("q quit");
    let pid = std::fs::read_to_string(pid).unwrap();
    Command::new("kill").arg(pid.trim()).status().unwrap();
    terminal.until("code=0");
    terminal.keys(&["echo typed-$((6*7))", "Enter"]);
    terminal.until("typed-42");
}

/// A program that goes on without its terminal would use a core until it is killed.
#[test]
fn closed_terminal_ends_the_program() {
    if !has_tmux() {
        return;
    }
    let world = World::start();
    let terminal = Terminal::start(&world, 80, 24);
    let program = world.sandbox.llmlb().display();
    let pid = world.sandbox.path("pid");
    let run = format!("sh -c 'echo $$ > {}; exec {program} top'", pid.display());
    terminal.keys(&[&run, "Enter"]);
    terminal.until("q quit");
    let pid = std::fs::read_to_string(pid).unwrap();
    drop(terminal);
    let is_alive = || {
        let checked = Command::new("kill").args(["-0", pid.trim()]).output();
        checked.unwrap().status.success()
    };
    testkit::eventually("the program has ended", || (!is_alive()).then_some(()));
}

#[test]
fn restart_of_the_server_is_shown() {
    if !has_tmux() {
        return;
    }
    let world = World::start();
    let terminal = Terminal::start(&world, 100, 30);
    let port = world.server.port();
    let program = world.sandbox.llmlb().display();
    terminal.keys(&[&format!("{program} top -p {port}"), "Enter"]);
    terminal.until("q quit");
    assert_eq!(world.server.stop(), Some(0));
    terminal.until("no connection since");
    let mut command = world.sandbox.command(&format!("serve --demo -p {port}"));
    let again = world.sandbox.serve_with(&mut command);
    let screen = terminal.until("server restarted");
    assert!(screen.contains(&again.pid().to_string()), "{screen}");
    assert!(screen.contains("demo-fast"), "{screen}");
}
