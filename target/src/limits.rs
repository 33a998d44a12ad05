//! Every limit of the target, in one place.

use std::time::Duration;

use godwit_nvme::QueueSize;

/// Bytes of the largest transfer of one command: what MDTS says.
pub const MAX_TRANSFER_BYTES: usize = 1 << 20;

/// The most in-capsule data of a command, in bytes.
pub const MAX_IN_CAPSULE_BYTES: usize = 16 << 10;

/// Commands that a host may have outstanding on an admin queue, as the kernel's target has it.
pub(crate) const ADMIN_QUEUE_ENTRIES: u32 = 32;

/// The largest I/O queue, in entries.
pub const MAX_IO_QUEUE_ENTRIES: u32 = 1024;

/// Asynchronous Event Requests that a controller holds (AERL is this, 0's-based).
pub(crate) const ASYNC_EVENT_REQUESTS: usize = 4;

/// Abort commands at a time (ACL is this, 0's-based). Each is answered at once.
pub(crate) const ABORT_COMMANDS: u8 = 4;

/// Entries of a controller's error log.
pub(crate) const ERROR_LOG_ENTRIES: usize = 64;

/// RDMA Reads that a queue has outstanding at its host, if the host serves as many.
pub(crate) const OUTBOUND_READS: u16 = 16;

/// Connections of one reactor thread, established or being set up.
pub(crate) const CONNECTIONS_PER_WORKER: usize = 4096;

/// The largest namespace identifier (NN).
pub(crate) const MAX_NSID: u32 = 1024;

/// How long a peer may take from its connection to its Fabrics Connect.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long an admin Connect waits for commands of a dying association of the same host.
pub(crate) const FENCE_WAIT: Duration = Duration::from_millis(500);

/// How long the last responses may take to reach a host when the daemon stops.
pub(crate) const DRAIN_GRACE: Duration = Duration::from_millis(500);

/// The keep-alive timeout of a discovery controller whose host asks for none, as the kernel's target has it.
pub(crate) const DISCOVERY_KEEP_ALIVE: Duration = Duration::from_secs(120);

/// Keep-alive timeouts are rounded up to this (KAS is this, in units of 100 ms).
pub(crate) const KEEP_ALIVE_GRANULARITY: Duration = Duration::from_millis(100);

/// After which time without RDMA Reads a queue gives its reservation back.
pub(crate) const RESERVATION_IDLE: Duration = Duration::from_millis(100);

/// How long a host may leave an RDMA Read unanswered, or what is sent to it unread, before its connection ends: both hold memory.
pub(crate) const PEER_PATIENCE: Duration = Duration::from_secs(30);

/// How often that is looked at.
pub(crate) const WATCH_INTERVAL: Duration = Duration::from_secs(10);

/// Namespaces that may be added while the target runs, beyond those that it started with (removing one makes room for another): each reactor thread has a
/// buffer set aside for each.
pub const SPARE_STORES: usize = 16;

/// Buffers that each reactor thread sets aside for the data of admin commands.
pub(crate) const ADMIN_BUFFERS: usize = 16;

/// What hosts may use; more is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// In-capsule data of a command, in bytes: a multiple of 16 up to [`MAX_IN_CAPSULE_BYTES`].
    pub in_capsule_bytes: usize,
    /// Entries of an I/O queue.
    pub io_queue_size: QueueSize,
    /// I/O queues of a controller.
    pub io_queues: u16,
    /// Controllers at a time.
    pub controllers: u16,
    /// How long the admin queue of a dying association stays, so that a host which takes its queues down one by one can still shut the controller down.
    /// A host under load takes seconds for that, and must not find its admin queue gone below its last command.
    pub admin_grace: Duration,
}

impl Limits {
    /// The largest queue that a connection for this queue may have.
    pub(crate) fn queue_size(&self, admin: bool) -> QueueSize {
        if admin { QueueSize::new(ADMIN_QUEUE_ENTRIES).expect("not zero") } else { self.io_queue_size }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            in_capsule_bytes: 8 << 10,
            io_queue_size: QueueSize::new(MAX_IO_QUEUE_ENTRIES).expect("not zero"),
            io_queues: 128,
            controllers: 256,
            admin_grace: Duration::from_secs(30),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_transfer_is_the_largest_buffer() {
        assert_eq!(MAX_TRANSFER_BYTES, godwit_memory::MAX_BUFFER_BYTES);
    }

    #[test]
    fn admin_queues_have_32_entries_whatever_io_queues_have() {
        let limits = Limits::default();
        assert_eq!(limits.queue_size(true).entries(), 32);
        assert_eq!(limits.queue_size(false).entries(), 1024);
    }
}
