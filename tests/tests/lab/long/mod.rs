//! What takes too long for every run of the lab: `make lab-long` runs these alone.

mod away;
mod memory;
mod power;
