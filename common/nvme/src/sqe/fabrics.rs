//! Fabrics commands.

use std::time::Duration;

use super::{DataDirection, FabricsType, Sqe};
use crate::bits::{u8_field, u16_field, with_field_u32};
use crate::macros::flags;
use crate::property::{PropertyOffset, PropertySize};
use crate::{Cid, Qid, QueueSize};

flags! {
    /// Connect attributes (CATTR): bits 23:16 of CDW11. Bits 1:0 are a priority class, which means nothing to this project.
    ConnectAttributes(u8 as crate::bits::U8) {
        /// Disable submission queue flow control.
        DISABLE_SQ_FLOW_CONTROL = 2,
        /// Individual deletion of I/O queues.
        INDIVIDUAL_QUEUE_DELETION = 3,
    }
}

/// Connect. Its data is [`ConnectData`](crate::ConnectData), its result [`ConnectResult`](crate::ConnectResult).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Record format (RECFMT): bits 15:0 of CDW10; 0 is the only one.
    pub record_format: u16,
    /// Queue: bits 31:16 of CDW10.
    pub qid: Qid,
    /// Submission queue size (SQSIZE): bits 15:0 of CDW11. On the wire 0's-based; there 0, one entry, is not allowed.
    pub sq_size: QueueSize,
    /// Attributes (CATTR): bits 23:16 of CDW11.
    pub attributes: ConnectAttributes,
    /// Keep alive timeout (KATO): CDW12, in milliseconds; zero is none.
    pub keep_alive: Duration,
}

impl Connect {
    /// Connect of the admin queue.
    #[must_use]
    pub const fn admin(sq_size: QueueSize, keep_alive: Duration) -> Self {
        Self { record_format: 0, qid: Qid::ADMIN, sq_size, attributes: ConnectAttributes::NONE, keep_alive }
    }

    /// Connect of an I/O queue.
    #[must_use]
    pub const fn io(qid: Qid, sq_size: QueueSize) -> Self {
        Self { record_format: 0, qid, sq_size, attributes: ConnectAttributes::NONE, keep_alive: Duration::ZERO }
    }

    /// Whether completions carry FFFFh instead of the submission queue head.
    #[must_use]
    pub const fn disables_sq_flow_control(&self) -> bool {
        self.attributes.contains(ConnectAttributes::DISABLE_SQ_FLOW_CONTROL)
    }
}

/// What Property Get and Property Set name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PropertyAccess {
    /// Its offset (OFST): CDW11.
    pub offset: PropertyOffset,
    /// Its size (ATTRIB): bits 2:0 of CDW10.
    pub size: PropertySize,
}

/// A fabrics command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FabricsCommand {
    /// Connect.
    Connect(Connect),
    /// Property Get.
    PropertyGet(PropertyAccess),
    /// Property Set of a value: CDW12 and CDW13.
    PropertySet(PropertyAccess, u64),
    /// Disconnect.
    Disconnect,
    /// Any other command.
    Other(FabricsType),
}

impl FabricsCommand {
    /// Reads the command of an entry whose opcode is 7Fh.
    #[must_use]
    pub const fn parse(sqe: &Sqe) -> Self {
        match sqe.fabrics_type() {
            FabricsType::CONNECT => Self::Connect(sqe.connect_parameters()),
            FabricsType::PROPERTY_GET => Self::PropertyGet(sqe.property_access()),
            FabricsType::PROPERTY_SET => Self::PropertySet(sqe.property_access(), sqe.cdw12_13()),
            FabricsType::DISCONNECT => Self::Disconnect,
            other => Self::Other(other),
        }
    }

    /// Where its data goes.
    #[must_use]
    pub const fn data_direction(&self) -> DataDirection {
        match self {
            Self::Connect(_) => DataDirection::HostToController,
            Self::PropertyGet(_) | Self::PropertySet(..) | Self::Disconnect => DataDirection::None,
            Self::Other(fctype) => DataDirection::of(fctype.0),
        }
    }
}

impl Sqe {
    /// Connect; its data comes from the SGL.
    #[must_use]
    pub fn connect(cid: Cid, connect: &Connect) -> Self {
        let cdw10 = with_field_u32(u32::from(connect.record_format), 31, 16, u32::from(connect.qid.get()));
        let cdw11 = u32::from(connect.sq_size.zeroes_based());
        let cdw11 = with_field_u32(cdw11, 23, 16, u32::from(connect.attributes.bits()));
        let kato = u32::try_from(connect.keep_alive.as_millis()).unwrap_or(u32::MAX);
        Self::fabrics(cid, FabricsType::CONNECT).with_cdw10(cdw10).with_cdw11(cdw11).with_cdw12(kato)
    }

    /// The parameters of a Connect command.
    #[must_use]
    pub const fn connect_parameters(&self) -> Connect {
        let (cdw10, cdw11) = (self.cdw10.get() as u64, self.cdw11.get() as u64);
        Connect {
            record_format: u16_field(cdw10, 15, 0),
            qid: Qid::new(u16_field(cdw10, 31, 16)),
            sq_size: QueueSize::from_zeroes_based(u16_field(cdw11, 15, 0)),
            attributes: ConnectAttributes::from_bits(u8_field(cdw11, 23, 16)),
            keep_alive: Duration::from_millis(self.cdw12.get() as u64),
        }
    }

    /// Property Get; the value comes as the result of the completion.
    ///
    /// # Panics
    /// A reserved size has more than three bits.
    #[must_use]
    pub const fn property_get(cid: Cid, property: PropertyAccess) -> Self {
        Self::fabrics(cid, FabricsType::PROPERTY_GET).with_property(property)
    }

    /// Property Set.
    ///
    /// # Panics
    /// A reserved size has more than three bits.
    #[must_use]
    pub const fn property_set(cid: Cid, property: PropertyAccess, value: u64) -> Self {
        Self::fabrics(cid, FabricsType::PROPERTY_SET).with_property(property).with_cdw12_13(value)
    }

    /// Disconnect.
    #[must_use]
    pub const fn disconnect(cid: Cid) -> Self {
        Self::fabrics(cid, FabricsType::DISCONNECT)
    }

    const fn with_property(self, property: PropertyAccess) -> Self {
        self.with_cdw10(with_field_u32(0, 2, 0, property.size.to_wire() as u32)).with_cdw11(property.offset.0)
    }

    /// The property that a Property Get or Property Set command names.
    #[must_use]
    pub const fn property_access(&self) -> PropertyAccess {
        PropertyAccess { offset: PropertyOffset(self.cdw11.get()), size: PropertySize::from_wire(u8_field(self.cdw10.get() as u64, 2, 0)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connect_lies_on_the_wire_as_specified() {
        let connect = Connect {
            record_format: 0x0102,
            qid: Qid::new(0x0304),
            sq_size: QueueSize::from_zeroes_based(0x0506),
            attributes: ConnectAttributes::DISABLE_SQ_FLOW_CONTROL,
            keep_alive: Duration::from_millis(0x1122_3344),
        };
        let sqe = Sqe::connect(Cid::new(1), &connect);
        assert_eq!(sqe.as_bytes()[4], 0x01);
        assert_eq!(sqe.as_bytes()[40..52], [2, 1, 4, 3, 6, 5, 4, 0, 0x44, 0x33, 0x22, 0x11]);
        assert_eq!(FabricsCommand::parse(&sqe), FabricsCommand::Connect(connect));
        assert!(connect.disables_sq_flow_control());
        assert_eq!(sqe.data_direction(), DataDirection::HostToController);
    }

    #[test]
    fn a_keep_alive_beyond_the_field_is_the_longest_one() {
        let connect = Connect::admin(QueueSize::new(32).unwrap(), Duration::MAX);
        assert_eq!(Sqe::connect(Cid::new(1), &connect).command_dwords()[2], u32::MAX);
    }

    #[test]
    fn properties_lie_on_the_wire_as_specified() {
        let cc = PropertyAccess { offset: PropertyOffset::CC, size: PropertySize::Four };
        let sqe = Sqe::property_set(Cid::new(1), cc, 0x1122_3344_5566_7788);
        assert_eq!(sqe.command_dwords(), [0, 0x14, 0x5566_7788, 0x1122_3344, 0, 0]);
        assert_eq!(FabricsCommand::parse(&sqe), FabricsCommand::PropertySet(cc, 0x1122_3344_5566_7788));
        let odd = PropertyAccess { offset: PropertyOffset(0x77), size: PropertySize::Reserved(5) };
        let sqe = Sqe::property_get(Cid::new(1), odd);
        assert_eq!(sqe.command_dwords()[..2], [5, 0x77]);
        assert_eq!(FabricsCommand::parse(&sqe), FabricsCommand::PropertyGet(odd));
    }

    #[test]
    fn disconnect_and_unknown_types_are_told_apart() {
        assert_eq!(FabricsCommand::parse(&Sqe::disconnect(Cid::new(1))), FabricsCommand::Disconnect);
        let unknown = FabricsCommand::parse(&Sqe::fabrics(Cid::new(1), FabricsType(0xC1)));
        assert_eq!(unknown, FabricsCommand::Other(FabricsType(0xC1)));
        assert_eq!(unknown.data_direction(), DataDirection::HostToController);
    }
}
