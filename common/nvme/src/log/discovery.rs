//! Discovery log.

use std::fmt;

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bits::U8;
use crate::macros::{debug_by, flags, open_set, wire};
use crate::nqn::FIELD_LEN_BYTES;
use crate::{Cntlid, Nqn, NqnError, Text, TextError, Truncated};

open_set! {
    /// Transport Type (TRTYPE).
    TransportType(u8), "transport" {
        /// RDMA.
        RDMA = 1 => "rdma",
        /// Fibre Channel.
        FC = 2 => "fc",
        /// TCP.
        TCP = 3 => "tcp",
        /// Within one host.
        LOOP = 254 => "loop",
    }
}

open_set! {
    /// Address Family (ADRFAM).
    AddressFamily(u8), "address family" {
        /// PCI.
        PCI = 0 => "pci",
        /// IPv4.
        IPV4 = 1 => "ipv4",
        /// IPv6.
        IPV6 = 2 => "ipv6",
        /// InfiniBand.
        IB = 3 => "ib",
        /// Fibre Channel.
        FC = 4 => "fc",
        /// Within one host.
        LOOP = 254 => "loop",
    }
}

open_set! {
    /// Subsystem Type (SUBTYPE).
    SubsystemType(u8), "subsystem type" {
        /// Another discovery subsystem.
        REFERRAL = 1 => "discovery subsystem",
        /// A subsystem with namespaces.
        NVM = 2 => "nvme subsystem",
        /// The discovery subsystem that was asked.
        CURRENT_DISCOVERY = 3 => "current discovery subsystem",
    }
}

flags! {
    /// Transport Requirements (TREQ).
    TransportRequirements(u8 as U8) {
        /// A secure channel is required.
        SECURE_CHANNEL_REQUIRED = 0,
        /// A secure channel is not required.
        SECURE_CHANNEL_NOT_REQUIRED = 1,
        /// Submission queue flow control can be disabled.
        SQ_FLOW_CONTROL_DISABLE = 2,
    }
}

flags! {
    /// Entry Flags (EFLAGS).
    DiscoveryEntryFlags(u16 as U16) {
        /// Duplicate Returned Information.
        DUPLICATE_INFORMATION = 0,
        /// Explicit Persistent Connection Support for Discovery.
        PERSISTENT_CONNECTIONS = 1,
        /// No CDC Connectivity.
        NO_CDC_CONNECTIVITY = 2,
    }
}

open_set! {
    /// RDMA Provider Type (RDMA_PRTYPE).
    RdmaProvider(u8), "RDMA provider" {
        /// Not specified.
        NOT_SPECIFIED = 1 => "not specified",
        /// InfiniBand.
        INFINIBAND = 2 => "infiniband",
        /// RoCE.
        ROCE = 3 => "roce",
        /// RoCE version 2.
        ROCE_V2 = 4 => "roce-v2",
        /// iWARP.
        IWARP = 5 => "iwarp",
    }
}

/// RDMA_QPTYPE: reliable connected, the only one in use.
const QPTYPE_CONNECTED: u8 = 1;
/// RDMA_CMS: the RDMA IP connection manager, the only one.
const CMS_RDMA_CM: u8 = 1;

/// Header of the discovery log, 1024 bytes.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiscoveryHeader {
    genctr: U64,
    numrec: U64,
    recfmt: U16,
    reserved18: [u8; 1006],
}

wire!(DiscoveryHeader, 1024, { genctr: 0, numrec: 8, recfmt: 16, reserved18: 18 });

impl DiscoveryHeader {
    /// How many bytes tools read to learn the number of entries.
    pub const PREFIX_LEN_BYTES: usize = 20;

    /// The header before `entry_count` entries.
    #[must_use]
    pub const fn new(generation: u64, entry_count: u64) -> Self {
        Self { genctr: U64::new(generation), numrec: U64::new(entry_count), recfmt: U16::ZERO, reserved18: [0; 1006] }
    }

    /// Reads the header when only its first 20 bytes were fetched.
    ///
    /// # Errors
    /// There are fewer than 20 bytes.
    pub fn from_prefix(bytes: &[u8]) -> Result<Self, Truncated> {
        let prefix = bytes.get(..Self::PREFIX_LEN_BYTES).ok_or(Truncated::new("DiscoveryHeader", Self::PREFIX_LEN_BYTES, bytes.len()))?;
        let mut this = Self::zeroed();
        this.as_mut_bytes()[..Self::PREFIX_LEN_BYTES].copy_from_slice(prefix);
        Ok(this)
    }

    /// Generation Counter (GENCTR), which moves with every change of the log.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.genctr.get()
    }

    /// Number of Records (NUMREC).
    #[must_use]
    pub const fn entry_count(&self) -> u64 {
        self.numrec.get()
    }

    /// Record Format (RECFMT); 0 is the only one.
    #[must_use]
    pub const fn record_format(&self) -> u16 {
        self.recfmt.get()
    }

    /// Length of the whole log in bytes; `None` if it is beyond 2^64.
    #[must_use]
    pub const fn log_bytes(&self) -> Option<u64> {
        match self.numrec.get().checked_add(1) {
            Some(records) => records.checked_mul(1024),
            None => None,
        }
    }
}

debug_by!(DiscoveryHeader { generation, entry_count, record_format });

/// Where a subsystem can be reached over RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaAddress<'a> {
    /// IPv4 or IPv6.
    pub family: AddressFamily,
    /// Address (TRADDR), as people write it.
    pub address: &'a str,
    /// Port (TRSVCID).
    pub port: u16,
    /// Kind of RDMA.
    pub provider: RdmaProvider,
}

/// Entry of the discovery log, 1024 bytes.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiscoveryEntry {
    trtype: TransportType,
    adrfam: AddressFamily,
    subtype: SubsystemType,
    /// Transport Requirements (TREQ).
    pub treq: TransportRequirements,
    portid: U16,
    cntlid: U16,
    asqsz: U16,
    /// Entry Flags (EFLAGS).
    pub eflags: DiscoveryEntryFlags,
    reserved12: [u8; 20],
    trsvcid: Text<32>,
    reserved64: [u8; 192],
    subnqn: [u8; FIELD_LEN_BYTES],
    traddr: Text<256>,
    rdma_qptype: u8,
    rdma_prtype: RdmaProvider,
    rdma_cms: u8,
    reserved771: [u8; 5],
    rdma_pkey: U16,
    reserved778: [u8; 246],
}

wire!(DiscoveryEntry, 1024, {
    trtype: 0, adrfam: 1, subtype: 2, treq: 3, portid: 4, cntlid: 6, asqsz: 8, eflags: 10, reserved12: 12, trsvcid: 32,
    subnqn: 256, traddr: 512, rdma_qptype: 768, rdma_prtype: 769, rdma_cms: 770, rdma_pkey: 776,
});

impl DiscoveryEntry {
    /// A subsystem behind `address`, with an admin queue of 32 entries and the dynamic controller model.
    ///
    /// # Errors
    /// The address has too many characters, or other than printable ASCII.
    pub fn new(subtype: SubsystemType, nqn: &Nqn, port_id: u16, address: RdmaAddress<'_>) -> Result<Self, TextError> {
        let mut this = Self::zeroed();
        this.trtype = TransportType::RDMA;
        this.adrfam = address.family;
        this.subtype = subtype;
        this.treq = TransportRequirements::SECURE_CHANNEL_NOT_REQUIRED;
        this.portid = U16::new(port_id);
        this.cntlid = U16::new(Cntlid::DYNAMIC.get());
        this.asqsz = U16::new(32);
        this.trsvcid = Text::new(&address.port.to_string())?;
        this.subnqn = nqn.to_wire();
        this.traddr = Text::new(address.address)?;
        this.rdma_qptype = QPTYPE_CONNECTED;
        this.rdma_prtype = address.provider;
        this.rdma_cms = CMS_RDMA_CM;
        Ok(this)
    }

    /// Transport Type (TRTYPE).
    #[must_use]
    pub const fn transport(&self) -> TransportType {
        self.trtype
    }

    /// Address Family (ADRFAM).
    #[must_use]
    pub const fn family(&self) -> AddressFamily {
        self.adrfam
    }

    /// Subsystem Type (SUBTYPE).
    #[must_use]
    pub const fn subtype(&self) -> SubsystemType {
        self.subtype
    }

    /// Port ID (PORTID).
    #[must_use]
    pub const fn port_id(&self) -> u16 {
        self.portid.get()
    }

    /// Controller ID (CNTLID).
    #[must_use]
    pub const fn cntlid(&self) -> Cntlid {
        Cntlid::new(self.cntlid.get())
    }

    /// Admin Max SQ Size (ASQSZ), in entries.
    #[must_use]
    pub const fn max_admin_queue_entries(&self) -> u16 {
        self.asqsz.get()
    }

    /// Transport Service Identifier (TRSVCID): the port as text.
    #[must_use]
    pub const fn service(&self) -> &Text<32> {
        &self.trsvcid
    }

    /// Transport Service Identifier (TRSVCID) as a port number, if it is one.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        self.trsvcid.as_str()?.parse().ok()
    }

    /// NVM Subsystem NVMe Qualified Name (SUBNQN).
    ///
    /// # Errors
    /// What is wrong with the name.
    pub fn subsystem_nqn(&self) -> Result<Nqn, NqnError> {
        Nqn::from_wire(&self.subnqn)
    }

    /// Transport Address (TRADDR).
    #[must_use]
    pub const fn address(&self) -> &Text<256> {
        &self.traddr
    }

    /// RDMA Provider Type (RDMA_PRTYPE), if the transport is RDMA.
    #[must_use]
    pub fn provider(&self) -> Option<RdmaProvider> {
        (self.trtype == TransportType::RDMA).then_some(self.rdma_prtype)
    }
}

debug_by!(DiscoveryEntry { transport, family, subtype, port_id, cntlid, service, address, subsystem_nqn, provider });

/// One line: what it is and where.
impl fmt::Display for DiscoveryEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.subsystem_nqn() {
            Ok(nqn) => write!(f, "{nqn}")?,
            Err(error) => write!(f, "({error})")?,
        }
        write!(f, " at {} port {}", self.address(), self.service())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> DiscoveryEntry {
        let nqn = Nqn::new("nqn.2026-11.org.example:vol0").unwrap();
        let address = RdmaAddress { family: AddressFamily::IPV6, address: "::1", port: 4420, provider: RdmaProvider::IWARP };
        DiscoveryEntry::new(SubsystemType::NVM, &nqn, 7, address).unwrap()
    }

    #[test]
    fn entry_lies_on_the_wire_as_specified() {
        let entry = entry();
        let bytes = entry.as_bytes();
        assert_eq!(bytes[..12], [1, 2, 2, 2, 7, 0, 0xFF, 0xFF, 32, 0, 0, 0]);
        assert_eq!(&bytes[32..37], b"4420 ");
        assert_eq!(&bytes[256..285], b"nqn.2026-11.org.example:vol0\0");
        assert_eq!(&bytes[512..516], b"::1 ");
        assert_eq!(bytes[768..778], [1, 5, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(entry.port(), Some(4420));
        assert_eq!(entry.to_string(), "nqn.2026-11.org.example:vol0 at ::1 port 4420");
    }

    #[test]
    fn a_port_that_is_no_number_is_none() {
        let mut entry = entry();
        entry.trsvcid = Text::new("65536").unwrap();
        assert_eq!(entry.port(), None);
        entry.trsvcid = Text::BLANK;
        assert_eq!(entry.port(), None);
        entry.trtype = TransportType::TCP;
        assert_eq!(entry.provider(), None);
    }

    #[test]
    fn header_is_read_from_twenty_bytes() {
        let header = DiscoveryHeader::new(3, 2);
        assert_eq!(DiscoveryHeader::from_prefix(&header.as_bytes()[..20]), Ok(header));
        assert!(DiscoveryHeader::from_prefix(&header.as_bytes()[..19]).is_err());
        assert_eq!(header.log_bytes(), Some(3072));
        assert_eq!(DiscoveryHeader::new(0, u64::MAX).log_bytes(), None);
        assert_eq!(DiscoveryHeader::new(0, 1 << 60).log_bytes(), None);
    }
}
