//! What takes too long for every run of the lab: `make lab-long` runs these alone.

mod memory;
mod power;
