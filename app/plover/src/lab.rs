//! `plover lab`.

use crate::cli::LabCommand;
use crate::operate;
use crate::output;
use anyhow::{Result, anyhow, bail};
use plover_lab::control::Control;
use plover_lab::logs::LogFile;
use plover_lab::operate::Drained;
use plover_lab::options::Options;
use plover_lab::prerequisites;
use plover_lab::progress::Progress;
use plover_lab::state::LabName;
use plover_lab::{Lab, Target, console, down, logs};
use std::process::ExitCode;

/// Runs one of the lab's commands.
pub fn run(name: LabName, command: LabCommand) -> Result<ExitCode> {
    prerequisites::check_root()?;
    match command {
        LabCommand::Up(up) => {
            let (json, progress) = (up.json, Progress::interruptible(up.quiet)?);
            let options = Options { name, ..up.options };
            let lab = Lab::up(&options, &progress)?;
            progress.say("the lab is up");
            show(&lab, json)?;
        }
        LabCommand::Status { show } => {
            let lab = Lab::open(&name)?;
            operate::show(&show, || Ok(lab.status()), serde_json::to_string)?;
        }
        LabCommand::Switchover { to } => return operate::switch_over(&any(&name)?, to),
        LabCommand::Drain { replica } => {
            return operate::drain(
                &of(&name, replica)?,
                Drained::UntilUndrained,
                DRAINED_WITHIN_S,
            );
        }
        LabCommand::Undrain { replica } => return operate::undrain(&of(&name, replica)?, false),
        LabCommand::Start => return operate::start(&any(&name)?),
        LabCommand::Shutdown => return operate::shut_down(&any(&name)?),
        LabCommand::Reboot { wait } => return operate::reboot(&any(&name)?, wait),
        LabCommand::Reset => return operate::reset(&any(&name)?),
        LabCommand::Pause => return operate::pause(&any(&name)?),
        LabCommand::Unpause => return operate::unpause(&any(&name)?),
        LabCommand::Exec { command } => {
            let mut words = command.into_iter();
            let program = words
                .next()
                .ok_or_else(|| anyhow!("name a command after `--`"))?;
            let mut command = std::process::Command::new(program);
            command.args(words);
            return Err(Lab::open(&name)?.exec(command));
        }
        LabCommand::Fault(options) => {
            let (fault, target) = options.parts().map_err(|error| anyhow!(error))?;
            let lab = Lab::open(&name)?;
            let id = lab.find(&target)?;
            lab.fault(fault, id)?;
            let role = match target {
                Target::Role(role) => format!(" (the {role})"),
                Target::Replica(_) => String::new(),
            };
            output::line(format_args!("replica {id}{role}: {fault}"))?;
        }
        LabCommand::Restart { replica } => {
            let (mut lab, progress) = (Lab::open(&name)?, Progress::interruptible(false)?);
            let daemon = lab.restart(replica, &progress)?;
            output::line(format_args!(
                "replica {replica} runs again, as process {}",
                daemon.pid
            ))?;
            if lab.boot_after_a_loss(&progress)? {
                show(&lab, false)?;
            }
        }
        LabCommand::Bootstrap => {
            let (mut lab, progress) = (Lab::open(&name)?, Progress::interruptible(false)?);
            lab.bootstrap(&progress)?;
            show(&lab, false)?;
        }
        LabCommand::Console => console::attach(&Lab::open(&name)?)?,
        LabCommand::Logs {
            replica,
            follow,
            lines,
        } => {
            let lab = Lab::open(&name)?;
            let ids = match replica {
                Some(id) => vec![lab.find(&Target::Replica(id))?],
                None => lab.ids().collect(),
            };
            let mut files: Vec<_> = ids.iter().map(|id| LogFile::of(&lab, *id)).collect();
            logs::print(&mut files, follow, lines, &mut std::io::stdout().lock())?;
        }
        LabCommand::Down { all } => {
            let names = if all { down::all() } else { vec![name] };
            for name in &names {
                let was = if down::down(name)? {
                    "is down"
                } else {
                    "was not there"
                };
                output::line(format_args!("lab '{name}' {was}"))?;
            }
            if names.is_empty() {
                output::line("there is no lab")?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// How long a drain may take in a lab: a full copy of a small guest.
const DRAINED_WITHIN_S: u64 = 60;

/// A replica that answers: it passes on what is for the leader.
fn any(name: &LabName) -> Result<Control> {
    let lab = Lab::open(name)?;
    let status = lab.status();
    let answers = status.replicas.iter().find(|replica| replica.answers());
    match answers {
        Some(replica) => Ok(lab.control(replica.id)),
        None => bail!("no replica answers:\n{status}"),
    }
}

/// The replica with this id.
fn of(name: &LabName, id: u8) -> Result<Control> {
    let lab = Lab::open(name)?;
    let id = lab.find(&Target::Replica(id))?;
    Ok(lab.control(id))
}

fn show(lab: &Lab, json: bool) -> Result<()> {
    let status = lab.status();
    if json {
        output::line(serde_json::to_string(&status)?)
    } else {
        output::print(status)
    }
}
