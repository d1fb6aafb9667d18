//! The consensus log on stable storage.
