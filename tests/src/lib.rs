//! What the integration tests and the bench share: the built daemons as processes, the tools that drive them, a network and storage that can be made to
//! fail, and both daemons' engines under a simulator.
//!
//! Tests run the release binaries, found beside the test binary itself: `make test` builds them first.

pub mod bench;
pub mod daemon;
pub mod hostile;
pub mod lab;
pub mod load;
pub mod nbd;
pub mod proxy;
pub mod record_log;
pub mod simulation;
pub mod storage;
pub mod tools;
pub mod trace;
