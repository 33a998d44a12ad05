//! What all threads share about one volume: its export, its gate, and how many connections it has.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use godwit_nbd::{BlockSizes, Export, InvalidExport, TransmissionFlags};

use super::gate::Gate;
use super::limits::{LEAST_PREFERRED_BYTES, Limits, MAX_PAYLOAD_BYTES};
use crate::block::Geometry;

/// A volume as NBD clients see it. One for all threads that serve it.
#[derive(Debug)]
pub struct Volume {
    /// What the log calls it.
    label: String,
    limits: Limits,
    gate: Arc<Gate>,
    connections: AtomicUsize,
    /// The one export, as a slice for the handshake. Connections keep the one that they began with.
    exports: Mutex<Arc<[Export]>>,
    /// Counts their changes.
    version: AtomicU64,
}

impl Volume {
    /// Serves a volume under a name. Clients that ask for the empty name get it, too.
    ///
    /// # Errors
    ///
    /// [`InvalidExport`] when NBD clients could not use such a volume.
    pub fn new(name: &str, description: &str, geometry: &Geometry, limits: Limits) -> Result<Arc<Self>, InvalidExport> {
        Self::labelled(name, name, description, geometry, limits)
    }

    /// The same, of a volume that the log calls by a label.
    ///
    /// # Errors
    ///
    /// As [`Self::new`].
    pub fn labelled(label: &str, name: &str, description: &str, geometry: &Geometry, limits: Limits) -> Result<Arc<Self>, InvalidExport> {
        let exports = Arc::from([export(name, description, geometry)?]);
        Ok(Arc::new(Self {
            label: label.to_owned(),
            limits,
            gate: Arc::default(),
            connections: AtomicUsize::new(0),
            exports: Mutex::new(exports),
            version: AtomicU64::new(0),
        }))
    }

    /// Takes over what changed about the volume (it grew). Clients that connect from now on see it, and so
    /// does the kernel, which is to be told only after this.
    ///
    /// # Errors
    ///
    /// As [`Self::new`]; then nothing changes.
    pub fn update(&self, geometry: &Geometry) -> Result<(), InvalidExport> {
        let old = self.exports();
        *self.exports.lock().unwrap_or_else(PoisonError::into_inner) = Arc::from([export(old[0].name(), old[0].description(), geometry)?]);
        self.version.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// What the log calls it.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The limits that it was made with.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// How many connections it has now. One that ended counts until its last operation has ended.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub(super) fn exports(&self) -> Arc<[Export]> {
        Arc::clone(&self.exports.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// Counts one more connection, if the limit allows.
    pub(super) fn enter(&self) -> bool {
        let one_more = |count: usize| (count < self.limits.connections).then_some(count + 1);
        self.connections.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    /// Counts one more, whatever the limit.
    pub(super) fn enter_always(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    /// The count of changes of [`Self::exports`].
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The flags that a client without structured replies is told.
    pub fn flags(&self) -> TransmissionFlags {
        self.exports()[0].flags_for(false)
    }

    pub(super) fn leave(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

fn export(name: &str, description: &str, geometry: &Geometry) -> Result<Export, InvalidExport> {
    let preferred = geometry.optimal_bytes.clamp(LEAST_PREFERRED_BYTES, MAX_PAYLOAD_BYTES);
    let sizes = BlockSizes::new(geometry.block_bytes, preferred, MAX_PAYLOAD_BYTES)?;
    Export::new(name, description, geometry.size_bytes, sizes, flags(geometry))
}

/// What the volume can do. A write of zeroes is one small command for any length, so wherever it is offered it is fast.
fn flags(geometry: &Geometry) -> TransmissionFlags {
    let zeroes = TransmissionFlags::SEND_WRITE_ZEROES.with(TransmissionFlags::SEND_FAST_ZERO);
    let abilities = [
        (geometry.read_only, TransmissionFlags::READ_ONLY),
        (geometry.can_discard, TransmissionFlags::SEND_TRIM),
        (geometry.can_write_zeroes, zeroes),
    ];
    let always = TransmissionFlags::SEND_FLUSH
        .with(TransmissionFlags::SEND_FUA)
        .with(TransmissionFlags::SEND_DF)
        .with(TransmissionFlags::SEND_CACHE)
        .with(TransmissionFlags::CAN_MULTI_CONN);
    abilities.into_iter().filter(|(able, _)| *able).fold(always, |flags, (_, more)| flags.with(more))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry {
        size_bytes: 1 << 30,
        block_bytes: 512,
        optimal_bytes: 512,
        max_transfer_bytes: 1 << 20,
        max_zeroes_bytes: 1 << 25,
        max_discard_bytes: 1 << 30,
        read_only: false,
        can_write_zeroes: true,
        can_discard: true,
        volatile_cache: true,
    };

    fn export_of(geometry: &Geometry) -> Export {
        export("vol0", "", geometry).unwrap()
    }

    #[test]
    fn the_flags_are_what_the_volume_can_do() {
        assert_eq!(export_of(&GEOMETRY).flags().0, 0x0ded);
        assert_eq!(export_of(&Geometry { can_write_zeroes: false, ..GEOMETRY }).flags().0, 0x05ad);
        assert_eq!(export_of(&Geometry { can_discard: false, ..GEOMETRY }).flags().0, 0x0dcd);
        assert_eq!(export_of(&Geometry { read_only: true, ..GEOMETRY }).flags().0, 0x058f);
    }

    #[test]
    fn block_sizes_are_those_of_the_volume_and_never_advise_less_than_a_page() {
        let sizes = |geometry| {
            let block = export_of(&geometry).block();
            (block.minimum(), block.preferred(), block.maximum())
        };
        assert_eq!(sizes(GEOMETRY), (512, 4096, 32 << 20));
        assert_eq!(sizes(Geometry { block_bytes: 4096, optimal_bytes: 131_072, ..GEOMETRY }), (4096, 131_072, 32 << 20));
    }

    #[test]
    fn a_volume_that_clients_could_not_use_is_refused() {
        assert!(Volume::new("vol0", "", &Geometry { size_bytes: 513, ..GEOMETRY }, Limits::default()).is_err());
        assert!(Volume::new(&"n".repeat(257), "", &GEOMETRY, Limits::default()).is_err());
    }

    #[test]
    fn growth_is_seen_by_those_who_come_later() {
        let volume = Volume::new("vol0", "", &GEOMETRY, Limits::default()).unwrap();
        let before = volume.exports();
        volume.update(&Geometry { size_bytes: 2 << 30, ..GEOMETRY }).unwrap();
        assert_eq!((before[0].size(), volume.exports()[0].size()), (1 << 30, 2 << 30));
        assert!(volume.update(&Geometry { size_bytes: 1, ..GEOMETRY }).is_err());
        assert_eq!(volume.exports()[0].size(), 2 << 30);
    }

    #[test]
    fn connections_are_counted_up_to_the_limit() {
        let volume = Volume::new("vol0", "", &GEOMETRY, Limits { connections: 1, ..Limits::default() }).unwrap();
        assert!(volume.enter());
        assert!(!volume.enter());
        volume.leave();
        assert!(volume.enter());
        assert_eq!(volume.connections(), 1);
    }
}
