//! A guest's program, played by the test, and the reader of its channel.

use super::*;

/// A guest with a channel, and how many records its program has begun.
struct Guest {
    ram: Ram,
    begun: u64,
}

impl Guest {
    fn new() -> Self {
        let mut guest = Self {
            ram: Ram::new(1 << 20).unwrap(),
            begun: 0,
        };
        guest.write(0, MAGIC);
        guest
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        for (at, byte) in (AT + offset..).zip(bytes) {
            let page = PageNo((at / PAGE_BYTES) as u32);
            let mut content = vec![0; PAGE_BYTES];
            self.ram.read(page, &mut content);
            content[at % PAGE_BYTES] = *byte;
            self.ram.write(page, &content);
        }
    }

    fn begin(&mut self) -> usize {
        let no = self.begun;
        self.begun += 1;
        self.write(BEGUN, &self.begun.to_le_bytes());
        FIRST_RECORD + (no % RECORDS) as usize * RECORD_BYTES
    }

    fn say(&mut self, cut: u64, hash: u64) {
        let at = self.begin();
        self.finish(at, self.begun, cut, hash);
    }

    fn finish(&mut self, at: usize, mark: u64, cut: u64, hash: u64) {
        let client: [u8; 16] = "::ffff:10.0.0.9".parse::<Ipv6Addr>().unwrap().octets();
        for (offset, bytes) in [
            (8, cut.to_le_bytes().as_slice()),
            (16, &hash.to_le_bytes()),
            (24, &100u32.to_le_bytes()),
            (28, &11211u16.to_le_bytes()),
            (30, &4000u16.to_le_bytes()),
            (32, &[17]),
            (56, &client),
            (0, &mark.to_le_bytes()),
        ] {
            self.write(at + offset, bytes);
        }
    }
}

fn taken(channel: &mut Channel, guest: &Guest) -> (Vec<Reply>, bool) {
    let mut replies = Vec::new();
    let lost = channel.take(&guest.ram, &mut replies);
    (replies, lost)
}

fn hashes(replies: &[Reply]) -> Vec<u64> {
    let hash = |reply: &Reply| match reply.about {
        About::Datagram { hash } => hash,
        About::Stream { at } => at,
    };
    replies.iter().map(hash).collect()
}

#[test]
fn words_are_read_once_and_in_order() {
    let (mut guest, mut channel) = (Guest::new(), Channel::default());
    guest.say(3, 1);
    assert_eq!(taken(&mut channel, &guest), (vec![], false), "said before");
    guest.say(3, 2);
    guest.say(0, 3);
    let (replies, lost) = taken(&mut channel, &guest);
    assert!(!lost);
    let expected = Reply {
        clean_as_of: Some(SyncNo(3)),
        guest: (None, 11211),
        client: ("10.0.0.9".parse().unwrap(), 4000),
        protocol: 17,
        bytes: 100,
        about: About::Datagram { hash: 2 },
    };
    assert_eq!(replies[0], expected);
    assert_eq!(replies[1].clean_as_of, None);
    assert_eq!(taken(&mut channel, &guest), (vec![], false));
}

#[test]
fn a_word_that_is_not_whole_is_read_later() {
    let (mut guest, mut channel) = (Guest::new(), Channel::default());
    taken(&mut channel, &guest);
    let at = guest.begin();
    guest.say(1, 2);
    assert_eq!(taken(&mut channel, &guest), (vec![], false));
    guest.finish(at, 1, 1, 1);
    let (replies, lost) = taken(&mut channel, &guest);
    assert_eq!((hashes(&replies), lost), (vec![1, 2], false));
}

#[test]
fn words_go_around_the_ring() {
    let (mut guest, mut channel) = (Guest::new(), Channel::default());
    taken(&mut channel, &guest);
    for round in 0..5 {
        let wanted: Vec<u64> = (0..RECORDS / 2 + 1).map(|i| round << 32 | i).collect();
        wanted.iter().for_each(|hash| guest.say(1, *hash));
        let (replies, lost) = taken(&mut channel, &guest);
        assert_eq!((hashes(&replies), lost), (wanted, false));
    }
}

/// Words that were overwritten before they were read are missed, and the reader says so.
#[test]
fn lost_words_are_noticed() {
    let (mut guest, mut channel) = (Guest::new(), Channel::default());
    taken(&mut channel, &guest);
    (0..=RECORDS).for_each(|hash| guest.say(1, hash));
    assert!(taken(&mut channel, &guest).1);
    guest.say(1, 7);
    let (replies, lost) = taken(&mut channel, &guest);
    assert_eq!((hashes(&replies), lost), (vec![7], false));
    // A guest that counts wrongly.
    guest.write(BEGUN, &3u64.to_le_bytes());
    assert!(taken(&mut channel, &guest).1);
}

#[test]
fn memory_without_a_channel_is_left_alone() {
    let mut channel = Channel::default();
    let mut guest = Guest::new();
    channel.tell_cut(&guest.ram, SyncNo(5));
    assert_eq!(guest.ram.load(AT + CUT), 5);
    assert!(channel.take_dirty() && !channel.take_dirty());
    guest.write(0, b"something else");
    channel.tell_cut(&guest.ram, SyncNo(6));
    assert_eq!(guest.ram.load(AT + CUT), 5);
    assert!(!channel.take_dirty());
    assert_eq!(taken(&mut channel, &guest), (vec![], false));
}
