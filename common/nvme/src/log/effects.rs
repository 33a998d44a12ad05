//! Commands Supported and Effects log.

use std::fmt;

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::macros::{flags, wire};
use crate::sqe::{AdminOpcode, IoOpcode};

flags! {
    /// What a command does. Bits 18:16, command submission and execution (CSE), make hosts stop their queues, so none is named.
    CommandEffects(u32 as U32) {
        /// Command Supported (CSUPP).
        SUPPORTED = 0,
        /// Logical Block Content Change (LBCC).
        CONTENT_CHANGE = 1,
        /// Namespace Capability Change (NCC).
        NAMESPACE_CAPABILITY_CHANGE = 2,
        /// Namespace Inventory Change (NIC).
        NAMESPACE_INVENTORY_CHANGE = 3,
        /// Controller Capability Change (CCC).
        CONTROLLER_CAPABILITY_CHANGE = 4,
    }
}

/// Commands Supported and Effects log, 4096 bytes.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CommandEffectsLog {
    admin: [CommandEffects; 256],
    io: [CommandEffects; 256],
    reserved2048: [u8; 2048],
}

wire!(CommandEffectsLog, 4096, { admin: 0, io: 1024, reserved2048: 2048 });

impl CommandEffectsLog {
    /// What an admin command does.
    #[must_use]
    pub fn admin(&self, opcode: AdminOpcode) -> CommandEffects {
        self.admin[usize::from(opcode.0)]
    }

    /// What an I/O command does.
    #[must_use]
    pub fn io(&self, opcode: IoOpcode) -> CommandEffects {
        self.io[usize::from(opcode.0)]
    }

    /// Sets what an admin command does.
    pub fn set_admin(&mut self, opcode: AdminOpcode, effects: CommandEffects) {
        self.admin[usize::from(opcode.0)] = effects;
    }

    /// Sets what an I/O command does.
    pub fn set_io(&mut self, opcode: IoOpcode, effects: CommandEffects) {
        self.io[usize::from(opcode.0)] = effects;
    }
}

impl fmt::Debug for CommandEffectsLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let codes = || 0..=u8::MAX;
        let admin = codes().map(AdminOpcode).map(|opcode| (opcode, self.admin(opcode)));
        let io = codes().map(IoOpcode).map(|opcode| (opcode, self.io(opcode)));
        f.write_str("admin ")?;
        f.debug_map().entries(admin.filter(|(_, effects)| !effects.is_empty())).finish()?;
        f.write_str(", I/O ")?;
        f.debug_map().entries(io.filter(|(_, effects)| !effects.is_empty())).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admin_and_io_commands_have_a_dword_each() {
        let mut log = CommandEffectsLog::zeroed();
        log.set_admin(AdminOpcode::IDENTIFY, CommandEffects::SUPPORTED);
        log.set_io(IoOpcode(0xFF), CommandEffects::SUPPORTED | CommandEffects::CONTENT_CHANGE);
        let bytes = log.as_bytes();
        assert_eq!((bytes[24], bytes[1024 + 1020]), (1, 3));
        assert_eq!(bytes.iter().filter(|&&byte| byte != 0).count(), 2);
        assert_eq!(log.io(IoOpcode(0xFF)).bits(), 3);
        assert!(format!("{log:?}").contains("Identify (06h)"));
    }
}
