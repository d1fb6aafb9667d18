//! The policy axes and the slot and idle rules.
