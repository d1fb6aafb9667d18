//! The server with correct clients, and with noise.

use super::*;
use crate::DiskSpec;
use proptest::prelude::*;
use std::cell::Cell;

const BYTES: u64 = 16 * 4096;

/// A client whose messages are fixed; the server's answers are kept.
struct Script {
    said: io::Cursor<Vec<u8>>,
    heard: Vec<u8>,
}

impl Script {
    fn new(said: Vec<u8>) -> Self {
        Self {
            said: io::Cursor::new(said),
            heard: Vec::new(),
        }
    }
}

impl Read for Script {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.said.read(to)
    }
}

impl Write for Script {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.heard.extend_from_slice(from);
        Ok(from.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Plain {
    image: Image,
    busy: Cell<i32>,
    /// The client may ask for extents.
    tells: bool,
}

impl Backing for Plain {
    fn bytes(&self) -> u64 {
        self.image.bytes()
    }
    fn is_read_only(&self) -> bool {
        self.image.read_only
    }
    fn read(&self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        self.image.read(offset, to)
    }
    fn tells_extents(&self) -> bool {
        self.tells
    }
    fn extents(&self, _: u64, bytes: u64) -> io::Result<Vec<(u64, Extent)>> {
        let kinds = [Extent::Zero, Extent::Elsewhere, Extent::Data];
        Ok(kinds.map(|kind| (bytes / 3, kind)).into())
    }
    fn change(
        &self,
        offset: u64,
        bytes: u64,
        change: &mut dyn FnMut(&Image) -> io::Result<()>,
    ) -> io::Result<()> {
        let done = change(&self.image);
        self.image.note(offset, bytes);
        done
    }
    fn flush(&self) -> io::Result<()> {
        self.image.sync()
    }
    fn busy(&self, busy: bool) {
        self.busy.set(self.busy.get() + if busy { 1 } else { -1 });
    }
    fn failed(&self, what: &str, error: &io::Error) {
        panic!("{what}: {error}");
    }
}

fn backing(read_only: bool) -> (tempfile::TempDir, Plain) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::write(&path, vec![5; BYTES as usize]).unwrap();
    let spec = DiskSpec {
        path,
        read_only,
        bytes: None,
        bytes_max: None,
        delay: std::time::Duration::ZERO,
    };
    let image = Image::open(&spec, None, crate::Purpose::Boot).unwrap();
    (
        dir,
        Plain {
            image,
            busy: Cell::new(0),
            tells: false,
        },
    )
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(number.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

fn request(command: u16, flags: u16, cookie: u64, offset: u64, bytes: u32) -> Vec<u8> {
    let mut words = 0x2560_9513u32.to_be_bytes().to_vec();
    words.extend(flags.to_be_bytes());
    words.extend(command.to_be_bytes());
    words.extend(cookie.to_be_bytes());
    words.extend(offset.to_be_bytes());
    words.extend(bytes.to_be_bytes());
    words
}

/// QEMU's first messages: flags, an option that the server does not know, and GO.
fn hello() -> Vec<u8> {
    let mut said = 3u32.to_be_bytes().to_vec();
    said.extend(option(8, &[]));
    said.extend(option(7, &[0, 0, 0, 0, 0, 1, 0, 3]));
    said
}

/// Serves `requests` and gives the answers: cookie, error and data.
fn ask(plain: &Plain, requests: &[(Vec<u8>, usize)]) -> Vec<(u64, u32, Vec<u8>)> {
    let mut script = Script::new(hello());
    serve(&mut script, plain).unwrap();
    let greeting = script.heard.len();
    let all = requests.iter().flat_map(|(bytes, _)| bytes.clone());
    let mut script = Script::new(hello().into_iter().chain(all).collect());
    serve(&mut script, plain).unwrap();
    assert_eq!(plain.busy.get(), 0);
    let mut rest = &script.heard[greeting..];
    let mut answers = Vec::new();
    for (_, data) in requests {
        assert_eq!(rest[..4], 0x6744_6698u32.to_be_bytes());
        let error = u32::from_be_bytes(rest[4..8].try_into().unwrap());
        let cookie = u64::from_be_bytes(rest[8..16].try_into().unwrap());
        let data = if error == 0 { *data } else { 0 };
        answers.push((cookie, error, rest[16..16 + data].to_vec()));
        rest = &rest[16 + data..];
    }
    assert!(rest.is_empty());
    answers
}

#[test]
fn a_client_reads_what_it_wrote() {
    let (_dir, plain) = backing(false);
    let mut write = request(1, 1, 11, 4000, 200);
    write.extend([9; 200]);
    let zeroes = request(6, 0, 12, 8192, 4096);
    let trim = request(4, 0, 13, 5 * 4096 + 1, 4096);
    let flush = request(3, 0, 14, 0, 0);
    let read = request(0, 0, 15, 3990, 220);
    let unknown = request(77, 0, 16, 0, 0);
    let outside = request(0, 0, 17, BYTES - 10, 11);
    let overflow = request(6, 0, 18, u64::MAX - 3, 100);
    let large = request(0, 0, 19, 0, 2 << 20);
    let requests = [
        (write, 0),
        (zeroes, 0),
        (trim, 0),
        (flush, 0),
        (read, 220),
        (unknown, 0),
        (outside, 11),
        (overflow, 0),
        (large, 2 << 20),
    ];
    let answers = ask(&plain, &requests);
    let errors: Vec<_> = answers
        .iter()
        .map(|(cookie, error, _)| (*cookie, *error))
        .collect();
    let einval = |cookie| (cookie, 22);
    assert_eq!(errors[..5], [(11, 0), (12, 0), (13, 0), (14, 0), (15, 0)]);
    assert_eq!(
        errors[5..],
        [einval(16), einval(17), einval(18), einval(19)]
    );
    assert_eq!(answers[4].2[..10], [5; 10]);
    assert_eq!(answers[4].2[10..210], [9; 200]);
    let mut set = plover_types::PageSet::new(16);
    plain.image.written.take(plover_types::PageNo(0), &mut set);
    let noted: Vec<u32> = set.iter().map(|page| page.0).collect();
    assert_eq!(noted, [0, 1, 2, 5, 6], "twice each, told once");
    let mut content = vec![0; BYTES as usize];
    plain.image.read(0, &mut content).unwrap();
    assert!(content[8192..12288].iter().all(|byte| *byte == 0));
    assert!(content[20481..24577].iter().all(|byte| *byte == 0));
    assert_eq!((content[20480], content[24577]), (5, 5));
}

#[test]
fn a_read_only_disk_is_not_written() {
    let (_dir, plain) = backing(true);
    let mut write = request(1, 0, 1, 0, 1);
    write.push(9);
    let answers = ask(&plain, &[(write, 0), (request(0, 0, 2, 0, 1), 1)]);
    assert_eq!(answers, [(1, 1, vec![]), (2, 0, vec![5])]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Noise, also after a proper handshake, ends the connection or is answered; it never
    /// panics, and what it is answered with stays small.
    #[test]
    fn noise_does_no_harm(greet: bool, noise: Vec<u8>, commands in prop::collection::vec((0u16..8, any::<u16>(), any::<u64>(), prop_oneof![0..BYTES + 9000, any::<u64>()], prop_oneof![0u32..9000, any::<u32>()]), 0..6)) {
        let (_dir, plain) = backing(false);
        let mut said = if greet { hello() } else { Vec::new() };
        for (command, flags, cookie, offset, bytes) in commands {
            said.extend(request(command, flags, cookie, offset, bytes));
            if command == 1 {
                said.extend(noise.iter().take(bytes as usize));
            }
        }
        said.extend(&noise);
        let mut script = Script::new(said);
        let _ = serve(&mut script, &plain);
        prop_assert_eq!(plain.busy.get(), 0);
        prop_assert_eq!(plain.image.bytes(), std::fs::metadata(plain.image.path()).unwrap().len());
    }

    #[test]
    fn option_noise_is_refused(flags in 0u32..4, number in 0u32..12, data: Vec<u8>) {
        let (_dir, plain) = backing(false);
        let mut said = flags.to_be_bytes().to_vec();
        said.extend(option(number, &data));
        let _ = serve(&mut Script::new(said), &plain);
    }
}

/// The data of the option that names what will be asked about.
fn contexts(names: &[&str]) -> Vec<u8> {
    let mut data = 1u32.to_be_bytes().to_vec();
    data.extend(b"x");
    data.extend((names.len() as u32).to_be_bytes());
    for name in names {
        data.extend((name.len() as u32).to_be_bytes());
        data.extend(name.as_bytes());
    }
    data
}

/// The answers to options are heard up to the information about the export; then those to requests.
fn talk(plain: &Plain, options: &[(u32, Vec<u8>)], requests: &[Vec<u8>]) -> (Vec<u32>, Vec<u8>) {
    let mut said = 3u32.to_be_bytes().to_vec();
    for (number, data) in options {
        said.extend(option(*number, data));
    }
    said.extend(option(7, &[0, 0, 0, 0, 0, 1, 0, 3]));
    said.extend(requests.concat());
    let mut script = Script::new(said);
    serve(&mut script, plain).unwrap();
    let (mut kinds, mut rest) = (Vec::new(), &script.heard[18..]);
    loop {
        let word = |at: usize| u32::from_be_bytes(rest[at..at + 4].try_into().unwrap());
        let (option, kind, length) = (word(8), word(12), word(16));
        rest = &rest[20 + length as usize..];
        match (option, kind) {
            (7, 1) => return (kinds, rest.to_vec()),
            (7, _) => {}
            _ => kinds.push(kind),
        }
    }
}

#[test]
fn a_client_that_may_is_told_extents() {
    let (_dir, mut plain) = backing(true);
    let agreed = [(8, Vec::new()), (10, contexts(&["base:allocation", "y"]))];
    let extents = request(7, 0, 5, 0, 3 * 4096);
    let unknown = (1 << 31) | 1;
    let (kinds, _) = talk(&plain, &agreed, &[]);
    assert_eq!(kinds, [unknown, unknown], "a guest's QEMU may not");
    plain.tells = true;
    let (kinds, heard) = talk(&plain, &agreed, &[extents.clone(), request(0, 0, 6, 9, 2)]);
    assert_eq!(kinds, [1, 4, 1]);
    let chunk = |kind: u16, cookie: u64, data: &[u8]| {
        let mut bytes = 0x668e_33efu32.to_be_bytes().to_vec();
        bytes.extend([0, 1]);
        bytes.extend(kind.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(data);
        bytes
    };
    let words = [1u32, 4096, 3, 4096, 1, 4096, 0].map(u32::to_be_bytes);
    let read = [&9u64.to_be_bytes()[..], &[5, 5]].concat();
    assert_eq!(
        heard,
        [chunk(5, 5, &words.concat()), chunk(1, 6, &read)].concat()
    );
    // Outside, of nothing, and without having named them.
    let error = [&22u32.to_be_bytes()[..], &[0, 0]].concat();
    for (agreed, wrong) in [
        (&agreed[..], request(7, 0, 5, BYTES, 1)),
        (&agreed[..], request(7, 0, 5, 0, 0)),
        (&agreed[..1], extents),
    ] {
        let (_, heard) = talk(&plain, agreed, &[wrong]);
        assert_eq!(heard, chunk((1 << 15) | 1, 5, &error));
    }
}

#[test]
fn a_malformed_list_of_contexts_is_refused() {
    let (_dir, mut plain) = backing(true);
    plain.tells = true;
    let whole = contexts(&["base:allocation"]);
    let invalid = (1 << 31) | 3;
    for length in 0..whole.len() {
        let options = [(8, Vec::new()), (10, whole[..length].to_vec())];
        assert_eq!(talk(&plain, &options, &[]).0, [1, invalid], "{length}");
    }
    let more = [&whole[..], &[0]].concat();
    assert_eq!(
        talk(&plain, &[(8, Vec::new()), (10, more)], &[]).0,
        [1, invalid]
    );
}
