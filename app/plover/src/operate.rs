//! The commands of an operator: they ask the replica of this host, which passes on what is for the leader.

use crate::cli::{MemberCommand, Show, Size};
use crate::output;
use crate::overview::Overview;
use anyhow::Result;
use plover_lab::control::Control;
use plover_lab::logs::ToldLog;
use plover_lab::operate::{Drained, MemberChange};
use plover_lab::status::GroupStatus;
use plover_lab::{console as terminal, grow, operate};
use serde_json::json;
use std::cell::Cell;
use std::fmt::Display;
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// How often `--watch` looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Prints where the group stands, or only this replica.
pub fn status(control: &Control, how: &Show, here: bool) -> Result<ExitCode> {
    if here && how.json {
        output::line(control.request(&json!({"op": "status"}))?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let look = || {
        let mut status = GroupStatus::ask(control)?;
        if here {
            let id = control.status()?.id;
            status.replicas.retain(|replica| replica.id == id);
        }
        Ok(status)
    };
    show(how, look, serde_json::to_string)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints where all groups of this host stand. Fails if a replica of this host does not answer.
pub fn status_of_all(root: &Path, how: &Show) -> Result<ExitCode> {
    let is_whole = Cell::new(true);
    let look = || {
        let all = Overview::ask(root)?;
        is_whole.set(all.is_whole());
        Ok(all)
    };
    show(how, look, Overview::to_json)?;
    Ok(if is_whole.get() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Prints a status once, or again and again.
pub fn show<S: Display>(
    how: &Show,
    look: impl Fn() -> Result<S>,
    to_json: impl Fn(&S) -> serde_json::Result<String>,
) -> Result<()> {
    if how.json {
        return output::line(to_json(&look()?)?);
    }
    if !how.watch {
        return output::print(look()?);
    }
    // On a terminal each one replaces the one before.
    let clear = if std::io::stdout().is_terminal() {
        "\x1b[H\x1b[2J"
    } else {
        ""
    };
    loop {
        match look() {
            Ok(status) => output::print(format_args!("{clear}{status}"))?,
            Err(error) => output::line(format_args!("{clear}{error:#}"))?,
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

pub fn switch_over(control: &Control, to: Option<u8>) -> Result<ExitCode> {
    let switched = operate::switch_over(control, to)?;
    let protected = if switched.protected {
        "the guest is protected"
    } else {
        "the guest is being copied anew, and not protected until then"
    };
    output::line(format_args!(
        "replica {} leads instead of replica {}; {protected}",
        switched.to, switched.from
    ))?;
    Ok(ExitCode::SUCCESS)
}

pub fn drain(control: &Control, lasts: Drained, wait_s: u64) -> Result<ExitCode> {
    let wait = Duration::from_secs(wait_s);
    let id = operate::drain(control, lasts, wait, |words| tell!("{words}"))?;
    let until = match lasts {
        Drained::UntilUndrained => "until `plover undrain`",
        Drained::UntilRestarted => "until the replica is started again",
    };
    output::line(format_args!(
        "replica {id} is drained: its host has no role that matters {until}"
    ))?;
    Ok(ExitCode::SUCCESS)
}

pub fn undrain(control: &Control, until_restart: bool) -> Result<ExitCode> {
    if until_restart {
        let id = operate::undrain_until_restart(control)?;
        output::line(format_args!(
            "replica {id} takes roles again, unless it is drained for longer"
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    let id = operate::undrain(control)?;
    output::line(format_args!("replica {id} takes roles again"))?;
    Ok(ExitCode::SUCCESS)
}

pub fn confirm_off(control: &Control, id: u8) -> Result<ExitCode> {
    let awaited = operate::peer_is_off(control, id, operate::boot_time())?;
    output::line(match awaited {
        true => format!("replica {id} is taken to be off: this one goes on without it"),
        false => format!(
            "replica {id} is taken to be off; this one had not waited for that, so it may need something else: `plover status`"
        ),
    })?;
    Ok(ExitCode::SUCCESS)
}

pub fn change_members(command: &MemberCommand) -> Result<ExitCode> {
    let (how, new, old) = match command {
        MemberCommand::Replace { old, new, how } => (how, Some(new), Some(*old)),
        MemberCommand::Add { new, how } => (how, Some(new), None),
        MemberCommand::Remove { id, how } => (how, None, Some(*id)),
    };
    let change = MemberChange {
        add: new.map(|new| (new.id, new.address.to_string())),
        remove: old,
    };
    let within = Duration::from_secs(how.seconds);
    let say = |words: &str| tell!("{words}");
    let voters = operate::change_members(&how.at.control()?, &change, within, say)?;
    let voters: Vec<String> = voters.iter().map(ToString::to_string).collect();
    if voters.is_empty() {
        output::line(
            "done: the replica of this host has ended. It has left the group, unless somebody has stopped its service meanwhile: \
             `plover status` on another host says",
        )?;
    } else {
        let file = match command {
            MemberCommand::Remove { .. } => {
                "`plover status` says whether [[group.replica]] in their configuration files has to change"
            }
            MemberCommand::Replace { .. } | MemberCommand::Add { .. } => {
                "bring [[group.replica]] in their configuration files up to date"
            }
        };
        output::line(format_args!(
            "done: the members are replicas {}; {file}",
            voters.join(", ")
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub fn grow_disk(control: &Control, disk: usize, to: Size, wait_s: u64) -> Result<ExitCode> {
    let (bytes, within) = (to.mib << 20, Duration::from_secs(wait_s));
    grow::grow_disk(control, disk, bytes, within, |words| tell!("{words}"))?;
    output::line(format_args!(
        "disk {disk} has {} MiB on all replicas that hold the guest, and the guest was told",
        to.mib
    ))?;
    Ok(ExitCode::SUCCESS)
}

pub fn console(control: &Control) -> Result<ExitCode> {
    terminal::attach(control)?;
    Ok(ExitCode::SUCCESS)
}

pub fn shut_down(control: &Control) -> Result<ExitCode> {
    operate::shut_down(control)?;
    output::line("the guest's power button is pressed")?;
    Ok(ExitCode::SUCCESS)
}

pub fn start(control: &Control) -> Result<ExitCode> {
    operate::start(control)?;
    output::line("the guest is switched on")?;
    Ok(ExitCode::SUCCESS)
}

pub fn reboot(control: &Control, wait_s: u64) -> Result<ExitCode> {
    operate::reboot(control, Duration::from_secs(wait_s), |words| {
        tell!("{words}")
    })?;
    output::line("the guest has powered off, and boots again")?;
    Ok(ExitCode::SUCCESS)
}

pub fn reset(control: &Control) -> Result<ExitCode> {
    operate::reset(control)?;
    output::line("the guest's machine is reset")?;
    Ok(ExitCode::SUCCESS)
}

pub fn pause(control: &Control) -> Result<ExitCode> {
    operate::pause(control)?;
    output::line("the guest is paused until `plover unpause`")?;
    Ok(ExitCode::SUCCESS)
}

pub fn unpause(control: &Control) -> Result<ExitCode> {
    operate::unpause(control)?;
    output::line("the guest goes on")?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the logs of the group's replicas, or of one.
pub fn logs(
    control: &Control,
    replica: Option<u8>,
    follow: bool,
    lines: usize,
) -> Result<ExitCode> {
    let ids = match replica {
        Some(id) => vec![id],
        None => {
            let status = GroupStatus::ask(control)?;
            status.replicas.iter().map(|replica| replica.id).collect()
        }
    };
    let logs = ids.iter().map(|id| ToldLog::of(control, *id, lines));
    let mut logs: Vec<_> = logs.collect();
    let mut output = std::io::stdout().lock();
    plover_lab::logs::print(&mut logs, follow, Some(lines), &mut output)?;
    Ok(ExitCode::SUCCESS)
}
