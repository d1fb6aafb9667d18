//! Asking the libvirt of this host.

use crate::tool;
use anyhow::{Context, Result, bail, ensure};
use std::process::Command;
use std::time::Duration;

/// libvirt answers at once; one that does not answer for so long hangs.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Runs `virsh` with `input`, and returns what it prints.
pub fn virsh(arguments: &[&str], input: Option<&str>) -> Result<String> {
    let ended = tool::run(Command::new("virsh").args(arguments), input, ANSWER_WITHIN);
    let ended = ended.context(
        "cannot run virsh: install libvirt-clients, or give the XML of the domain as a file",
    )?;
    let Some(ended) = ended else {
        bail!(
            "virsh {} has not answered within {} s: look at libvirtd (`systemctl status libvirtd virtqemud`)",
            arguments[0],
            ANSWER_WITHIN.as_secs()
        );
    };
    let why = ended.err.trim().replace('\n', "; ");
    ensure!(
        ended.status.success(),
        "virsh {} failed: {why}",
        arguments[0]
    );
    Ok(ended.out)
}
