//! YAML as a tree whose every node knows its line and column, and the reading of typed values from it.
//!
//! Configuration is not derived straight from serde, because its errors would say `invalid u16` at the first fault only.
//! From a tree we say for every fault where it is and what would be right, and for a key that is unknown which ones are not.

mod decoder;
mod node;
mod scalar;

pub(crate) use decoder::{Decoder, List, Table, decode, value_or_default};
pub(crate) use node::Node;
pub(crate) use scalar::{AddressWithPort, ExportName, SocketPath};
