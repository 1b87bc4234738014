//! Command that `scripts/attack` runs: attacks on llmlb, with one line per verdict.

#[cfg(target_os = "linux")]
mod command {
    use std::error::Error;
    use std::io::{self, Write};
    use std::net::SocketAddr;
    use std::path::PathBuf;
    use std::process::ExitCode;
    use std::thread;

    use attack::{Selection, Speed, Target, run};
    use clap::Parser;
    use testkit::{DEADLINE, FakeLlm, Reply, chat_completion};

    /// Runs every known attack against llmlb and prints a verdict per attack.
    #[derive(Parser)]
    struct Args {
        /// llmlb program to attack
        #[arg(long, value_name = "PATH", required_unless_present_any = ["list", "fake_llm"])]
        llmlb_bin: Option<PathBuf>,
        /// Run only attacks whose name contains this text, or begins with it if it begins with a digit
        #[arg(long, value_name = "PATTERN", default_value = "")]
        only: String,
        /// Run only the attacks that are fast enough for the test suite
        #[arg(long)]
        fast: bool,
        /// Print the attacks without running them
        #[arg(long)]
        list: bool,
        /// This process has a network of its own
        #[arg(long, hide = true)]
        isolated: bool,
        /// Run a fake LLM server at this address instead of attacks; attacks with several users need it
        #[arg(long, hide = true, value_name = "ADDRESS", requires = "model")]
        fake_llm: Option<SocketAddr>,
        /// Model of the fake LLM server
        #[arg(long, hide = true)]
        model: Option<String>,
    }

    /// Runs a fake LLM server until the process is killed, at most until [`DEADLINE`]: a server
    /// that an attack leaves behind must not run forever.
    fn serve_fake_llm(address: SocketAddr, model: &str) -> io::Result<()> {
        let builder = FakeLlm::builder(&[model]).at(address);
        let _llm = builder.start(|_| Reply::json(200, chat_completion("ok", 100, 50)))?;
        thread::sleep(DEADLINE);
        Ok(())
    }

    pub(crate) fn main() -> Result<ExitCode, Box<dyn Error>> {
        let args = Args::parse();
        if let (Some(address), Some(model)) = (args.fake_llm, &args.model) {
            serve_fake_llm(address, model)?;
            return Ok(ExitCode::SUCCESS);
        }
        let selection = Selection {
            only: args.only,
            fast: args.fast,
        };
        let mut out = io::stdout().lock();
        if args.list {
            for attack in selection.attacks() {
                let speed = match attack.speed {
                    Speed::Fast => "fast",
                    Speed::Slow => "slow",
                };
                writeln!(out, "{:36} {speed}  {}", attack.name, attack.shows)?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        let llmlb = args.llmlb_bin.unwrap_or_default().canonicalize()?;
        let target = if args.isolated {
            Target::isolated(&llmlb)
        } else {
            Target::new(&llmlb)
        };
        let holds = run(&selection, &target, &mut out)?;
        Ok(if holds {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

#[cfg(target_os = "linux")]
fn main() -> Result<std::process::ExitCode, Box<dyn std::error::Error>> {
    command::main()
}

#[cfg(not(target_os = "linux"))]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    Err("attacks run on Linux only".into())
}
