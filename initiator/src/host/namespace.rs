//! What Identify says of a namespace, as the geometry of a block device.

use godwit_memory::MAX_BUFFER_BYTES;
use godwit_nvme::identify::{IoIdentifyController, NamespaceError, NamespaceFeatures, OptionalNvmCommands, WriteCache};
use godwit_nvme::{Cap, IdentifyController, IdentifyNamespace, NamespaceIdentifiers, Nsid};

use super::identity::VolumeIdentity;
use crate::block::Geometry;

/// The longest discard that is sent as one command: longer ones keep some backends busy beyond any command timeout.
const MAX_DISCARD_BYTES: u64 = 1 << 30;

/// Blocks that one command can name.
const MAX_BLOCKS: u64 = 1 << 16;

/// The unit that files and page caches like best.
const PAGE_BYTES: u32 = 4096;

/// What the controller says about all of its namespaces.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Longest transfer (MDTS).
    pub(crate) max_transfer_bytes: u64,
    pub(crate) can_discard: bool,
    pub(crate) can_write_zeroes: bool,
    pub(crate) volatile_cache: bool,
    pub(crate) min_page_bytes: u32,
}

impl Limits {
    pub(crate) fn of(identity: &IdentifyController, cap: Cap) -> Self {
        let min_page_bytes = cap.min_page_bytes();
        Self {
            max_transfer_bytes: identity.max_transfer_bytes(min_page_bytes).unwrap_or(u64::MAX),
            can_discard: identity.oncs.contains(OptionalNvmCommands::DATASET_MANAGEMENT),
            can_write_zeroes: identity.oncs.contains(OptionalNvmCommands::WRITE_ZEROES),
            volatile_cache: identity.vwc.contains(WriteCache::PRESENT),
            min_page_bytes,
        }
    }
}

/// A namespace that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attached {
    pub(crate) identity: VolumeIdentity,
    pub(crate) geometry: Geometry,
    /// Whether Write Zeroes takes the Deallocate bit, and what was deallocated reads as zeroes.
    pub(crate) zeroes_may_deallocate: bool,
}

/// Puts together what the Identify structures say.
///
/// # Errors
///
/// Why the namespace cannot be used.
pub(crate) fn describe(
    nsid: Nsid,
    namespace: &IdentifyNamespace,
    identifiers: &NamespaceIdentifiers,
    limits: &Limits,
    io_controller: Option<&IoIdentifyController>,
) -> Result<Attached, NamespaceError> {
    if !namespace.is_present() {
        return Err(NamespaceError::Absent);
    }
    let block_size = namespace.block_size()?;
    let block = u64::from(block_size.bytes());
    // A size beyond 2^64 bytes is cut to what can be addressed.
    let size_blocks = namespace.size_blocks().min(u64::MAX / block);
    let identity = VolumeIdentity {
        nsid,
        nguid: identifiers.nguid.or(namespace.nguid()),
        eui64: identifiers.eui64.or(namespace.eui64()),
        uuid: identifiers.uuid,
        block_size,
        size_blocks,
    };
    let max_blocks_bytes = MAX_BLOCKS * block;
    let whole = |bytes: u64| bytes / block * block;
    let max_transfer = whole(limits.max_transfer_bytes.min(max_blocks_bytes).min(MAX_BUFFER_BYTES as u64));
    if max_transfer == 0 {
        return Err(NamespaceError::BlockSize(block_size.log2()));
    }
    // Without a limit of its own (CNS 06h, version 2.0) Write Zeroes is bounded as any transfer is.
    let max_zeroes = match io_controller {
        Some(io) => io.max_write_zeroes_bytes(limits.min_page_bytes).unwrap_or(u64::MAX),
        None => limits.max_transfer_bytes,
    };
    let max_zeroes = whole(max_zeroes.min(max_blocks_bytes));
    let max_range_blocks = io_controller.map(|io| io.dmrsl.get()).filter(|&blocks| blocks != 0).unwrap_or(u32::MAX);
    let max_discard = whole(u64::from(max_range_blocks).saturating_mul(block).min(MAX_DISCARD_BYTES.max(block)));
    let can_write_zeroes = limits.can_write_zeroes && max_zeroes > 0;
    let geometry = Geometry {
        size_bytes: size_blocks * block,
        block_bytes: block_size.bytes(),
        optimal_bytes: optimal_bytes(namespace, block_size.bytes(), max_transfer),
        max_transfer_bytes: usize::try_from(max_transfer).unwrap_or(MAX_BUFFER_BYTES),
        max_zeroes_bytes: if can_write_zeroes { max_zeroes } else { 0 },
        max_discard_bytes: if limits.can_discard { max_discard } else { 0 },
        read_only: namespace.is_write_protected(),
        can_write_zeroes,
        can_discard: limits.can_discard,
        volatile_cache: limits.volatile_cache,
    };
    let zeroes_may_deallocate = namespace.write_zeroes_may_deallocate() && namespace.deallocated_reads_zeroes();
    Ok(Attached { identity, geometry, zeroes_may_deallocate })
}

/// The preferred write granularity if there is a usable one, else a page.
fn optimal_bytes(namespace: &IdentifyNamespace, block_bytes: u32, max_transfer_bytes: u64) -> u32 {
    let preferred = (namespace.nsfeat.contains(NamespaceFeatures::OPTIMAL_IO_VALID))
        .then(|| (u32::from(namespace.npwg.get()) + 1).checked_mul(block_bytes))
        .flatten()
        .filter(|bytes| bytes.is_power_of_two() && u64::from(*bytes) <= max_transfer_bytes);
    preferred.unwrap_or(0).max(PAGE_BYTES).max(block_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use godwit_nvme::{BlockSize, Nguid};

    fn limits() -> Limits {
        Limits { max_transfer_bytes: 1 << 17, can_discard: true, can_write_zeroes: true, volatile_cache: true, min_page_bytes: 4096 }
    }

    fn geometry(namespace: &IdentifyNamespace, limits: &Limits, io: Option<&IoIdentifyController>) -> Geometry {
        describe(Nsid::new(1), namespace, &NamespaceIdentifiers::default(), limits, io).unwrap().geometry
    }

    #[test]
    fn a_transfer_is_bounded_by_mdts_block_count_and_buffer() {
        let small = IdentifyNamespace::new(1000, BlockSize::B512);
        assert_eq!(geometry(&small, &limits(), None).max_transfer_bytes, 128 << 10);
        let unlimited = Limits { max_transfer_bytes: u64::MAX, ..limits() };
        assert_eq!(geometry(&small, &unlimited, None).max_transfer_bytes, 1 << 20);
    }

    #[test]
    fn zeroes_are_bounded_by_wzsl_or_else_by_mdts() {
        let namespace = IdentifyNamespace::new(1000, BlockSize::B512);
        let mut io = IoIdentifyController::zeroed();
        assert_eq!(geometry(&namespace, &limits(), Some(&io)).max_zeroes_bytes, 32 << 20);
        io.wzsl = 2;
        assert_eq!(geometry(&namespace, &limits(), Some(&io)).max_zeroes_bytes, 16 << 10);
        assert_eq!(geometry(&namespace, &limits(), None).max_zeroes_bytes, 128 << 10);
        let without = Limits { can_write_zeroes: false, ..limits() };
        assert_eq!(geometry(&namespace, &without, Some(&io)).max_zeroes_bytes, 0);
    }

    #[test]
    fn a_discard_is_bounded_by_dmrsl_and_a_gibibyte() {
        let namespace = IdentifyNamespace::new(1000, BlockSize::B512);
        let mut io = IoIdentifyController::zeroed();
        assert_eq!(geometry(&namespace, &limits(), Some(&io)).max_discard_bytes, 1 << 30);
        io.dmrsl.set(8);
        assert_eq!(geometry(&namespace, &limits(), Some(&io)).max_discard_bytes, 4096);
    }

    #[test]
    fn an_absurd_size_is_cut_to_what_bytes_can_address() {
        let namespace = IdentifyNamespace::new(u64::MAX, BlockSize::B4096);
        assert_eq!(geometry(&namespace, &limits(), None).size_bytes, u64::MAX / 4096 * 4096);
    }

    #[test]
    fn an_absent_namespace_is_refused() {
        let absent = IdentifyNamespace::zeroed();
        let result = describe(Nsid::new(1), &absent, &NamespaceIdentifiers::default(), &limits(), None);
        assert_eq!(result, Err(NamespaceError::Absent));
    }

    #[test]
    fn descriptors_go_before_the_fields_of_identify_namespace() {
        let mut namespace = IdentifyNamespace::new(1, BlockSize::B512);
        namespace.set_nguid(Nguid([1; 16]));
        let identifiers = NamespaceIdentifiers { nguid: Some(Nguid([2; 16])), ..NamespaceIdentifiers::default() };
        let nguid = |ids: &NamespaceIdentifiers| describe(Nsid::new(1), &namespace, ids, &limits(), None).unwrap().identity.nguid;
        assert_eq!(nguid(&identifiers), Some(Nguid([2; 16])));
        assert_eq!(nguid(&NamespaceIdentifiers::default()), Some(Nguid([1; 16])));
    }

    #[test]
    fn deallocated_zeroes_need_both_promises() {
        let allowed = |zeroes, deallocate| {
            let mut namespace = IdentifyNamespace::new(1, BlockSize::B512);
            namespace.set_deallocate_features(zeroes, deallocate);
            describe(Nsid::new(1), &namespace, &NamespaceIdentifiers::default(), &limits(), None).unwrap().zeroes_may_deallocate
        };
        assert!(allowed(true, true));
        assert!(!allowed(true, false));
        assert!(!allowed(false, true));
    }
}
