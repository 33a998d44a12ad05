//! Flag sets of the Identify structures.

use zerocopy::little_endian::{U16, U32};

use crate::bits::U8;
use crate::macros::flags;

flags! {
    /// Controller Multi-Path I/O and Namespace Sharing Capabilities (CMIC).
    MultiPath(u8 as U8) {
        /// The subsystem may have more than one port.
        MULTIPLE_PORTS = 0,
        /// The subsystem may have more than one controller: hosts need this for a second path.
        MULTIPLE_CONTROLLERS = 1,
        /// Asymmetric namespace access is reported.
        ANA_REPORTING = 3,
    }
}

flags! {
    /// Controller Attributes (CTRATT).
    ControllerAttributes(u32 as U32) {
        /// Host identifiers have 128 bits.
        HOST_ID_128_BIT = 0,
        /// Traffic Based Keep Alive Support (TBKAS): any command counts as a sign of life.
        TRAFFIC_BASED_KEEP_ALIVE = 6,
        /// Extended LBA Formats Supported (ELBAS).
        EXTENDED_LBA_FORMATS = 15,
    }
}

flags! {
    /// Optional Admin Command Support (OACS).
    OptionalAdminCommands(u16 as U16) {
        /// Security Send and Receive.
        SECURITY = 0,
        /// Format NVM.
        FORMAT = 1,
        /// Firmware commands.
        FIRMWARE = 2,
        /// Namespace Management.
        NAMESPACE_MANAGEMENT = 3,
        /// Directives.
        DIRECTIVES = 5,
        /// Doorbell Buffer Config.
        DOORBELL_BUFFER = 8,
    }
}

flags! {
    /// Log Page Attributes (LPA).
    LogPageAttributes(u8 as U8) {
        /// SMART log per namespace.
        SMART_PER_NAMESPACE = 0,
        /// Commands Supported and Effects log: hosts read it when they see this.
        COMMAND_EFFECTS = 1,
        /// Get Log Page with offset and 32-bit length.
        EXTENDED_DATA = 2,
        /// Telemetry logs.
        TELEMETRY = 3,
    }
}

flags! {
    /// Optional NVM Command Support (ONCS).
    OptionalNvmCommands(u16 as U16) {
        /// Compare.
        COMPARE = 0,
        /// Write Uncorrectable.
        WRITE_UNCORRECTABLE = 1,
        /// Dataset Management.
        DATASET_MANAGEMENT = 2,
        /// Write Zeroes.
        WRITE_ZEROES = 3,
        /// Save and Select fields of features.
        FEATURE_SAVE = 4,
        /// Reservations.
        RESERVATIONS = 5,
        /// Timestamp feature.
        TIMESTAMP = 6,
        /// Verify.
        VERIFY = 7,
        /// Copy.
        COPY = 8,
    }
}

flags! {
    /// Fused Operation Support (FUSES).
    CommandFusing(u16 as U16) {
        /// Compare and Write.
        COMPARE_AND_WRITE = 0,
    }
}

flags! {
    /// Volatile Write Cache (VWC). Bits 2:1 say whether Flush takes the broadcast namespace.
    WriteCache(u8 as U8) {
        /// There is one: hosts send Flush and FUA.
        PRESENT = 0,
        /// Bits 2:1 say something; with bit 1 clear, that Flush of all namespaces is not supported.
        FLUSH_ALL_DEFINED = 2,
        /// With [`Self::FLUSH_ALL_DEFINED`]: Flush of all namespaces is supported.
        FLUSH_ALL_SUPPORTED = 1,
    }
}

flags! {
    /// SGL Support (SGLS). Bits 1:0 are a number: 01b, SGLs without alignment rules, is the bit here.
    SglSupport(u32 as U32) {
        /// SGLs are supported, without alignment rules (01b in bits 1:0).
        SUPPORTED = 0,
        /// Keyed data block descriptors: without it hosts refuse the controller.
        KEYED = 2,
        /// Bit bucket descriptors.
        BIT_BUCKET = 16,
        /// Metadata pointer as a contiguous buffer.
        METADATA_POINTER = 17,
        /// SGLs longer than the data.
        OVERSIZE = 18,
        /// Metadata pointer as an SGL.
        METADATA_SGL = 19,
        /// Address as offset: in-capsule data.
        OFFSET = 20,
        /// Transport data block descriptors.
        TRANSPORT = 21,
    }
}

flags! {
    /// Namespace Features (NSFEAT).
    NamespaceFeatures(u8 as U8) {
        /// Thin provisioning.
        THIN_PROVISIONING = 0,
        /// NAWUN, NAWUPF and NACWU are valid.
        ATOMICS_VALID = 1,
        /// Reads of deallocated blocks may fail.
        DEALLOCATED_ERROR = 2,
        /// NGUID and EUI64 are never used again.
        IDS_NOT_REUSED = 3,
        /// NPWG, NPWA, NPDG, NPDA and NOWS are valid.
        OPTIMAL_IO_VALID = 4,
    }
}

flags! {
    /// Namespace Multi-path I/O and Namespace Sharing Capabilities (NMIC).
    NamespaceSharing(u8 as U8) {
        /// May be attached to more than one controller at once.
        SHARED = 0,
    }
}
