//! A guest that does not answer on its way up: what `lab up` says meanwhile, and when it gives up.
//!
//! The lab sees only that nothing answers. The serial console shows how far the guest has come, if the
//! guest uses it; an image of a user may not.

use crate::daemon::{LAST_LINES, indented};
use crate::lab::Lab;
use crate::net::{GUEST_IP, PREFIX};
use crate::options::{Firmware, Options};
use crate::progress::Progress;
use crate::state::LabName;
use crate::status::LabStatus;
use std::time::{Duration, Instant};

/// Long enough for a guest of the cache, which answers before the first reminder on an idle machine; short
/// enough that nobody takes the lab for dead.
const REMIND_EVERY: Duration = Duration::from_secs(15);

/// The most characters of a console's line that a reminder quotes.
const QUOTED_CHARS: usize = 120;

/// Reminds the user of a guest that does not answer.
#[derive(Debug)]
pub(crate) struct Reminder {
    next: Instant,
}

impl Reminder {
    pub(crate) fn new() -> Self {
        Self {
            next: Instant::now() + REMIND_EVERY,
        }
    }

    /// Says that the guest does not answer yet, if it is time to.
    pub(crate) fn remind(
        &mut self,
        lab: &Lab,
        status: &LabStatus,
        options: &Options,
        progress: &Progress,
    ) {
        if Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + REMIND_EVERY;
        let last = lab.last_print(runner(status), 1).pop();
        progress.say(format!(
            "the guest does not answer yet at {}{}",
            lab.service(),
            console(last.as_deref(), options.firmware())
        ));
        progress.say(format!(
            "`plover lab console{}` in a second terminal opens its console",
            of_lab(lab.name())
        ));
    }
}

/// The error about a guest that has not answered for `waited`: the end of its console, and the likely
/// causes.
pub(crate) fn error(lab: &Lab, status: &LabStatus, options: &Options, waited: Duration) -> String {
    format!(
        "the guest does not answer at {} after {} s; its console printed last:\n{}\nlikely causes:\n    {}",
        lab.service(),
        waited.as_secs(),
        indented(&lab.last_print(runner(status), LAST_LINES)),
        causes(options, lab.service().port()).join("\n    ")
    )
}

/// The replica whose guest is the one to look at.
fn runner(status: &LabStatus) -> u8 {
    let holder = || status.replicas.iter().find(|replica| replica.holds_state());
    status.leader().or_else(holder).map_or(0, |found| found.id)
}

/// The end of a reminder: what the console shows.
fn console(last: Option<&str>, firmware: Option<Firmware>) -> String {
    match (last, firmware) {
        (Some(line), _) => {
            let line: String = line.chars().take(QUOTED_CHARS).collect();
            format!("; its console printed last: {line}")
        }
        (None, Some(_)) => {
            ", and its serial console is silent: its disk has no boot loader, or its kernel's command line \
             no console=ttyS0"
                .into()
        }
        (None, None) => ", and its serial console is silent so far".into(),
    }
}

fn causes(options: &Options, port: u16) -> Vec<String> {
    let firmware = options.firmware().map(|firmware| match firmware {
        Firmware::Bios => "its first disk does not boot by SeaBIOS: try --uefi",
        Firmware::Uefi | Firmware::UefiSecure => {
            "its first disk does not boot by UEFI (it has no \\EFI\\BOOT\\BOOTX64.EFI, or needs Secure Boot): \
             try --bios"
        }
    });
    let service = match options.answers {
        Some(_) => {
            format!("no service listens on port {port}, or a firewall in the guest forbids it")
        }
        None => format!(
            "no service answers on port {port} as --guest {} does: --answers PORT names another port",
            options.guest.name()
        ),
    };
    let address = format!(
        "its first network card has not the address {GUEST_IP}/{PREFIX}: the lab has no DHCP server"
    );
    let firmware = firmware.map(String::from).into_iter();
    firmware.chain([address, service]).collect()
}

/// The option that names a lab, for a command that concerns it.
fn of_lab(name: &LabName) -> String {
    if *name == LabName::default() {
        String::new()
    } else {
        format!(" --name {name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reminder_quotes_the_console_or_says_why_it_is_silent() {
        let long = "x".repeat(500);
        assert!(console(Some("login:"), None).ends_with("printed last: login:"));
        assert!(console(Some(&long), None).len() < 200);
        assert!(console(None, Some(Firmware::Bios)).contains("console=ttyS0"));
        assert!(!console(None, None).contains("disk"));
    }

    #[test]
    fn the_causes_fit_what_was_asked_for() {
        let own = Options {
            bios: true,
            answers: Some(22),
            ..Options::default()
        };
        let causes_of = |options: &Options, port| causes(options, port).join("\n");
        let said = causes_of(&own, 22);
        for part in ["SeaBIOS", "10.77.0.100/24", "port 22"] {
            assert!(said.contains(part), "{said}");
        }
        let said = causes_of(&Options::default(), 6379);
        assert!(
            said.contains("--guest redis") && !said.contains("boot"),
            "{said}"
        );
        assert_eq!(of_lab(&"x".parse().unwrap()), " --name x");
    }
}
