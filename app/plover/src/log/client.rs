//! Questions and requests to a running group.

use super::{MemberCommand, One, Targets};
use anyhow::Context;
use plover_log::remote::{self, TailEvent};
use plover_log::wire::{MemberChange, StatusReport};
use plover_log::{Remote, Verdict};
use plover_types::{Index, ReplicaId, ReplicaSet};
use std::io::{self, BufRead, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Duration;

impl Targets {
    fn client(self) -> anyhow::Result<Remote> {
        let keys = self.keys.load()?;
        let client = Remote::new(self.addresses, Duration::from_secs(self.patience));
        Ok(client.with_keys(keys))
    }
}

impl One {
    fn status(&self) -> anyhow::Result<StatusReport> {
        Ok(remote::status(&self.address, self.keys.load()?.as_ref())?)
    }
}

pub fn append(to: Targets, text: &str) -> anyhow::Result<ExitCode> {
    let mut client = to.client()?;
    let mut one = |entry: &[u8]| -> anyhow::Result<()> {
        let at = client.append(entry)?;
        writeln!(io::stdout(), "{at}")?;
        Ok(())
    };
    if text != "-" {
        one(text.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    for line in io::stdin().lock().split(b'\n') {
        one(&line.context("cannot read the standard input")?)?;
    }
    Ok(ExitCode::SUCCESS)
}

pub fn tail(from: &One, since: u64, follow: bool, quiet: bool) -> anyhow::Result<ExitCode> {
    let mut out = io::BufWriter::new(io::stdout());
    let mut failure = None;
    let each = |event: TailEvent<'_>| {
        let written = match event {
            TailEvent::Entry { at, bytes } => print(&mut out, (!quiet).then_some(at), bytes),
            TailEvent::Trimmed(base) => {
                // On the error output, so that a pipe gets entries only.
                writeln!(
                    io::stderr(),
                    "plover: entries up to {base} have been trimmed"
                )
            }
        };
        // A reader that follows the log sees each entry at once.
        let written = written.and_then(|()| if follow { out.flush() } else { Ok(()) });
        match written {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failure = Some(error);
                ControlFlow::Break(())
            }
        }
    };
    remote::tail(
        &from.address,
        from.keys.load()?.as_ref(),
        Index(since),
        follow,
        each,
    )?;
    match failure {
        Some(error) => Err(error.into()),
        None => Ok(out.flush().map(|()| ExitCode::SUCCESS)?),
    }
}

fn print(
    out: &mut impl Write,
    at: Option<plover_types::Viewstamp>,
    bytes: &[u8],
) -> io::Result<()> {
    if let Some(at) = at {
        write!(out, "{at}\t")?;
    }
    out.write_all(bytes)?;
    out.write_all(b"\n")
}

pub fn status(to: &One, json: bool) -> anyhow::Result<ExitCode> {
    let report = to.status()?;
    let mut out = io::stdout();
    if json {
        writeln!(out, "{}", as_json(&report))?;
    } else {
        describe(&report, &mut out)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn ids(set: ReplicaSet) -> Vec<u8> {
    set.iter().map(|id| id.0).collect()
}

fn as_json(report: &StatusReport) -> serde_json::Value {
    serde_json::json!({
        "id": report.id.0,
        "phase": report.phase,
        "view": report.view.to_string(),
        "leader": report.leader.map(|it| it.0),
        "leader_address": report.leader_address,
        "voters": ids(report.voters),
        "learners": ids(report.learners),
        "linked": ids(report.linked),
        "durability": report.durability,
        "last": report.last.to_string(),
        "commit": report.commit.0,
        "applied": report.applied.0,
        "base": report.base.0,
        "log_bytes": report.log_bytes,
        "pending": report.pending,
        "clients": report.clients,
        "rejected": report.rejected,
        "lost": report.lost,
    })
}

fn describe(report: &StatusReport, out: &mut impl Write) -> io::Result<()> {
    let phase = format!("{:?}", report.phase).to_lowercase();
    let leader = match (report.leader, &report.leader_address) {
        (Some(leader), Some(address)) => format!("{leader}, clients on {address}"),
        (Some(leader), None) => leader.to_string(),
        (None, _) => "none".into(),
    };
    writeln!(
        out,
        "replica   {}, {phase} in view {}",
        report.id, report.view
    )?;
    writeln!(out, "leader    {leader}")?;
    writeln!(out, "voters    {}", report.voters)?;
    if !report.learners.is_empty() {
        writeln!(out, "learners  {}", report.learners)?;
    }
    writeln!(out, "links     {}", report.linked)?;
    writeln!(
        out,
        "log       after {} to {}, committed to {}, applied to {}",
        report.base, report.last.index, report.commit, report.applied
    )?;
    writeln!(
        out,
        "          {} payload bytes, {} entries wait for a majority, kept {}",
        report.log_bytes,
        report.pending,
        format!("{:?}", report.durability).to_lowercase()
    )?;
    writeln!(
        out,
        "clients   {}; {} messages rejected",
        report.clients, report.rejected
    )?;
    if report.lost {
        writeln!(
            out,
            "every replica has lost the log: begin a new one with `plover log begin`"
        )?;
    }
    Ok(())
}

/// Succeeds if two replicas or more were compared, and none differs.
pub fn check(to: &One) -> anyhow::Result<ExitCode> {
    let report = to.status()?;
    let mut out = io::stdout();
    let is_compared = report.outputs.iter().any(|it| it.compared.len() > 1);
    if !is_compared {
        writeln!(
            out,
            "nothing was compared yet: replicas that run with --check-outputs compare what they \
             answer to one client every 1500 bytes, which is 188 entries (`plover log append -`)"
        )?;
    }
    for verdict in &report.outputs {
        writeln!(out, "{}", sentence(verdict, report.voters))?;
    }
    let same = report.outputs.iter().all(|it| it.diverged.is_none());
    Ok(if is_compared && same {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The verdict on one stream in words.
fn sentence(verdict: &Verdict, voters: ReplicaSet) -> String {
    let name = format!("stream {:016x}", verdict.stream);
    let by = verdict.compared;
    let end = verdict.agreed;
    if let Some(diverged) = verdict.diverged {
        return format!(
            "{name}: {} differ from the others of {by} in piece {}, after {end} bytes that agree",
            diverged.replicas, diverged.piece
        );
    }
    if by.len() < 2 {
        return format!("{name}: only {by} has reported");
    }
    let rest = ReplicaSet(voters.0 & !by.0);
    if rest.is_empty() {
        format!("{name}: {by} agree up to {end} bytes")
    } else {
        format!("{name}: {by} agree up to {end} bytes; not compared that far: {rest}")
    }
}

pub fn member(change: MemberCommand) -> anyhow::Result<ExitCode> {
    let (to, change) = match change {
        MemberCommand::Add { to, member } => {
            let change = MemberChange::Add {
                id: ReplicaId(member.id),
                address: member.address_text(),
            };
            (to, change)
        }
        MemberCommand::Remove { to, id } => (to, MemberChange::Remove { id: ReplicaId(id) }),
    };
    let mut out = io::stdout();
    let done = to.client()?.change_members(&change, |text| {
        // A closed pipe shows at the last line.
        let _ = writeln!(io::stdout(), "{text}");
    })?;
    writeln!(out, "{done}")?;
    Ok(ExitCode::SUCCESS)
}

pub fn begin(to: &One) -> anyhow::Result<ExitCode> {
    let done = remote::begin(&to.address, to.keys.load()?.as_ref())?;
    writeln!(io::stdout(), "{done}")?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plover_log::Divergence;

    #[test]
    fn a_verdict_names_those_that_were_compared() {
        let all = ReplicaSet(0b111);
        let verdict = |compared: u16, diverged| Verdict {
            stream: 7,
            agreed: 3000,
            compared: ReplicaSet(compared),
            diverged,
        };
        let diverged = Divergence {
            piece: 2,
            replicas: ReplicaSet(0b100),
        };
        for (verdict, words) in [
            (verdict(0b111, None), "{r0,r1,r2} agree up to 3000 bytes"),
            (
                verdict(0b011, None),
                "{r0,r1} agree up to 3000 bytes; not compared that far: {r2}",
            ),
            (verdict(0b001, None), "only {r0} has reported"),
            (
                verdict(0b111, Some(diverged)),
                "{r2} differ from the others of {r0,r1,r2} in piece 2, after 3000 bytes that agree",
            ),
        ] {
            let expected = format!("stream 0000000000000007: {words}");
            assert_eq!(sentence(&verdict, all), expected);
        }
    }
}
