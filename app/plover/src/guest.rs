//! `plover guest`: requests to the agent in the guest.

use crate::cli::GuestCommand;
use crate::output;
use anyhow::Result;
use plover_lab::guest_agent;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// Carries a request out, and says what has come of it.
pub fn run(command: GuestCommand) -> Result<ExitCode> {
    match command {
        GuestCommand::Ping { at } => {
            guest_agent::ping(&at.control()?)?;
            output::line("the guest's agent answers")?;
        }
        GuestCommand::Fsfreeze { max, at } => {
            let count = guest_agent::freeze(&at.control()?, max)?;
            output::line(format_args!(
                "{} frozen, for {max} s at most: `plover guest fsthaw` thaws them",
                file_systems(count)
            ))?;
        }
        GuestCommand::Fsthaw { at } => {
            let count = guest_agent::thaw(&at.control()?)?;
            output::line(format_args!("{} thawed", file_systems(count)))?;
        }
        GuestCommand::Exec { wait, at, command } => {
            let (path, args) = command.split_first().expect("clap asks for a program");
            let within = Duration::from_secs(wait);
            let ended = guest_agent::exec(&at.control()?, path, args, within)?;
            std::io::stdout().write_all(&ended.output)?;
            std::io::stderr().write_all(&ended.errors)?;
            // Windows has longer ones.
            return Ok(ExitCode::from(u8::try_from(ended.code).unwrap_or(u8::MAX)));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn file_systems(count: u64) -> String {
    match count {
        1 => "1 file system is".into(),
        more => format!("{more} file systems are"),
    }
}
