//! A guest whose memory is a function of its inputs, plus noise of its own.
//!
//! It stands for what the replication sees of a real one: pages that are dirtied, device state
//! that must travel with them, frames consumed and sent, and two instances that do the same
//! work but race. A page is 4096 bytes outside and one word in here, for the simulator's speed;
//! the halves of the word lie in two of its subpages.
//!
//! | page | holds |
//! |---|---|
//! | 0 | the name of its [history](crate::history), which the devices hold as well |
//! | 1, 2 | ROMs: resetting the devices writes garbage there |
//! | others | what inputs, the history and noise have written; some of them are device queues, where a reset writes garbage, too |
//! | the last | blocks of its disks, if it has some: each names the history |
//!
//! Page 0 and the devices agree whenever the guest is whole. A replica that applied a syncvm
//! half (PLOVER §4.4) has a guest in which they do not, and its next step notices.
//!
//! In some seeds guests end by themselves ([`Ends`]).

use crate::clean::Told;
use crate::history::{Histories, Step};
use crate::listener::Bare;
use crate::request::{Answered, Request};
use crate::rng::{Rng, mix};
use crate::spoken::{Spoken, WORD_BYTES};
use plover_types::{Frame, Micros, PageSet, Reply, wire};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

mod datagrams;
mod ends;
mod memory;

pub use ends::{AtEnd, Ends, GuestEnd, Life, Power};

/// Pages that every device reset writes.
const RESET_PAGES: [u32; 2] = [1, 2];

/// How a guest behaves.
#[derive(Clone, Copy, Debug)]
pub struct GuestHabits {
    /// How many pages it has, blocks of disks included.
    pub pages: u32,
    /// How many of them, the last ones, are blocks of disks.
    pub disk_blocks: u32,
    /// How often a step depends on a race.
    pub noise: f64,
    /// How often an answer depends on a race.
    pub divergence: f64,
    /// How long the guest works on a frame.
    pub work: (u64, u64),
    /// The time between two timer ticks.
    pub tick: (u64, u64),
    /// How often a step sets up a queue of a device.
    pub queues: f64,
    /// How often it ends, and what becomes of it.
    pub ends: Ends,
    /// How often a timer tick sends a [datagram](crate::clean).
    pub datagrams: f64,
    /// How often a timer tick says words of a stream of which most are [clean](crate::clean).
    pub clean_stream: f64,
}

impl GuestHabits {
    /// How many of its pages are RAM.
    pub fn ram_pages(&self) -> u32 {
        self.pages - self.disk_blocks
    }
}

/// The guest's end of a client's stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Stream {
    /// The newest connection that carried it, once one was open.
    connection: Option<u8>,
    /// The guest knows that connection: it has not been reset since.
    is_open: bool,
    /// The numbers of the connection's SYN, and of what comes next.
    first: u32,
    next: u32,
    /// The place in the connection of what comes next, and the frames of the client's that were consumed.
    place: u32,
    heard: u32,
}

impl Stream {
    /// The connection's clock: it begins anywhere, as its numbers do.
    fn clock(&self) -> u32 {
        mix(self.first.into(), 0) as u32
    }
}

/// A client has acknowledged bytes that this guest has never sent on the connection, or echoed
/// another clock.
#[derive(Clone, Copy, Debug)]
pub struct Strange {
    /// The client's frame.
    pub request: Request,
    /// The newest history whose words the client acknowledges.
    pub heard: u64,
    /// Where the guest stood.
    pub history: u64,
}

/// The stream of frames that the guest sends without being asked.
const OWN_ACCORD: u8 = 200;

/// A line typed on the console is a number of so many bytes.
pub const TYPED_BYTES: usize = 8;

/// Device and CPU state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Devices {
    history: u64,
    ticks: u64,
    tick_left: Micros,
    /// The frame being worked on.
    work: Option<(Frame, Micros)>,
    /// Registers that no memory shows.
    registers: u64,
    /// Each client's stream.
    streams: BTreeMap<u8, Stream>,
    life: Life,
    /// The history that its disks show, if it has some.
    flushed: u64,
    /// Its last cut, once it was told of one.
    told: Option<Told>,
    /// The pages of its queues. Its driver has written each when it set the queue up.
    queues: Vec<u32>,
}

/// The guest.
#[derive(Debug)]
pub struct FakeGuest {
    habits: GuestHabits,
    rng: Rng,
    memory: Vec<u64>,
    dirty: PageSet,
    devices: Devices,
    /// The devices have not run since they were switched on or reset.
    pub devices_clean: bool,
    /// Memory and devices are of two different moments.
    pub torn: bool,
    /// The newest strange frame, until a check takes it.
    pub strange: Option<Strange>,
    /// How its last step has ended it, and how its next one is to end it.
    ended: Option<GuestEnd>,
    ends_next: Option<GuestEnd>,
    /// Its words about its datagrams.
    words: Vec<Reply>,
}

impl FakeGuest {
    /// A guest at power-on.
    pub fn boot(habits: GuestHabits, mut rng: Rng, histories: &mut Histories) -> Self {
        let history = rng.word();
        histories.boot(history);
        let mut guest = Self {
            memory: vec![0; habits.pages as usize],
            dirty: PageSet::new(habits.pages),
            devices: Devices {
                history,
                ticks: 0,
                tick_left: rng.micros(habits.tick),
                work: None,
                registers: rng.word(),
                streams: BTreeMap::new(),
                life: Life::default(),
                flushed: history,
                told: None,
                queues: Vec::new(),
            },
            devices_clean: true,
            torn: false,
            strange: None,
            ended: None,
            ends_next: None,
            words: Vec::new(),
            habits,
            rng,
        };
        guest.write(0, history);
        guest.write_disks(history);
        // Each machine's firmware writes other pages.
        for _ in 0..habits.pages / 4 {
            guest.scribble();
        }
        guest
    }

    /// How long until its next step is due, if it runs.
    pub fn next_step_in(&self) -> Micros {
        let work = self
            .devices
            .work
            .as_ref()
            .map_or(Micros::NEVER, |(_, left)| *left);
        work.min(self.devices.tick_left)
    }

    /// Whether it could take a frame from its NIC.
    pub fn is_free(&self) -> bool {
        self.devices.work.is_none()
    }

    /// Takes a frame and begins to work on it.
    pub fn take(&mut self, frame: Frame) {
        assert!(self.is_free(), "one frame at a time");
        let left = self.rng.micros(self.habits.work);
        self.devices.work = Some((frame, left));
    }

    /// Time passes in it; returns the CPU time it used.
    pub fn run_for(&mut self, span: Micros) -> Micros {
        self.devices.tick_left = self.devices.tick_left.since(span);
        match &mut self.devices.work {
            Some((_, left)) => {
                *left = left.since(span);
                span
            }
            None => Micros::ZERO,
        }
    }

    /// Does the work that is due now. Returns the frames that it sends.
    pub fn step(&mut self, histories: &mut Histories) -> Vec<Frame> {
        let mut sent = Vec::new();
        self.ended = self.ends_next.take();
        if self.ended.is_some() {
            return sent;
        }
        if self
            .devices
            .work
            .as_ref()
            .is_some_and(|(_, left)| *left == Micros::ZERO)
        {
            if let Some((frame, _)) = self.devices.work.take() {
                sent.extend(self.answer(&frame, histories));
            }
        }
        if self.ended.is_none() && self.devices.tick_left == Micros::ZERO && !self.ends_at_a_tick()
        {
            self.devices.tick_left = self.rng.micros(self.habits.tick);
            self.devices.ticks += 1;
            self.live(Step::Other, self.devices.ticks, histories);
            if self.rng.chance(0.05) {
                let word = self.devices.ticks as u32;
                self.write_disks(self.devices.history);
                let connection = self.connection_to(OWN_ACCORD);
                sent.extend(self.open(OWN_ACCORD, connection, histories));
                sent.push(self.say(OWN_ACCORD, &[word], histories));
            }
            sent.extend(self.send_datagram());
            sent.extend(self.say_clean_words(histories));
        }
        sent
    }

    /// The answer to a frame: mostly the same words as any guest would send, but cut into segments at
    /// random.
    fn answer(&mut self, frame: &Frame, histories: &mut Histories) -> Vec<Frame> {
        let Some(request) = Request::of(frame) else {
            let bare = Bare::of(frame);
            let answer = bare.and_then(|bare| self.hear_bare(&bare, histories));
            return answer.into_iter().collect();
        };
        self.live(Step::Input(request.number), request.number, histories);
        if self.ends_at(request.number) {
            return Vec::new();
        }
        let client = request.client;
        let answered = Request::answers(frame);
        self.look_at_numbers(&request, answered);
        let stream = self.devices.streams.entry(client).or_default();
        stream.heard += 1;
        if !stream.is_open && stream.connection >= Some(request.connection) {
            let ack = answered.map_or(0, |answered| answered.ack);
            let history = self.devices.history;
            return vec![self.refuse((client, request.connection), ack, history, histories)];
        }
        let opened = self.open(client, request.connection, histories);
        let mut sent: Vec<_> = opened.into_iter().collect();
        let mut value = mix(request.number, 1) as u32;
        if self.rng.chance(self.habits.divergence) {
            value = self.rng.word() as u32;
        }
        let answer = match self.rng.range(0, 3) {
            0 => vec![
                self.say(client, &[], histories),
                self.say(client, &[request.request, value], histories),
            ],
            1 => vec![
                self.say(client, &[request.request], histories),
                self.say(client, &[value], histories),
            ],
            _ => vec![self.say(client, &[request.request, value], histories)],
        };
        sent.extend(answer);
        sent
    }

    /// Checks the numbers of a client's frame: it must acknowledge bytes that this guest has sent on the
    /// connection, and echo the connection's clock. Otherwise the guest's TCP would refuse the frame.
    fn look_at_numbers(&mut self, request: &Request, answered: Option<Answered>) {
        let stream = self.devices.streams.get(&request.client);
        let stream = stream.filter(|one| one.is_open && one.connection == Some(request.connection));
        let (Some(stream), Some(heard), Some(answered)) = (stream, request.heard, answered) else {
            return;
        };
        let said = stream.next.wrapping_sub(stream.first);
        let is_said = answered.ack.wrapping_sub(stream.first) <= said;
        if !is_said || answered.clock != stream.clock() {
            self.strange = Some(Strange {
                request: *request,
                heard,
                history: self.devices.history,
            });
        }
    }

    /// The connection over which the guest speaks to a client without being asked: the newest, or the one after it.
    fn connection_to(&self, client: u8) -> u8 {
        let stream = self.devices.streams.get(&client);
        let stream = stream.copied().unwrap_or_default();
        let newest = stream.connection;
        newest.map_or(0, |newest| newest + u8::from(!stream.is_open))
    }

    /// Opens a connection that a client has asked for. Its first number is drawn anew.
    fn open(&mut self, client: u8, connection: u8, histories: &mut Histories) -> Option<Frame> {
        let first = self.rng.word() as u32;
        let stream = self.devices.streams.entry(client).or_default();
        if stream.connection >= Some(connection) {
            return None;
        }
        stream.connection = Some(connection);
        stream.is_open = true;
        stream.first = first;
        stream.next = first;
        stream.place = 0;
        Some(self.speak(client, &[], true, histories))
    }

    /// A frame of a client's connection that a reset has made it forget is answered by an RST, which this history explains.
    fn refuse(
        &mut self,
        (client, connection): (u8, u8),
        ack: u32,
        history: u64,
        histories: &mut Histories,
    ) -> Frame {
        let stream = self.devices.streams.entry(client).or_default();
        let spoken = Spoken {
            client,
            connection,
            opens: false,
            resets: true,
            seq: ack,
            clock: 0,
            place: stream.place,
            heard: stream.heard,
            words: Vec::new(),
            history,
        };
        histories.speak(&spoken);
        spoken.encode()
    }

    /// The guest reads a line of the console: a number.
    pub fn hear(&mut self, line: &[u8], histories: &mut Histories) {
        let number = u64::from_le_bytes(line.try_into().expect("a line is a number"));
        self.live(Step::Typed(number), number, histories);
    }

    fn say(&mut self, client: u8, words: &[u32], histories: &mut Histories) -> Frame {
        self.speak(client, words, false, histories)
    }

    fn speak(
        &mut self,
        client: u8,
        words: &[u32],
        opens: bool,
        histories: &mut Histories,
    ) -> Frame {
        let history = self.devices.history;
        self.speak_of(history, client, words, opens, histories)
    }

    /// The same, where this history explains it.
    fn speak_of(
        &mut self,
        history: u64,
        client: u8,
        words: &[u32],
        opens: bool,
        histories: &mut Histories,
    ) -> Frame {
        let stream = self.devices.streams.entry(client).or_default();
        let spoken = Spoken {
            client,
            connection: stream.connection.unwrap_or_default(),
            opens,
            resets: false,
            seq: stream.next,
            clock: stream.clock(),
            place: stream.place,
            heard: stream.heard,
            words: words.to_vec(),
            history,
        };
        stream.next = spoken.end();
        stream.place += (words.len() * WORD_BYTES) as u32;
        histories.speak(&spoken);
        spoken.encode()
    }

    /// One step: memory and devices change, mostly as any guest's would, and sometimes by a race.
    fn live(&mut self, step: Step, input: u64, histories: &mut Histories) {
        self.torn |= self.memory[0] != self.devices.history;
        if self.torn {
            return;
        }
        let noise = if self.rng.chance(self.habits.noise) {
            self.rng.word()
        } else {
            0
        };
        let history = histories.step(self.devices.history, step, noise);
        self.devices.history = history;
        self.devices.registers = mix(self.devices.registers, history);
        self.write(0, history);
        if matches!(step, Step::Input(_)) || self.is_flushed() {
            self.write_disks(history);
        }
        let span = u64::from(self.habits.ram_pages()) - 3;
        for i in 0..1 + input % 5 {
            // Half of the writes follow from the input alone, so they are equal on both sides.
            let basis = if i % 2 == 0 { input } else { history };
            let value = mix(basis, i);
            let page = 3 + (mix(value, i) % span) as u32;
            self.write(page, if value % 8 == 0 { 0 } else { value });
        }
        if self.rng.chance(self.habits.noise) {
            self.scribble();
        }
        if self.habits.queues > 0.0 && self.rng.chance(self.habits.queues) {
            self.set_up_queue(mix(history, 6));
        }
    }

    /// The name of its history.
    pub fn history(&self) -> u64 {
        self.devices.history
    }

    /// Resets the devices: their state is gone, and the content of their queues in memory with it.
    pub fn reset(&mut self) {
        let queues = std::mem::take(&mut self.devices.queues);
        self.devices = Devices {
            history: 0,
            ticks: 0,
            tick_left: Micros::ZERO,
            work: None,
            registers: self.rng.word(),
            streams: BTreeMap::new(),
            life: self.devices.life,
            flushed: 0,
            told: None,
            queues: Vec::new(),
        };
        self.devices_clean = true;
        for page in RESET_PAGES.into_iter().chain(queues) {
            let value = self.rng.word();
            self.write(page, value);
        }
    }

    /// Serialises the devices.
    pub fn save_devices(&self) -> Vec<u8> {
        wire::encode(&self.devices)
    }

    /// Loads device state; false if the bytes are none.
    pub fn load_devices(&mut self, bytes: &[u8]) -> bool {
        match wire::decode(bytes) {
            Ok(devices) => {
                self.devices = devices;
                true
            }
            Err(_) => false,
        }
    }
}
