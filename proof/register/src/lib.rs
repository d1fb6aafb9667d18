//! A replicated register over real processes, checked for linearizability.
