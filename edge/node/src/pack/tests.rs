use super::*;
use plover_types::SplitMix64;
use proptest::prelude::*;

const PEER: ReplicaId = ReplicaId(1);
const MAX: [usize; 2] = [1 << 20, 1 << 20];

fn pair() -> (Packer, Packer) {
    (Packer::new(true, MAX), Packer::new(true, MAX))
}

/// A record like a batch of requests.
fn requests(seed: u64, count: u64) -> Vec<u8> {
    let mut random = SplitMix64::new(seed);
    let mut record = vec![WIRE_VERSION];
    for _ in 0..count {
        let key = random.range(0, 9999);
        record.extend(format!("*2\r\n$3\r\nGET\r\n$9\r\nkey:{key:05}\r\n").bytes());
    }
    record
}

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = SplitMix64::new(seed);
    let mut record = vec![WIRE_VERSION];
    record.extend((1..bytes).map(|_| random.next_u64() as u8));
    record
}

fn pack(packer: &mut Packer, record: &[u8]) -> Vec<u8> {
    let packed = packer
        .pack(PEER, Lane::Bulk, Payload::Pages, record)
        .to_vec();
    packer.was_sent();
    packed
}

#[test]
fn a_record_shrinks_and_the_next_like_it_more() {
    let (mut there, mut here) = pair();
    let record = requests(1, 500);
    let first = pack(&mut there, &record);
    assert!(first.len() < record.len() / 2, "{}", first.len());
    assert_eq!(here.unpack(PEER, Lane::Bulk, first).unwrap(), record);
    let again = pack(&mut there, &record);
    assert!(again.len() < 100, "{}", again.len());
    assert_eq!(here.unpack(PEER, Lane::Bulk, again).unwrap(), record);
    let (sent, plain): (u64, u64) = (there.bytes_out().map(|of| of.1).sum(), there.plain_bytes());
    assert!(sent * 3 < plain && plain == 2 * record.len() as u64);
}

/// Only the header is checked: every release of zstd understands the output of every other.
#[test]
fn the_form_of_a_header_is_that_of_its_version() {
    let (mut there, _) = pair();
    let headers = [0, 1].map(|_| pack(&mut there, &[7; 5000])[..HEADER_BYTES].to_vec());
    plover_types::forms::assert_form("compressed records", &headers);
}

#[test]
fn a_record_that_does_not_shrink_is_sent_as_it_is() {
    let (mut there, _) = pair();
    let small = requests(1, 5);
    assert_eq!(pack(&mut there, &small), small);
    let record = requests(1, 500);
    let digests = there.pack(PEER, Lane::Bulk, Payload::Digests, &record);
    assert_eq!(digests, record);
    let mut off = Packer::new(false, MAX);
    assert_eq!(pack(&mut off, &record), record);
}

#[test]
fn noise_is_left_alone_and_tried_again() {
    let (mut there, mut here) = pair();
    let mut packed = Vec::new();
    for seed in 0..400 {
        let record = noise(seed, 64 << 10);
        let bytes = pack(&mut there, &record);
        packed.push(bytes[0] == MARK);
        assert_eq!(here.unpack(PEER, Lane::Bulk, bytes).unwrap(), record);
    }
    let tries = packed.iter().filter(|is_packed| **is_packed).count();
    assert!((16..60).contains(&tries), "{tries} of 400");
    assert!(packed[100..].contains(&true), "never again");
}

#[test]
fn a_record_that_did_not_leave_is_no_part_of_the_stream() {
    let (mut there, mut here) = pair();
    for seed in 0..10 {
        let record = requests(seed % 3, 200);
        let bytes = pack(&mut there, &record);
        if seed % 4 == 1 {
            there.not_sent(PEER, Lane::Bulk);
        } else {
            assert_eq!(here.unpack(PEER, Lane::Bulk, bytes).unwrap(), record);
        }
    }
}

#[test]
fn a_lost_record_is_noticed_and_a_new_stream_understood() {
    let (mut there, mut here) = pair();
    let record = requests(1, 200);
    let first = pack(&mut there, &record);
    here.unpack(PEER, Lane::Bulk, first).unwrap();
    let _lost = pack(&mut there, &requests(2, 200));
    let next = pack(&mut there, &requests(3, 200));
    here.unpack(PEER, Lane::Bulk, next).unwrap_err();
    let next = pack(&mut there, &record);
    let gone = here.unpack(PEER, Lane::Bulk, next);
    assert_eq!(gone, Err(UnpackError::NoBeginning));
    there.begin_anew(PEER);
    let next = pack(&mut there, &record);
    assert_eq!(here.unpack(PEER, Lane::Bulk, next).unwrap(), record);
}

#[test]
fn a_stream_begins_anew_every_so_often() {
    let (mut there, mut here) = pair();
    let record = requests(1, 20);
    let missed = pack(&mut there, &record);
    assert_eq!(missed[1], ANEW);
    let mut understood = 0;
    for _ in 0..RECORDS_A_STREAM + 10 {
        let bytes = pack(&mut there, &record);
        understood += u32::from(here.unpack(PEER, Lane::Bulk, bytes).is_ok());
    }
    assert_eq!(understood, 11);
}

#[test]
fn a_length_that_no_record_has_allocates_nothing() {
    let (mut there, mut here) = pair();
    let mut bytes = pack(&mut there, &requests(1, 200));
    bytes[6..10].copy_from_slice(&u32::MAX.to_le_bytes());
    let error = here.unpack(PEER, Lane::Bulk, bytes).unwrap_err();
    assert_eq!(error, UnpackError::Malformed("longer than any record"));
}

#[derive(Clone, Debug)]
enum Step {
    Record(u64, u64),
    Noise(u64, usize),
    Refused,
    Link,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u64..4, 1u64..400).prop_map(|(seed, count)| Step::Record(seed, count)),
        2 => (0u64..4, 1usize..40_000).prop_map(|(seed, bytes)| Step::Noise(seed, bytes)),
        1 => Just(Step::Refused),
        1 => Just(Step::Link),
    ]
}

proptest! {
    /// Whether records are sent, refused by the fabric or lost with their link: those that arrive are
    /// those that were packed.
    #[test]
    fn unpacking_gives_the_record_that_was_packed(steps in prop::collection::vec(step(), 1..60), bulk: bool) {
        let lane = if bulk { Lane::Bulk } else { Lane::Log };
        let (mut there, mut here) = pair();
        for step in steps {
            let record = match step {
                Step::Record(seed, count) => requests(seed, count),
                Step::Noise(seed, bytes) => noise(seed, bytes),
                Step::Refused => {
                    there.pack(PEER, lane, Payload::Pages, &requests(9, 99));
                    there.not_sent(PEER, lane);
                    continue;
                }
                Step::Link => {
                    there.pack(PEER, lane, Payload::Pages, &requests(9, 99));
                    there.begin_anew(PEER);
                    here.begin_anew(PEER);
                    continue;
                }
            };
            let bytes = there.pack(PEER, lane, Payload::Pages, &record).to_vec();
            prop_assert_eq!(here.unpack(PEER, lane, bytes), Ok(record));
        }
    }

    #[test]
    fn noise_never_panics(mut bytes: Vec<u8>, flags: u8, length in 1u32..100_000) {
        let mut here = Packer::new(true, MAX);
        let mut head = vec![MARK, flags & ANEW, 0, 0, 0, 0];
        head.extend(length.to_le_bytes());
        head.append(&mut bytes);
        prop_assert!(here.unpack(PEER, Lane::Log, head).is_err());
    }

    /// A packed record with one changed byte is refused, or still gives the record.
    #[test]
    fn damage_is_refused(at in 0usize..400, by in 1u8..) {
        let (mut there, mut here) = pair();
        let record = requests(1, 200);
        let mut bytes = pack(&mut there, &record);
        let at = at % bytes.len();
        bytes[at] ^= by;
        if let Ok(read) = here.unpack(PEER, Lane::Bulk, bytes.clone()) {
            prop_assert!(read == record || bytes[0] != MARK);
        }
    }
}
