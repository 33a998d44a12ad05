//! Every numeric limit of the configuration, in one place: whole numbers with a lower and an upper bound.

use std::{fmt, str::FromStr};

use crate::Size;

/// A number that is outside of its bounds, or no number at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} must be {expected}, not {found}")]
pub struct OutOfRange {
    /// What the number is for.
    pub name: &'static str,
    /// What would be right.
    pub expected: &'static str,
    /// What was given.
    pub found: String,
}

macro_rules! bounded {
    ($(#[$doc:meta])* $type:ident($int:ty), $name:literal, $min:literal to $max:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type($int);

        impl $type {
            /// The smallest value.
            pub const MIN: Self = Self($min);
            /// The largest value.
            pub const MAX: Self = Self($max);
            /// What would be right, for an error.
            pub(crate) const EXPECTED: &'static str =
                concat!("a whole number from ", $min, " to ", $max);

            /// Takes the number if it is within bounds.
            ///
            /// # Errors
            /// Names the bounds.
            pub fn new(value: $int) -> Result<Self, OutOfRange> {
                Self::from_wide(i128::from(value))
            }

            /// The number.
            #[must_use]
            pub const fn get(self) -> $int {
                self.0
            }

            pub(crate) fn from_wide(value: i128) -> Result<Self, OutOfRange> {
                match <$int>::try_from(value) {
                    Ok(n) if ($min..=$max).contains(&n) => Ok(Self(n)),
                    _ => Err(Self::refusal(value.to_string())),
                }
            }

            fn refusal(found: String) -> OutOfRange {
                OutOfRange { name: $name, expected: Self::EXPECTED, found }
            }
        }

        impl FromStr for $type {
            type Err = OutOfRange;

            fn from_str(text: &str) -> Result<Self, OutOfRange> {
                match text.parse::<i128>() {
                    Ok(n) if !text.starts_with('+') => Self::from_wide(n),
                    _ => Err(Self::refusal(format!("`{text}`"))),
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

bounded! {
    /// Reactor threads of a daemon.
    Reactors(u16), "the number of reactors", 1 to 64
}

impl Default for Reactors {
    /// The cores that this process may use, at most four.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self(u16::try_from(cores.min(4)).unwrap_or(1))
    }
}

bounded! {
    /// Entries of an I/O queue. NVMe needs two; 1024 is what the Linux host and target stop at as well.
    QueueSize(u16), "the queue size", 2 to 1024
}

impl QueueSize {
    /// What a host asks for unless told otherwise, as nvme-cli.
    pub const DEFAULT: Self = Self(128);
}

bounded! {
    /// I/O queues of one controller.
    IoQueues(u16), "the number of I/O queues", 1 to 1024
}

impl Default for IoQueues {
    /// As many as the kernel's target offers.
    fn default() -> Self {
        Self(128)
    }
}

bounded! {
    /// Sockets between the kernel and a volume that is its device.
    Connections(u16), "the number of connections", 1 to 64
}

bounded! {
    /// Controllers at a time, of all subsystems together. FFF0h and above are no controller ids.
    Controllers(u16), "the number of controllers", 1 to 65519
}

impl Default for Controllers {
    fn default() -> Self {
        Self(256)
    }
}

bounded! {
    /// A namespace id that our target offers. (A foreign target may use any up to FFFFFFFEh.)
    TargetNsid(u32), "the namespace id", 1 to 1024
}

bounded! {
    /// A namespace id of any target.
    AnyNsid(u32), "the namespace id", 1 to 4_294_967_294
}

bounded! {
    /// Keep Alive Timeout (KATO), in seconds.
    ///
    /// Never zero, which would switch it off: after a silent cut, the wait for this time is what proves to a host that the
    /// target gave up its old commands, and to the target that the host is gone.
    KeepAlive(u16), "the keep-alive timeout in seconds", 1 to 3600
}

impl Default for KeepAlive {
    /// Five seconds, as nvme-cli.
    fn default() -> Self {
        Self(5)
    }
}

bounded! {
    /// The longest pause between two attempts to reconnect, in seconds.
    ReconnectDelay(u16), "the reconnect delay in seconds", 1 to 3600
}

impl Default for ReconnectDelay {
    /// Two seconds. nvme-cli's ten suit a multipath host, where another path carries the I/O meanwhile; a volume behind NBD
    /// stands still until its only path is back, and a restarted target is back within a second or two.
    fn default() -> Self {
        Self(2)
    }
}

bounded! {
    /// How long an I/O command may take before it is aborted, in seconds.
    IoTimeout(u16), "the I/O timeout in seconds", 1 to 3600
}

impl Default for IoTimeout {
    /// Two minutes. It is for a command that the target forgot: a dead connection is for the Keep Alive to find, and a backend that stalls, even for longer
    /// than the 30 s of the Linux host, is slow and not lost.
    fn default() -> Self {
        Self(120)
    }
}

/// In-capsule data per I/O command: up to 16 KiB in steps of 512 bytes; zero sends all data by RDMA Read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InCapsule(u32);

impl InCapsule {
    /// The largest value, in bytes.
    pub const MAX_BYTES: u32 = 16 << 10;
    const STEP_BYTES: u64 = 512;

    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        self.0
    }
}

impl Default for InCapsule {
    fn default() -> Self {
        Self(8 << 10)
    }
}

impl TryFrom<Size> for InCapsule {
    type Error = OutOfRange;

    fn try_from(size: Size) -> Result<Self, OutOfRange> {
        u32::try_from(size.bytes())
            .ok()
            .filter(|&bytes| bytes <= Self::MAX_BYTES && size.bytes().is_multiple_of(Self::STEP_BYTES))
            .map(Self)
            .ok_or_else(|| OutOfRange { name: "the in-capsule size", expected: "a multiple of 512 up to 16KiB", found: size.to_string() })
    }
}

/// Registered memory of one reactor.
///
/// The floor depends on [`QueueSize`] and [`InCapsule`] and is [`PoolMemory::floor`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolMemory(Size);

impl PoolMemory {
    /// The largest value.
    pub const MAX: Size = Size::from_bytes(64 << 30);
    /// The largest transfer (MDTS): 1 MiB.
    pub const TRANSFER_MAX: Size = Size::from_bytes(1 << 20);
    /// Largest transfers that must fit beside a full queue's in-capsule data.
    const TRANSFERS: u64 = 4;

    /// The size.
    #[must_use]
    pub const fn size(self) -> Size {
        self.0
    }

    /// The least that works: the in-capsule data of one full queue, and four of the largest transfers beside it.
    #[must_use]
    pub fn floor(queue_size: QueueSize, in_capsule: InCapsule) -> Size {
        let capsules = u64::from(queue_size.get()) * u64::from(in_capsule.bytes());
        Size::from_bytes(capsules + Self::TRANSFERS * Self::TRANSFER_MAX.bytes())
    }
}

impl Default for PoolMemory {
    fn default() -> Self {
        Self(Size::from_bytes(64 << 20))
    }
}

impl TryFrom<Size> for PoolMemory {
    type Error = OutOfRange;

    fn try_from(size: Size) -> Result<Self, OutOfRange> {
        if (Self::TRANSFER_MAX..=Self::MAX).contains(&size) {
            return Ok(Self(size));
        }
        Err(OutOfRange { name: "the memory of a reactor", expected: "a size from 1MiB to 64GiB", found: size.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_inclusive_on_both_sides() {
        assert!("0".parse::<Reactors>().is_err() && "65".parse::<Reactors>().is_err());
        assert!("1".parse::<Reactors>().is_ok() && "64".parse::<Reactors>().is_ok());
        assert!("1".parse::<QueueSize>().is_err() && "1025".parse::<QueueSize>().is_err());
        for size in [2, 127, 128, 1023, 1024] {
            assert_eq!(QueueSize::new(size).map(QueueSize::get), Ok(size));
        }
        assert!("0".parse::<IoQueues>().is_err() && "1025".parse::<IoQueues>().is_err());
        assert!("0".parse::<Controllers>().is_err() && "65520".parse::<Controllers>().is_err());
        assert!("65519".parse::<Controllers>().is_ok());
        assert!("0".parse::<TargetNsid>().is_err() && "1025".parse::<TargetNsid>().is_err());
        assert!("1024".parse::<TargetNsid>().is_ok());
        assert!("0".parse::<KeepAlive>().is_err() && "3601".parse::<KeepAlive>().is_err());
        assert!("0".parse::<ReconnectDelay>().is_err() && "3600".parse::<ReconnectDelay>().is_ok());
    }

    #[test]
    fn refusals_name_the_bounds() {
        let refusal = |text: &str| text.parse::<QueueSize>().expect_err(text).to_string();
        assert_eq!(refusal("1025"), "the queue size must be a whole number from 2 to 1024, not 1025");
        assert_eq!(refusal("many"), "the queue size must be a whole number from 2 to 1024, not `many`");
        assert_eq!(refusal("+5"), "the queue size must be a whole number from 2 to 1024, not `+5`");
        assert_eq!(refusal("-5"), "the queue size must be a whole number from 2 to 1024, not -5");
        let huge = "9".repeat(60);
        assert_eq!(refusal(&huge), format!("the queue size must be a whole number from 2 to 1024, not `{huge}`"));
    }

    #[test]
    fn in_capsule_is_a_multiple_of_512_up_to_16_kib() {
        let take = |bytes| InCapsule::try_from(Size::from_bytes(bytes)).map(InCapsule::bytes);
        for bytes in [0, 512, 8192, 16384] {
            assert_eq!(take(bytes).map(u64::from), Ok(bytes));
        }
        for bytes in [1, 511, 16385, 16896, u64::MAX] {
            assert!(take(bytes).is_err(), "{bytes}");
        }
        assert_eq!(take(20 << 10).unwrap_err().to_string(), "the in-capsule size must be a multiple of 512 up to 16KiB, not 20KiB");
    }

    #[test]
    fn the_default_memory_covers_every_queue() {
        let largest = InCapsule::try_from(Size::from_bytes(16 << 10)).unwrap();
        assert_eq!(PoolMemory::floor(QueueSize::MAX, largest).to_string(), "20MiB");
        assert!(PoolMemory::default().size() >= PoolMemory::floor(QueueSize::MAX, largest));
    }

    #[test]
    fn defaults_are_within_bounds() {
        assert!(Reactors::new(Reactors::default().get()).is_ok() && Reactors::default().get() <= 4);
        assert!(IoQueues::new(IoQueues::default().get()).is_ok());
        assert!(Controllers::new(Controllers::default().get()).is_ok());
        assert!(PoolMemory::try_from(PoolMemory::default().size()).is_ok());
        assert_eq!(InCapsule::default().bytes(), 8192);
    }
}
