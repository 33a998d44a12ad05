//! Wire types of NVMe, NVMe over Fabrics and NVMe/RDMA: bytes to types and back, without I/O.
//!
//! - Fixed structures are `repr(C)` zerocopy structs whose layout is checked at compile time. Each has `read_from` and `ref_from`,
//!   which take at least as many bytes as it needs and ignore the rest, and `as_bytes`.
//! - Numbers, bit fields and 0's-based counts are converted by accessors; callers never shift.
//! - Open sets (opcodes, statuses, features, log pages) keep values that are not known, and print the names of those that are.
//! - No bytes of a peer make anything here panic. Values of our own that cannot be on the wire do: they are our mistake.
//!
//! A host makes a command, and a controller reads and answers it:
//!
//! ```
//! use godwit_nvme::sqe::IoControl;
//! use godwit_nvme::{
//!     BlockCount, BlockRange, Cid, Cqe, IoCommand, Lba, Nsid, Qid, Rkey, SglDescriptor, Sqe, Sqhd, Status,
//! };
//!
//! let eight = BlockCount::new(8).ok_or("1 to 65536 blocks")?;
//! let command = Sqe::write(Cid::new(5), Nsid::new(1), BlockRange::new(Lba::new(64), eight))
//!     .with_control(IoControl::FORCE_UNIT_ACCESS)
//!     .with_sgl(SglDescriptor::keyed(0x1000, 4096, Rkey::new(7), true)?);
//!
//! let (sqe, data) = Sqe::split_capsule(command.as_bytes())?;
//! assert!(data.is_empty());
//! sqe.check_flags()?;
//! let IoCommand::Write(write) = IoCommand::parse(sqe) else { panic!("{sqe:?}") };
//! assert!(write.blocks.is_within(72) && write.is_forced_unit_access());
//! assert_eq!(sqe.sgl()?.key_to_invalidate(), Some(Rkey::new(7)));
//! let answer = Cqe::new(sqe.cid(), Qid::new(1), Sqhd::new(1), Status::SUCCESS);
//!
//! let cqe = Cqe::read_from(answer.as_bytes())?;
//! assert_eq!(cqe.cid(), Cid::new(5));
//! cqe.status().into_result()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod aen;
mod bits;
pub mod cm;
pub mod connect;
pub mod cqe;
pub mod dsm;
mod error;
pub mod feature;
pub mod identify;
pub mod log;
mod macros;
pub mod nqn;
pub mod numbers;
pub mod property;
pub mod sgl;
pub mod sqe;
pub mod status;
mod text;

pub use self::aen::{AsyncEvent, AsyncEventType};
pub use self::connect::{ConnectData, ConnectRefusal, ConnectResult, InvalidParameter};
pub use self::cqe::Cqe;
pub use self::dsm::DsmRange;
pub use self::error::Truncated;
pub use self::identify::{Eui64, IdentifyController, IdentifyNamespace, NamespaceIdentifiers, NamespaceList, Nguid};
pub use self::log::LogId;
pub use self::nqn::{Nqn, NqnError};
pub use self::numbers::{BlockCount, BlockRange, BlockSize, Cid, Cntlid, DwordCount, HostId, Lba, Nsid, Qid, QueueSize, Rkey, Sqhd};
pub use self::property::{Cap, ControllerConfiguration, ControllerStatus, PropertyOffset, PropertySize, Version};
pub use self::sgl::{Sgl, SglDescriptor, SglError};
pub use self::sqe::{AdminCommand, AdminOpcode, FabricsCommand, FabricsType, IoCommand, IoOpcode, Sqe};
pub use self::status::{RetryDelay, Status, StatusCode};
pub use self::text::{Text, TextError};
