//! The brain of a replica: roles, in-sync set, failover; one apply(event) -> actions.
