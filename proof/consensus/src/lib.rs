//! The consensus core, simulated and model-checked.
