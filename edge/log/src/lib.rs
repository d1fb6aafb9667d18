//! A replicated log: apus over a fabric, with clients.
