//! Opening a directory, and judging what it held.

use crate::directory::Directory;
use crate::engine::LogWriter;
use crate::error::{Damage, SegmentNumber, StoreError, io_error};
use crate::record::Base;
use crate::recover::{Found, Problem, recover};
use crate::segment;
use crate::state::{self, GROUP_BYTES_MAX, State, StateFile};
use apus::{Durability, DurableState, Entry, Start};
use plover_types::wire::{Versions, WIRE_VERSION};

/// The least that a segment may be, bytes.
pub(crate) const SEGMENT_BYTES_MIN: u64 = 4096;

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the group, at most 255 bytes; a directory belongs to one.
    pub group: String,
    /// With [`Durability::Memory`] only the promise is kept. A log that is there is removed, because
    /// it would be out of date from then on.
    pub durability: Durability,
    /// The newest version of the wire forms that the replica speaks (default: that of this release). A directory of a group
    /// that has left it behind is refused.
    pub newest_version: u8,
    /// Size of a segment: the unit of preallocation and of trimming. An entry that is larger gets a
    /// larger segment. Tests make them small.
    pub(crate) segment_bytes: u64,
}

impl Options {
    /// For `group`, with segments of 16 MiB: a segment a second at 16 MiB/s, and a few
    /// milliseconds to prepare.
    pub fn new(group: impl Into<String>, durability: Durability) -> Self {
        Self {
            group: group.into(),
            durability,
            newest_version: WIRE_VERSION,
            segment_bytes: 16 << 20,
        }
    }
}

/// The content of a store when it was opened.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    /// The promise; none if this replica has never made one.
    pub promise: Option<DurableState>,
    /// The log holds less than this replica has or may have acknowledged: it must not vote before it
    /// has recovered from the others. `base` and `log` are then empty. True after damage, after a run
    /// with [`Durability::Memory`], and until the consensus core has persisted a state that is not
    /// amnesiac.
    pub forgotten: bool,
    /// Where the log begins.
    pub base: Base,
    /// The entries after `base`, without gaps.
    pub log: Vec<Entry>,
    /// The damage, if that is why the log was forgotten; to be shown to the operator.
    pub damage: Option<Damage>,
    /// A torn batch, which had not been acknowledged, was cut off, as after a crash.
    pub torn: bool,
}

impl Recovered {
    /// How the consensus core starts. A replica that has forgotten keeps its promise, and recovers
    /// like one whose log was in memory.
    pub fn start(self) -> Start {
        match self.promise {
            None => Start::Fresh,
            Some(durable) => Start::Restarted {
                durable,
                log: self.log,
                base: self.base.viewstamp,
                configuration_at_base: self.base.configuration,
                forgotten: self.forgotten,
            },
        }
    }
}

pub(crate) fn open_state(
    directory: &Directory,
    options: &Options,
) -> Result<StateFile, StoreError> {
    if options.group.len() > GROUP_BYTES_MAX {
        return Err(StoreError::LongName(options.group.clone()));
    }
    let path = directory.join(state::FILE);
    if !path.exists() {
        if let Some(number) = segment::list(directory)?.first() {
            let why = format!("it is missing beside {number}");
            return Err(StoreError::PromiseLost { path, why });
        }
        let mut salt = [0; 8];
        rustix::rand::getrandom(&mut salt, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| io_error("cannot draw random numbers for", &path)(error.into()))?;
        let state = State {
            generation: 0,
            group: options.group.clone(),
            salt: u64::from_le_bytes(salt),
            durability: options.durability,
            promise: None,
            whole: false,
        };
        return StateFile::create(directory, state);
    }
    let file = StateFile::open(directory)?;
    if file.state.group != options.group {
        return Err(StoreError::OtherGroup {
            path,
            found: file.state.group,
            wanted: options.group.clone(),
        });
    }
    let version = file.state.promise.map_or(0, |promise| promise.version);
    check_version(directory, options, version)?;
    Ok(file)
}

/// Refuses the directory of a group whose version this replica does not speak.
fn check_version(directory: &Directory, options: &Options, version: u8) -> Result<(), StoreError> {
    let speaks = Versions::up_to(options.newest_version);
    if speaks.fits(version) {
        return Ok(());
    }
    Err(StoreError::GroupVersion {
        path: directory.path().into(),
        version,
        speaks,
    })
}

fn other_release(directory: &Directory, why: String) -> StoreError {
    StoreError::OtherRelease {
        path: directory.path().into(),
        why,
        go_on: "copy the whole directory, then move the log.* files away",
    }
}

/// Memory mode: removes a log of an earlier run, which would be out of date at the next.
pub(crate) fn without_log(
    directory: &Directory,
    state: &mut StateFile,
) -> Result<Recovered, StoreError> {
    if state.state.whole || state.state.durability != Durability::Memory {
        state.update(|state| {
            state.whole = false;
            state.durability = Durability::Memory;
        })?;
    }
    segment::discard_all(directory, None)?;
    Ok(Recovered {
        promise: state.state.promise,
        ..Recovered::default()
    })
}

pub(crate) fn with_log(
    directory: &Directory,
    state: &mut StateFile,
    options: &Options,
) -> Result<(LogWriter, Recovered), StoreError> {
    let promise = state.state.promise;
    let salt = state.state.salt;
    let mut damage = None;
    if state.state.whole {
        match recover(directory, salt) {
            Ok(found) => {
                let mut configuration = found.base.configuration;
                for entry in &found.entries {
                    configuration.note(entry.kind);
                }
                check_version(directory, options, configuration.version)?;
                return resume(directory, promise, salt, options, found);
            }
            Err(Problem::Damage(found)) => damage = Some(found),
            Err(Problem::Foreign(why)) => return Err(other_release(directory, why)),
            Err(Problem::System(error)) => return Err(error),
        }
    }
    if let Some(damage) = &damage {
        tracing::error!(
            event = "entries_lost", directory = %directory.path().display(),
            %damage,
            "this replica has lost entries that it acknowledged: it does not vote until it has \
             recovered from the others"
        );
    }
    // From here on no crash makes the log look whole.
    state.update(|state| {
        state.whole = false;
        state.durability = Durability::Disk;
    })?;
    let newest = segment::list(directory)?.last().copied();
    segment::discard_all(directory, damage.as_ref().and_then(Damage::evidence))?;
    // Nobody can guess the first number: payload that looks like a record of a segment would have to name it, and recovery
    // looks at each that does.
    let first = newest.map_or(SegmentNumber(salt >> 24), SegmentNumber::next);
    let log = LogWriter::create(directory, salt, first, options.segment_bytes)?;
    let recovered = Recovered {
        promise,
        forgotten: true,
        damage,
        ..Recovered::default()
    };
    Ok((log, recovered))
}

fn resume(
    directory: &Directory,
    promise: Option<DurableState>,
    salt: u64,
    options: &Options,
    mut found: Found,
) -> Result<(LogWriter, Recovered), StoreError> {
    let recovered = Recovered {
        promise,
        forgotten: false,
        base: found.base,
        log: std::mem::take(&mut found.entries),
        damage: None,
        torn: found.torn,
    };
    let last = recovered
        .log
        .last()
        .map_or(found.base.viewstamp, |e| e.viewstamp);
    let log = LogWriter::resume(directory, salt, options.segment_bytes, found, last)?;
    Ok((log, recovered))
}
