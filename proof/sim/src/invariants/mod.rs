//! The invariants, one property a file, each with its section in the papers. The checks observe from
//! outside: a replica's report of itself counts only where the property is about that report.

pub mod commits_are_told;
pub mod committed_not_lost;
pub mod debt_never_forgotten;
pub mod disks_survive;
pub mod external_consistency;
pub mod forms_are_known;
pub mod guest_is_whole;
pub mod inputs_in_order;
pub mod logs_agree;
pub mod memory_equal_after_sync;
pub mod nobody_is_refused;
pub mod nothing_spins;
pub mod one_fault_is_survived;
pub mod one_leader_a_view;
pub mod one_sender_a_slot;
pub mod operators_are_told;
pub mod pause_lasts;
pub mod planned_work;
pub mod progress_after_healing;
pub mod replaced_when_copied;
pub mod streams_go_on;
pub mod warm_copy_accounted;

use plover_policy::Policy;
use std::fmt;

/// A property that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The property: the name of its file.
    pub invariant: &'static str,
    /// The section of the papers that asks for it.
    pub section: &'static str,
    /// What happened.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.invariant, self.section, self.message)
    }
}

/// The result of a check.
pub type Check = Result<(), Violation>;

/// The invariants that remember something.
#[derive(Debug)]
pub struct Invariants {
    /// See the file.
    pub one_leader_a_view: one_leader_a_view::OneLeaderAView,
    /// See the file.
    pub log: logs_agree::CommittedLog,
    /// See the file.
    pub commits_are_told: commits_are_told::CommitsAreTold,
    /// See the file.
    pub external_consistency: external_consistency::ExternalConsistency,
    /// See the file.
    pub forms_are_known: forms_are_known::FormsAreKnown,
    /// See the file.
    pub one_fault: one_fault_is_survived::OneFault,
    /// See the file.
    pub one_sender_a_slot: one_sender_a_slot::OneSenderASlot,
    /// See the file.
    pub memory_equal_after_sync: memory_equal_after_sync::MemoryEqualAfterSync,
    /// See the file.
    pub inputs_in_order: inputs_in_order::InputsInOrder,
    /// See the file.
    pub streams_go_on: streams_go_on::StreamsGoOn,
    /// See the file.
    pub nothing_spins: nothing_spins::NothingSpins,
    /// See the file.
    pub progress: progress_after_healing::Progress,
    /// See the file.
    pub pause_lasts: pause_lasts::PauseLasts,
    /// See the file.
    pub operators: operators_are_told::OperatorsAreTold,
}

impl Invariants {
    /// The invariants at the beginning of a run under `policy`.
    pub fn new(policy: &Policy) -> Self {
        Self {
            one_leader_a_view: one_leader_a_view::OneLeaderAView::default(),
            log: logs_agree::CommittedLog::default(),
            commits_are_told: commits_are_told::CommitsAreTold::default(),
            external_consistency: external_consistency::ExternalConsistency::default(),
            forms_are_known: forms_are_known::FormsAreKnown::default(),
            one_fault: one_fault_is_survived::OneFault::default(),
            one_sender_a_slot: one_sender_a_slot::OneSenderASlot::default(),
            memory_equal_after_sync: memory_equal_after_sync::MemoryEqualAfterSync::default(),
            inputs_in_order: inputs_in_order::InputsInOrder::new(policy.input),
            streams_go_on: streams_go_on::StreamsGoOn::default(),
            nothing_spins: nothing_spins::NothingSpins::default(),
            progress: progress_after_healing::Progress::default(),
            pause_lasts: pause_lasts::PauseLasts::default(),
            operators: operators_are_told::OperatorsAreTold::default(),
        }
    }

    /// The operator let the group begin a new generation with a new guest. Promises to the old guest's
    /// clients end here.
    pub fn new_generation(&mut self) {
        self.log = self.log.next_generation();
        self.external_consistency = external_consistency::ExternalConsistency::default();
        self.one_sender_a_slot.new_generation();
        self.inputs_in_order.new_generation();
        self.streams_go_on = streams_go_on::StreamsGoOn::default();
        self.pause_lasts.ends();
        self.operators.new_generation();
    }
}
