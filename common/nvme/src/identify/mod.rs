//! Structures that Identify returns, 4096 bytes each.

mod controller;
mod descriptors;
mod flags;
mod list;
mod namespace;

pub use self::controller::{ControllerError, ControllerType, IdentifyController, IoIdentifyController, PowerState};
pub use self::descriptors::{DescriptorError, Eui64, NamespaceIdentifiers, Nguid};
pub use self::flags::{
    CommandFusing, ControllerAttributes, LogPageAttributes, MultiPath, NamespaceFeatures, NamespaceSharing, OptionalAdminCommands,
    OptionalNvmCommands, SglSupport, WriteCache,
};
pub use self::list::NamespaceList;
pub use self::namespace::{IdentifyNamespace, IndependentNamespace, LbaFormat, NamespaceError};

/// Length of every structure that Identify returns.
pub const LEN_BYTES: usize = 4096;
