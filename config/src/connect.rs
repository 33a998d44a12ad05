//! Options of `godwit connect`, with nvme-cli's names and meanings where it has them.

use std::{fmt, str::FromStr, time::Duration};

use crate::{Crc, HostPort, IoQueues, IoTimeout, KeepAlive, PollBudget, QueueSize, Reactors, ReconnectDelay, Size, SwitchError};

/// How to attach a volume and how to serve it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectOptions {
    /// `--nr-io-queues`: I/O queues to ask for; the target may grant fewer.
    pub nr_io_queues: IoQueues,
    /// `--queue-size`: entries of each I/O queue.
    pub queue_size: QueueSize,
    /// `--keep-alive-tmo`: Keep Alive Timeout in seconds.
    pub keep_alive_tmo: KeepAlive,
    /// `--address`: other addresses of the same subsystem, to be used when the URL's does not answer.
    pub addresses: Vec<HostPort>,
    /// `--discover`: the URL's address is that of a discovery controller, which knows where the subsystem is.
    pub discover: bool,
    /// `--reconnect-delay`: the longest pause between two attempts, in seconds.
    pub reconnect_delay: ReconnectDelay,
    /// `--ctrl-loss-tmo`: how long I/O waits for a lost target before it fails.
    pub ctrl_loss_tmo: CtrlLossTimeout,
    /// `--fast-io-fail-tmo`: how long I/O waits for a lost target before it fails, while the target is still tried.
    pub fast_io_fail_tmo: FastIoFailTimeout,
    /// `--io-timeout`: how long a command may take before it is aborted, in seconds.
    pub io_timeout: IoTimeout,
    /// `--retain`: bytes of acknowledged writes of which copies are kept until they are flushed; zero keeps none.
    pub retain: Size,
    /// `--unsafe-shutdowns`: what is made of the return of a target that does not count them.
    pub unsafe_shutdowns: UnsafeShutdowns,
    /// `--crc`: CRC of iWARP; the URL's `crc=` goes before it.
    pub crc: Crc,
    /// `--poll`: how long a reactor spins before it sleeps, and up to ten times as long for answers that come in that time.
    pub poll: PollBudget,
    /// `--nbd-mode`: permissions of the NBD socket.
    pub nbd_mode: NbdMode,
    /// `--nbd-allow-remote`: NBD over TCP may be reached from other machines.
    pub nbd_allow_remote: bool,
    /// `--export-name`: the name that NBD clients ask for; empty is the default export.
    pub export_name: String,
    /// `--read-only`: writes are refused.
    pub read_only: bool,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        // One a reactor: an I/O queue lives on one, and a second one there only splits its depth.
        let queues = Reactors::default().get();
        Self {
            nr_io_queues: IoQueues::new(queues).unwrap_or(IoQueues::MIN),
            queue_size: QueueSize::DEFAULT,
            keep_alive_tmo: KeepAlive::default(),
            reconnect_delay: ReconnectDelay::default(),
            addresses: Vec::new(),
            discover: false,
            ctrl_loss_tmo: CtrlLossTimeout::default(),
            fast_io_fail_tmo: FastIoFailTimeout::default(),
            io_timeout: IoTimeout::default(),
            retain: Size::from_bytes(0),
            unsafe_shutdowns: UnsafeShutdowns::default(),
            crc: Crc::default(),
            poll: PollBudget::default(),
            nbd_mode: NbdMode::default(),
            nbd_allow_remote: false,
            export_name: String::new(),
            read_only: false,
        }
    }
}

/// How long I/O waits for a lost target before it fails (`ctrl_loss_tmo`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CtrlLossTimeout {
    /// For ever: `-1`.
    Never,
    /// So long; zero fails at once.
    After(Duration),
}

/// A text that is no [`CtrlLossTimeout`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a controller loss timeout: write seconds up to 2147483647, 0 to fail at once, or -1 to wait for ever")]
pub struct CtrlLossTimeoutError(pub String);

impl Default for CtrlLossTimeout {
    /// Ten minutes, as nvme-cli.
    fn default() -> Self {
        Self::After(Duration::from_secs(600))
    }
}

impl FromStr for CtrlLossTimeout {
    type Err = CtrlLossTimeoutError;

    fn from_str(text: &str) -> Result<Self, CtrlLossTimeoutError> {
        let digits = !text.starts_with('+');
        match text.parse::<i32>() {
            Ok(-1) => Ok(Self::Never),
            Ok(secs) if digits && secs >= 0 => Ok(Self::After(Duration::from_secs(secs.unsigned_abs().into()))),
            _ => Err(CtrlLossTimeoutError(text.to_owned())),
        }
    }
}

impl fmt::Display for CtrlLossTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.write_str("-1"),
            Self::After(time) => time.as_secs().fmt(f),
        }
    }
}

/// How long I/O waits for a lost target before it fails, while reconnecting goes on (`fast_io_fail_tmo`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FastIoFailTimeout {
    /// As long as the volume is not given up: `-1`, nvme-cli's default too.
    #[default]
    Off,
    /// So long; zero fails at once.
    After(Duration),
}

/// A text that is no [`FastIoFailTimeout`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a fast I/O fail timeout: write seconds up to 2147483647, 0 to fail at once, or -1 to wait as long as ctrl_loss_tmo says"
)]
pub struct FastIoFailTimeoutError(pub String);

impl FromStr for FastIoFailTimeout {
    type Err = FastIoFailTimeoutError;

    fn from_str(text: &str) -> Result<Self, FastIoFailTimeoutError> {
        match text.parse().map_err(|_| FastIoFailTimeoutError(text.to_owned()))? {
            CtrlLossTimeout::Never => Ok(Self::Off),
            CtrlLossTimeout::After(time) => Ok(Self::After(time)),
        }
    }
}

impl fmt::Display for FastIoFailTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Off => CtrlLossTimeout::Never.fmt(f),
            Self::After(time) => CtrlLossTimeout::After(time).fmt(f),
        }
    }
}

/// What is made of the return of a target that does not count unsafe shutdowns: whether it lost its power, and acknowledged writes with it, is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UnsafeShutdowns {
    /// It lost nothing: what Linux's own NVMe host takes for granted.
    #[default]
    Trust,
    /// It lost every write that was not flushed.
    Fail,
}

impl FromStr for UnsafeShutdowns {
    type Err = SwitchError;

    fn from_str(text: &str) -> Result<Self, SwitchError> {
        match text {
            "trust" => Ok(Self::Trust),
            "fail" => Ok(Self::Fail),
            _ => Err(SwitchError { found: text.to_owned(), expected: "`trust` or `fail`" }),
        }
    }
}

impl fmt::Display for UnsafeShutdowns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Trust => "trust",
            Self::Fail => "fail",
        })
    }
}

/// Permissions of a Unix socket, written in octal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NbdMode(u16);

/// A text that is no [`NbdMode`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a file mode: write octal permissions up to 0777, such as 0660 to let the socket's group in")]
pub struct NbdModeError(pub String);

impl NbdMode {
    /// The permission bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0 as u32
    }
}

impl Default for NbdMode {
    /// 0600: the owner alone.
    fn default() -> Self {
        Self(0o600)
    }
}

impl FromStr for NbdMode {
    type Err = NbdModeError;

    fn from_str(text: &str) -> Result<Self, NbdModeError> {
        Some(text.strip_prefix("0o").unwrap_or(text))
            .filter(|t| t.bytes().all(|b| b.is_ascii_digit()))
            .and_then(|t| u16::from_str_radix(t, 8).ok())
            .filter(|&mode| mode <= 0o777)
            .map(Self)
            .ok_or_else(|| NbdModeError(text.to_owned()))
    }
}

impl fmt::Display for NbdMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_nvme_cli_but_for_the_reconnect_delay() {
        let options = ConnectOptions::default();
        assert_eq!(options.queue_size.get(), 128);
        assert_eq!(options.keep_alive_tmo.get(), 5);
        assert_eq!(options.reconnect_delay.get(), 2);
        assert_eq!(options.ctrl_loss_tmo.to_string(), "600");
        assert_eq!(options.fast_io_fail_tmo.to_string(), "-1");
        assert_eq!(options.io_timeout.get(), 120);
        assert_eq!(options.nbd_mode.to_string(), "0600");
        assert_eq!(options.nr_io_queues.get(), Reactors::default().get());
        assert!(!options.nbd_allow_remote && !options.read_only && options.export_name.is_empty());
    }

    #[test]
    fn ctrl_loss_timeout_is_seconds_or_for_ever() {
        for (text, expected) in [
            ("-1", CtrlLossTimeout::Never),
            ("0", CtrlLossTimeout::After(Duration::ZERO)),
            ("3", CtrlLossTimeout::After(Duration::from_secs(3))),
            ("2147483647", CtrlLossTimeout::After(Duration::from_secs(2_147_483_647))),
        ] {
            let timeout: CtrlLossTimeout = text.parse().unwrap();
            assert_eq!((timeout, timeout.to_string().as_str()), (expected, text));
        }
        for text in ["", "-2", "+1", "2147483648", "10s", "never"] {
            assert_eq!(
                text.parse::<CtrlLossTimeout>().unwrap_err().to_string(),
                format!(
                    "`{text}` is not a controller loss timeout: write seconds up to 2147483647, 0 to fail at once, or -1 to wait for ever"
                )
            );
        }
    }

    #[test]
    fn fast_io_fail_timeout_is_seconds_or_off() {
        for (text, expected) in [("-1", FastIoFailTimeout::Off), ("0", FastIoFailTimeout::After(Duration::ZERO))] {
            let timeout: FastIoFailTimeout = text.parse().unwrap();
            assert_eq!((timeout, timeout.to_string().as_str()), (expected, text));
        }
        let refusal = "off".parse::<FastIoFailTimeout>().unwrap_err().to_string();
        assert!(refusal.starts_with("`off` is not a fast I/O fail timeout"), "{refusal}");
    }

    #[test]
    fn unsafe_shutdowns_are_trusted_or_not() {
        for (text, expected) in [("trust", UnsafeShutdowns::Trust), ("fail", UnsafeShutdowns::Fail)] {
            let policy: UnsafeShutdowns = text.parse().unwrap();
            assert_eq!((policy, policy.to_string().as_str()), (expected, text));
        }
        assert_eq!("no".parse::<UnsafeShutdowns>().unwrap_err().to_string(), "`no` is not `trust` or `fail`");
    }

    #[test]
    fn nbd_mode_is_octal() {
        for (text, bits) in [("0600", 0o600), ("660", 0o660), ("0o777", 0o777), ("0", 0)] {
            assert_eq!(text.parse::<NbdMode>().unwrap().bits(), bits);
        }
        for text in ["", "0o", "01000", "800", "-1", "+7", "rw", "0x180"] {
            assert_eq!(
                text.parse::<NbdMode>().unwrap_err().to_string(),
                format!("`{text}` is not a file mode: write octal permissions up to 0777, such as 0660 to let the socket's group in")
            );
        }
    }
}
