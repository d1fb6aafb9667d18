//! The store against a model that is too simple to be wrong.

use super::*;
use apus::Configuration;
use plover_types::ReplicaSet;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Append { count: u64, bytes: usize },
    Cut { back: u64 },
    Anew { ahead: u64 },
    Trim { keep: u64 },
    Sync,
    Thread,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..5u64, 0..1500usize).prop_map(|(count, bytes)| Step::Append { count, bytes }),
        1 => (1..4u64, 3000..9000usize).prop_map(|(count, bytes)| Step::Append { count, bytes }),
        2 => (0..6u64).prop_map(|back| Step::Cut { back }),
        1 => (0..3u64).prop_map(|ahead| Step::Anew { ahead }),
        2 => (0..8u64).prop_map(|keep| Step::Trim { keep }),
        4 => Just(Step::Sync),
        2 => Just(Step::Thread),
        1 => Just(Step::Reopen),
    ]
}

/// The log as a plain vector.
#[derive(Debug, Default)]
struct Twin {
    round: u64,
    base: Viewstamp,
    configuration: Configuration,
    log: Vec<Entry>,
    /// The store was asked to trim up to here.
    trimmed: Index,
}

impl Twin {
    fn last(&self) -> Viewstamp {
        self.log.last().map_or(self.base, |e| e.viewstamp)
    }

    /// The configuration at an index that the log holds.
    fn configuration_at(&self, index: Index) -> Configuration {
        let mut configuration = self.configuration;
        for entry in self.log.iter().filter(|e| e.viewstamp.index <= index) {
            configuration.note(entry.kind);
        }
        configuration
    }

    fn append(
        &mut self,
        store: &mut Store,
        after: Viewstamp,
        anew: Option<Configuration>,
        count: u64,
        bytes: usize,
    ) {
        let first = after.index.0 + 1;
        let mut new: Vec<_> = (first..first + count)
            .map(|i| entry(self.round, i, bytes))
            .collect();
        if let Some(entry) = new.first_mut().filter(|e| e.viewstamp.index.0 % 3 == 0) {
            entry.kind = EntryKind::InSync(ReplicaSet(first as u16));
        }
        store.persist_entries(after, anew, &new);
        if let Some(configuration) = anew {
            (self.base, self.configuration, self.trimmed) = (after, configuration, Index(0));
            self.log.clear();
        }
        self.log.retain(|e| e.viewstamp.index <= after.index);
        self.log.extend(new);
    }

    fn step(&mut self, store: &mut Store, step: &Step) {
        match *step {
            Step::Append { count, bytes } => self.append(store, self.last(), None, count, bytes),
            Step::Cut { back } => {
                let floor = self.trimmed.0.max(self.base.index.0);
                let keep = self.last().index.0.saturating_sub(back).max(floor);
                let after = self
                    .log
                    .iter()
                    .map(|e| e.viewstamp)
                    .find(|v| v.index.0 == keep);
                self.round += 1;
                self.append(store, after.unwrap_or(self.base), None, 1, 10);
            }
            Step::Anew { ahead } => {
                self.round += 1;
                let at = if ahead == 0 {
                    0
                } else {
                    self.last().index.0 + ahead
                };
                let configuration = Configuration {
                    in_sync: ReplicaSet(self.round as u16),
                    ..Configuration::default()
                };
                self.append(store, stamp(self.round, at), Some(configuration), ahead, 20);
            }
            Step::Trim { keep } => {
                let to = Index(self.last().index.0.saturating_sub(keep)).max(self.trimmed);
                self.trimmed = to;
                store.trim(to);
            }
            Step::Sync => check_done(&synced(store), self.last()),
            Step::Thread => {
                store.submit();
                check_done(&synced(store), self.last());
            }
            Step::Reopen => {}
        }
    }

    fn check(&self, found: &crate::Recovered) -> Result<(), TestCaseError> {
        prop_assert!(!found.forgotten && !found.torn, "{:?}", found.damage);
        let base = found.base.viewstamp;
        prop_assert!(base.index <= self.trimmed.max(self.base.index));
        prop_assert_eq!(found.base.configuration, self.configuration_at(base.index));
        let kept: Vec<_> = self
            .log
            .iter()
            .filter(|e| e.viewstamp.index > base.index)
            .cloned()
            .collect();
        prop_assert_eq!(&found.log, &kept);
        Ok(())
    }
}

fn check_done(done: &[Completion], last: Viewstamp) {
    for completion in done {
        match completion {
            Completion::EntriesPersisted(stored) => assert_eq!(*stored, last),
            Completion::StatePersisted(_) => {}
            Completion::Failed(error) => panic!("{error}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_store_equals_its_twin(steps in prop::collection::vec(step(), 1..120)) {
        let dir = directory();
        let (mut store, _) = open(dir.path());
        store.persist_state(promise(1));
        let mut twin = Twin { round: 1, ..Twin::default() };
        for step in steps.iter().chain([&Step::Reopen]) {
            twin.step(&mut store, step);
            prop_assert_eq!(store.last(), twin.last());
            if matches!(step, Step::Reopen) {
                drop(store);
                let (again, found) = open(dir.path());
                twin.check(&found)?;
                store = again;
            }
        }
    }
}
