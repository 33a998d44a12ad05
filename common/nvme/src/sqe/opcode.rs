//! Opcodes of admin, I/O and fabrics commands.

use crate::bits::field;
use crate::macros::open_set;

open_set! {
    /// Opcode of an admin command.
    AdminOpcode(u8), "admin opcode" {
        /// Delete I/O Submission Queue; not used on fabrics.
        DELETE_IO_SUBMISSION_QUEUE = 0x00 => "Delete I/O Submission Queue",
        /// Get Log Page.
        GET_LOG_PAGE = 0x02 => "Get Log Page",
        /// Identify.
        IDENTIFY = 0x06 => "Identify",
        /// Abort.
        ABORT = 0x08 => "Abort",
        /// Set Features.
        SET_FEATURES = 0x09 => "Set Features",
        /// Get Features.
        GET_FEATURES = 0x0A => "Get Features",
        /// Asynchronous Event Request.
        ASYNC_EVENT_REQUEST = 0x0C => "Asynchronous Event Request",
        /// Namespace Attachment.
        NAMESPACE_ATTACHMENT = 0x15 => "Namespace Attachment",
        /// Keep Alive.
        KEEP_ALIVE = 0x18 => "Keep Alive",
        /// Any fabrics command; its type is in [`FabricsType`].
        FABRICS = 0x7F => "Fabrics",
    }
}

open_set! {
    /// Opcode of an I/O command of the NVM command set.
    IoOpcode(u8), "I/O opcode" {
        /// Flush.
        FLUSH = 0x00 => "Flush",
        /// Write.
        WRITE = 0x01 => "Write",
        /// Read.
        READ = 0x02 => "Read",
        /// Write Uncorrectable.
        WRITE_UNCORRECTABLE = 0x04 => "Write Uncorrectable",
        /// Compare.
        COMPARE = 0x05 => "Compare",
        /// Write Zeroes.
        WRITE_ZEROES = 0x08 => "Write Zeroes",
        /// Dataset Management.
        DATASET_MANAGEMENT = 0x09 => "Dataset Management",
        /// Verify.
        VERIFY = 0x0C => "Verify",
        /// Reservation Register.
        RESERVATION_REGISTER = 0x0D => "Reservation Register",
        /// Reservation Report.
        RESERVATION_REPORT = 0x0E => "Reservation Report",
        /// Reservation Acquire.
        RESERVATION_ACQUIRE = 0x11 => "Reservation Acquire",
        /// Reservation Release.
        RESERVATION_RELEASE = 0x15 => "Reservation Release",
        /// Copy.
        COPY = 0x19 => "Copy",
        /// Any fabrics command, on an I/O queue: Connect and authentication.
        FABRICS = 0x7F => "Fabrics",
    }
}

open_set! {
    /// Fabrics command type (FCTYPE).
    FabricsType(u8), "fabrics command type" {
        /// Property Set.
        PROPERTY_SET = 0x00 => "Property Set",
        /// Connect.
        CONNECT = 0x01 => "Connect",
        /// Property Get.
        PROPERTY_GET = 0x04 => "Property Get",
        /// Authentication Send.
        AUTHENTICATION_SEND = 0x05 => "Authentication Send",
        /// Authentication Receive.
        AUTHENTICATION_RECEIVE = 0x06 => "Authentication Receive",
        /// Disconnect.
        DISCONNECT = 0x08 => "Disconnect",
    }
}

/// Where a command's data goes, by bits 1:0 of its opcode or fabrics command type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataDirection {
    /// 00b: no data.
    None,
    /// 01b: from host to controller.
    HostToController,
    /// 10b: from controller to host.
    ControllerToHost,
    /// 11b: both ways.
    Bidirectional,
}

impl DataDirection {
    pub(crate) const fn of(code: u8) -> Self {
        match field(code as u64, 1, 0) {
            0 => Self::None,
            1 => Self::HostToController,
            2 => Self::ControllerToHost,
            _ => Self::Bidirectional,
        }
    }
}
