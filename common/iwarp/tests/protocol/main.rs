//! The protocol core from outside: transcripts, captures, two cores talking, and arbitrary bytes.

mod checks;
mod golden;
mod properties;
mod startup;
mod support;
mod transmit;
mod world;
