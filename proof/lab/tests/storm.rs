//! The write storm. First without a guest, on a good disk and on a bad one, to show that its judgement
//! is right. Then on a guest whose leader is killed.

use plover_lab::guests::Guest;
use plover_lab::options::Options;
use plover_lab_proof::storm::BLOCK_BYTES;
use plover_lab_proof::storm::audit::{ImageFile, Wrong, audit};
use plover_lab_proof::storm::record::State;
use plover_lab_proof::storm::writers::{Link, Storm};
use plover_lab_proof::{kill_leader, prove_on};
use std::fs::OpenOptions;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Writes that a test waits for.
const ENOUGH: u64 = 400;

/// How long the server may take until it answers.
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);

/// Connections that write.
const WRITERS: u64 = 4;

/// The guest's half of the storm, as a process of this machine.
struct Server {
    child: Child,
    address: SocketAddrV4,
}

impl Server {
    fn start(program: &Path, disk: &Path) -> Self {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let child = Command::new(program)
            .args(["-p", &port.to_string(), "-s", "8"])
            .arg(disk)
            .spawn()
            .expect("the server starts");
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        let server = Self { child, address };
        let deadline = Instant::now() + ANSWERS_WITHIN;
        while let Err(error) = Link::open(address) {
            assert!(Instant::now() < deadline, "{error:#}");
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn compile(to: &Path) {
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests/tools/plover-storm-server.c");
    let built = Command::new("cc")
        .args(["-O2", "-pthread", "-o"])
        .arg(to)
        .arg(source)
        .status();
    assert!(built.is_ok_and(|status| status.success()), "cc failed");
}

#[test]
fn a_good_disk_is_clean_and_a_bad_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let [program, disk, record] = ["server", "disk", "record"].map(|name| dir.path().join(name));
    compile(&program);

    let mut writes = 0;
    // Twice: the second time the record and the disk are those of a server that was killed.
    for seed in [1, 2] {
        let server = Server::start(&program, &disk);
        let links = Link::open_many(server.address, WRITERS).unwrap();
        let storm = Storm::start(links, &record, seed).unwrap();
        storm.wait_for(writes + ENOUGH);
        if seed == 1 {
            drop(server);
            storm.wait_for(u64::MAX);
            let error = format!("{:#}", storm.finish().unwrap_err());
            assert!(error.contains("writer"), "{error}");
        } else {
            let state = storm.finish().unwrap().state();
            assert_eq!(state, State::load(&record).unwrap());
            let mut link = Link::open(server.address).unwrap();
            let through_guest = audit(&state, &mut link).unwrap();
            assert!(through_guest.is_clean(), "{through_guest}");
        }
        writes = State::load(&record).unwrap().durable;
        let from_image = audit(
            &State::load(&record).unwrap(),
            &mut ImageFile::open(&disk).unwrap(),
        );
        let from_image = from_image.unwrap();
        assert!(from_image.is_clean(), "{from_image}");
    }

    // Put faults into the disk: a block without its writes, and one flipped bit.
    let state = State::load(&record).unwrap();
    let settled: Vec<u64> = state
        .expected
        .iter()
        .filter(|(_, expected)| expected.durable.is_some())
        .map(|(block, _)| *block)
        .collect();
    let (lost, torn) = (settled[0], settled[settled.len() / 2]);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&disk)
        .unwrap();
    file.write_all_at(&[0; BLOCK_BYTES], lost * BLOCK_BYTES as u64)
        .unwrap();
    let at = torn * BLOCK_BYTES as u64 + 1000;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    let audit = audit(&state, &mut ImageFile::open(&disk).unwrap()).unwrap();
    let wrongs: Vec<_> = audit.findings.iter().map(|f| (f.block, f.wrong)).collect();
    assert_eq!(wrongs, [(lost, Wrong::Lost), (torn, Wrong::Torn)]);
}

/// The guest of this lab has no disk, so the storm goes to a file in its memory.
#[test]
fn what_was_acknowledged_survives_the_leader() {
    let options = Options {
        guest: Guest::Storm,
        ..Options::default()
    };
    prove_on("t-storm", options, |lab, progress| {
        let dir = tempfile::tempdir()?;
        let storm = Storm::in_lab(lab, WRITERS, &dir.path().join("record"))?;
        storm.wait_for(ENOUGH);
        kill_leader(lab, progress)?;
        storm.wait_for(storm.durable() + ENOUGH);
        storm.settle(lab)
    });
}
