//! Outputs and how they are told apart, in one program: each file of its own would be linked on its own.

mod frames;

mod matching;
mod places;
mod translation;
mod twin;
