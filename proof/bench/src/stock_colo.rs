//! A guest under QEMU's own COLO (`x-colo`, `filter-rewriter`, `colo-compare`), as the distribution
//! ships it. `colo` and `hybrid` are compared with it.
//!
//! ```text
//!  r0: primary ── TAP ── the lab's switch ── client
//!      │ filter-mirror: inputs          ▲ colo-compare releases
//!      ▼                                │
//!  r1: secondary ── filter-rewriter ────┘ outputs
//! ```
//!
//! The network is that of a lab with two hosts, and the guest's machine is the default of a lab. The
//! pair is set up by QEMU's `docs/COLO-FT.txt`, without a disk. The TAP negotiates no offloads, as in a
//! lab. Checkpoints come when outputs differ, and every 20 s, QEMU's default.

mod filters;

use crate::children::{self, Process};
use anyhow::{Context, Result, anyhow, bail, ensure};
use filters::{primary, secondary};
use plover_lab::guests::Guest;
use plover_lab::image::Image;
use plover_lab::net::{GUEST_IP, GUEST_MAC, Namespace, PREFIX, Topology, replica_ip};
use plover_lab::options::Options;
use plover_lab::trace::now_us;
use plover_vm::qmp::{self, Message};
use plover_vm::{Accel, Boot, QemuConfig, choose_accel, host_cpu};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddrV4;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Its name in a report, in the place of a policy.
pub(crate) const NAME: &str = "qemu-colo";

/// The longest time for a guest to boot, or to be copied.
const PATIENCE: Duration = Duration::from_secs(60);

/// The longest time for an answer of QEMU.
const ANSWER: Duration = Duration::from_secs(10);

/// How often we try to bring a pair up.
const TRIES: u32 = 4;

/// Where the guest's console goes.
const CONSOLE: &str = "console.log";

/// A running pair. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct StockColo {
    topology: Option<Topology>,
    qemus: Vec<Qemu>,
    folder: tempfile::TempDir,
    accel: Accel,
}

/// One side.
#[derive(Debug)]
struct Qemu {
    role: &'static str,
    process: Process,
    /// Its QMP socket, and the one connection to it.
    socket: PathBuf,
    monitor: Mutex<Option<BufReader<UnixStream>>>,
}

impl StockColo {
    /// Boots a guest and copies it. Returns when its outputs are compared. Tries again after a failure:
    /// now and then QEMU 7.2 locks up when it enters COLO.
    ///
    /// # Errors
    /// Something that the machine lacks, or an error of QEMU.
    pub fn up(name: &str, options: &[String]) -> Result<Self> {
        let options = understood(options)?;
        for _ in 1..TRIES {
            match Self::try_up(name, &options) {
                Err(error) if children::check().is_ok() => {
                    eprintln!("{NAME} did not begin: {error:#}; trying again");
                }
                done => return done,
            }
        }
        Self::try_up(name, &options)
    }

    fn try_up(name: &str, options: &Options) -> Result<Self> {
        let guest = options.guest;
        let image = Image::find(options).map_err(|error| anyhow!(error))?;
        ensure!(image.disk.is_none(), "{NAME} is measured without a disk");
        let folder = tempfile::tempdir().context("cannot make a folder for sockets")?;
        let mut pair = Self {
            topology: Some(Topology::create(name, 2)?),
            qemus: Vec::new(),
            folder,
            accel: accel(options.accel.as_deref())?,
        };
        let common = machine(&image, guest, pair.accel, &pair.folder.path().join(CONSOLE));
        pair.start("primary", 0, &[&common[..], &primary()].concat())?;
        pair.wait_for_boot()?;
        pair.start("secondary", 1, &[&common[..], &secondary()].concat())?;
        pair.copy()?;
        pair.wait_for_service(guest)?;
        Ok(pair)
    }

    /// The client's host.
    pub fn client(&self) -> Result<Namespace> {
        let topology = self.topology.as_ref().context("it is down")?;
        Ok(topology.client())
    }

    /// The status in the form of `plover lab status --json`, as far as QEMU has it.
    ///
    /// # Errors
    /// One side has ended, or has left COLO.
    pub fn status(&self) -> Result<Value> {
        let mut replicas = Vec::new();
        for (id, (qemu, mode)) in self.qemus.iter().zip(["leader", "secondary"]).enumerate() {
            let colo = qemu.ask("query-colo-status", json!({}))?;
            ensure!(
                colo["mode"] == qemu.role,
                "QEMU's {} has left COLO: {}{}",
                qemu.role,
                colo["reason"],
                qemu.said()
            );
            replicas.push(json!({
                "id": id, "role": mode, "view": 0, "qemu_pid": qemu.process.id(),
                "more": {"mono_us": now_us(), "accel": self.accel.to_string()},
            }));
        }
        Ok(json!({"guest_ip": GUEST_IP.to_string(), "replicas": replicas}))
    }

    fn start(&mut self, role: &'static str, host: usize, arguments: &[String]) -> Result<()> {
        let folder = self.folder.path();
        let socket = folder.join(format!("{role}.qmp"));
        let mut command = Command::new("qemu-system-x86_64");
        command
            .args(arguments)
            .arg("-qmp")
            .arg(format!("unix:{},server=on,wait=off", socket.display()));
        let topology = self.topology.as_ref().context("it is down")?;
        let mut command = topology.replica(host).exec_in(command)?;
        let errors = folder.join(format!("{role}.err"));
        self.qemus.push(Qemu {
            role,
            process: Process::logged(&mut command, &errors, false)?,
            socket,
            monitor: Mutex::new(None),
        });
        Ok(())
    }

    /// Waits until the guest prints on its console that it is ready. The guest answers no client before
    /// there is a secondary to compare with.
    fn wait_for_boot(&mut self) -> Result<()> {
        let console = self.folder.path().join(CONSOLE);
        self.wait("the guest does not boot", || {
            let said = std::fs::read_to_string(&console).unwrap_or_default();
            ensure!(said.contains("plover-guest: ready"), "it said {said:?}");
            Ok(())
        })
    }

    fn wait_for_service(&mut self, guest: Guest) -> Result<()> {
        let probe = guest.probe();
        let client = self.client()?;
        let address = SocketAddrV4::new(GUEST_IP, probe.port);
        self.wait("the guest's service does not answer", || {
            client.run(|| Ok(probe.ask(address, Duration::from_secs(2))?))
        })
    }

    /// Tries until it succeeds, a QEMU ends, or the time is over.
    fn wait(&mut self, what: &'static str, mut done: impl FnMut() -> Result<()>) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            children::check()?;
            for qemu in &mut self.qemus {
                let alive = qemu.process.check();
                alive.with_context(|| format!("QEMU's {}", qemu.role))?;
            }
            match done() {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() > until => return Err(error.context(what)),
                Err(_) => std::thread::sleep(Duration::from_millis(200)),
            }
        }
    }

    /// Makes the second QEMU the first one's secondary.
    fn copy(&mut self) -> Result<()> {
        let [primary, secondary] = &self.qemus[..] else {
            bail!("a pair has two sides");
        };
        let colo = json!({"capabilities": [{"capability": "x-colo", "state": true}]});
        for qemu in [secondary, primary] {
            qemu.ask("migrate-set-capabilities", colo.clone())?;
        }
        let unbounded = json!({"max-bandwidth": 10_000_000_000_u64});
        primary.ask("migrate-set-parameters", unbounded)?;
        let to = json!({"uri": format!("tcp:{}:9998", replica_ip(1))});
        primary.ask("migrate", to)?;
        let until = Instant::now() + PATIENCE;
        for qemu in [primary, secondary] {
            while qemu.ask("query-colo-status", json!({}))?["mode"] != qemu.role {
                children::check()?;
                ensure!(Instant::now() < until, "QEMU's COLO did not begin");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        Ok(())
    }
}

impl Drop for StockColo {
    fn drop(&mut self) {
        self.qemus.clear();
        if let Some(topology) = self.topology.take() {
            if let Err(error) = topology.destroy() {
                eprintln!("the network of {NAME} was not removed: {error:#}");
            }
        }
    }
}

impl Qemu {
    /// Asks its monitor one question.
    fn ask(&self, what: &str, arguments: Value) -> Result<Value> {
        let mut monitor = self.monitor.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = match &mut *monitor {
            Some(monitor) => ask(monitor, what, arguments),
            none => self
                .connect()
                .and_then(|connected| ask(none.insert(connected), what, arguments)),
        };
        answer.with_context(|| format!("QEMU's {}{}", self.role, self.said()))
    }

    fn connect(&self) -> Result<BufReader<UnixStream>> {
        let until = Instant::now() + ANSWER;
        let stream = loop {
            match UnixStream::connect(&self.socket) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() > until => bail!("there is no monitor: {error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        stream.set_read_timeout(Some(ANSWER))?;
        let mut monitor = BufReader::new(stream);
        let greeted = monitor.read_line(&mut String::new());
        greeted.context("its monitor does not greet")?;
        ask(&mut monitor, "qmp_capabilities", json!({}))?;
        Ok(monitor)
    }

    /// Its error output, as the end of a sentence.
    fn said(&self) -> String {
        match self.process.last_words().as_str() {
            "" => String::new(),
            said => format!(": {said}"),
        }
    }
}

/// Asks the monitor one question. Events that come before the answer are skipped.
fn ask(monitor: &mut BufReader<UnixStream>, what: &str, arguments: Value) -> Result<Value> {
    let question = json!({"execute": what, "arguments": arguments});
    writeln!(monitor.get_mut(), "{question}").with_context(|| format!("cannot ask {what}"))?;
    loop {
        let mut line = String::new();
        let read = monitor.read_line(&mut line);
        ensure!(
            read.with_context(|| format!("no answer to {what}"))? > 0,
            "QEMU ended at {what}"
        );
        match qmp::decode(line.as_bytes())? {
            Message::Return { value, .. } => return Ok(value),
            Message::Error { error, .. } => bail!("{what}: {}", error.desc),
            Message::Greeting { .. } | Message::Event { .. } => {}
        }
    }
}

/// The guest and the accelerator named by options of `plover lab up`. No other options are understood.
fn understood(options: &[String]) -> Result<Options> {
    let mut known = Options::default();
    for pair in options.chunks(2) {
        match pair {
            [flag, guest] if flag == "--guest" => {
                known.guest = guest.parse().map_err(|error: String| anyhow!(error))?;
            }
            [flag, accel] if flag == "--accel" => known.accel = Some(accel.clone()),
            _ => bail!(
                "{NAME} takes a guest, an accelerator and no other options: {}",
                options.join(" ")
            ),
        }
    }
    Ok(known)
}

/// The options that both sides have in common.
fn machine(image: &Image, guest: Guest, accel: Accel, console: &Path) -> Vec<String> {
    let [accel, cpu] = match accel {
        Accel::Kvm => ["kvm".into(), host_cpu()],
        _ => ["tcg,thread=multi".into(), "max".to_owned()],
    };
    let mem_mib = guest.mem_mib().unwrap_or(256);
    let path = |path: &Path| path.display().to_string();
    let mut words: Vec<String> = ["-nodefaults", "-no-user-config", "-display", "none"]
        .map(Into::into)
        .into();
    let mut option = |name: &str, value: String| words.extend([name.to_owned(), value]);
    option("-M", "microvm".into());
    option("-accel", accel);
    option("-cpu", cpu);
    option("-smp", "1".into());
    option("-m", format!("{mem_mib}M"));
    option(
        "-chardev",
        format!("file,id=serial,append=on,path={}", path(console)),
    );
    option("-serial", "chardev:serial".into());
    option("-kernel", path(&image.kernel));
    if let Some(initrd) = &image.initrd {
        option("-initrd", path(initrd));
    }
    let address = format!("plover.ip={GUEST_IP}/{PREFIX}");
    option("-append", format!("{} {address}", image.cmdline));
    let nic = format!("virtio-net-device,netdev=net,mac={GUEST_MAC}");
    option("-device", nic);
    words
}

/// The accelerator of this name, or the one that a lab chooses.
fn accel(name: Option<&str>) -> Result<Accel> {
    let accel = match name {
        Some(name) => serde_json::from_value(name.into()).context("the accelerator")?,
        None => Accel::Auto,
    };
    let probe = Boot::Kernel {
        kernel: PathBuf::new(),
        initrd: None,
        cmdline: String::new(),
    };
    let config = QemuConfig {
        accel,
        ..QemuConfig::new(probe, GUEST_MAC)
    };
    Ok(choose_accel(&config).accel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_a_guest_an_accelerator_and_nothing_else() {
        let words = |line: &str| -> Vec<String> { line.split(' ').map(Into::into).collect() };
        assert_eq!(understood(&[]).unwrap().guest, Guest::Redis);
        let named = understood(&words("--guest nginx --accel kvm")).unwrap();
        assert_eq!(named.guest, Guest::Nginx);
        assert_eq!(named.accel.as_deref(), Some("kvm"));
        assert!(understood(&words("--guest vax")).is_err());
        let error = understood(&words("--guest redis --vcpus 2")).unwrap_err();
        assert!(error.to_string().contains("--vcpus 2"), "{error}");
    }
}
