//! The kernel's NBD driver by generic netlink: family "nbd", version 1 (`include/uapi/linux/nbd-netlink.h`).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use godwit_nbd::TransmissionFlags;
use neli::consts::genl::{Cmd, NlAttrType};
use neli::consts::nl::NlmF;
use neli::consts::socket::NlFamily;
use neli::err::RouterError;
use neli::genl::{AttrTypeBuilder, Genlmsghdr, GenlmsghdrBuilder, Nlattr, NlattrBuilder};
use neli::nl::{NlPayload, Nlmsghdr};
use neli::router::synchronous::NlRouter;
use neli::types::{Buffer, GenlBuffer};
use neli::utils::Groups;
use neli::{Size, ToBytes, neli_enum};

/// The version of the family.
const VERSION: u8 = 1;

/// What the kernel is asked to do.
#[neli_enum(serialized_type = "u8")]
pub(super) enum Command {
    Connect = 1,
    Disconnect = 2,
    Reconfigure = 3,
}

impl Cmd for Command {}

#[neli_enum(serialized_type = "u16")]
enum Attribute {
    Index = 1,
    SizeBytes = 2,
    BlockSizeBytes = 3,
    Timeout = 4,
    ServerFlags = 5,
    Sockets = 7,
    DeadConnTimeout = 8,
    BackendIdentifier = 10,
}

impl NlAttrType for Attribute {}

#[neli_enum(serialized_type = "u16")]
enum SocketItem {
    Item = 1,
}

impl NlAttrType for SocketItem {}

#[neli_enum(serialized_type = "u16")]
enum SocketAttribute {
    Fd = 1,
}

impl NlAttrType for SocketAttribute {}

type Attributes = Vec<Nlattr<Attribute, Buffer>>;

/// Why the kernel was not asked, or what it answered.
#[derive(Debug, thiserror::Error)]
pub(super) enum NetlinkError {
    /// There is no such family: the module is not there.
    #[error("the kernel has no NBD driver")]
    NoFamily,
    /// The kernel refused.
    #[error("{0}")]
    Refused(io::Error),
    /// Netlink itself failed.
    #[error("netlink: {0}")]
    Netlink(String),
}

impl NetlinkError {
    /// The error number of a refusal.
    pub(super) fn errno(&self) -> Option<i32> {
        if let Self::Refused(error) = self { error.raw_os_error() } else { None }
    }
}

/// What a device is made of.
pub(super) struct Terms<'a> {
    pub(super) size_bytes: u64,
    pub(super) block_bytes: u32,
    pub(super) flags: TransmissionFlags,
    /// How long a request may be without an answer before its socket is given up.
    pub(super) timeout: Duration,
    /// How long requests wait for another socket.
    pub(super) dead_conn_timeout: Duration,
    /// Kept by the kernel beside the device.
    pub(super) backend: &'a str,
}

/// The way to the kernel's NBD driver.
pub(super) struct Driver {
    router: NlRouter,
    family: u16,
}

impl Driver {
    pub(super) fn open() -> Result<Self, NetlinkError> {
        let (router, _) = NlRouter::connect(NlFamily::Generic, None, Groups::empty()).map_err(|error| failed(&error))?;
        let family = match router.resolve_genl_family("nbd") {
            Ok(family) => family,
            Err(RouterError::Nlmsgerr(answer)) if *answer.error() == -nix::libc::ENOENT => return Err(NetlinkError::NoFamily),
            Err(error) => return Err(failed(&error)),
        };
        Ok(Self { router, family })
    }

    /// Makes a device of sockets that are past the handshake; any free one without an index. Which it is.
    pub(super) fn connect(&self, index: Option<u32>, terms: &Terms<'_>, sockets: &[BorrowedFd<'_>]) -> Result<u32, NetlinkError> {
        let answer = self.ask(Command::Connect, connect(index, terms, sockets)?)?;
        answer.or(index).ok_or_else(|| NetlinkError::Netlink("the kernel does not say which device it made".to_owned()))
    }

    /// Replaces dead sockets of a device, each by one of these. One that found no dead socket to replace is dropped by the kernel without a word.
    pub(super) fn replace(&self, index: u32, backend: &str, sockets: &[BorrowedFd<'_>]) -> Result<(), NetlinkError> {
        let attributes = vec![number(Attribute::Index, index)?, text(Attribute::BackendIdentifier, backend)?, self::sockets(sockets)?];
        self.ask(Command::Reconfigure, attributes).map(drop)
    }

    /// Changes the size and the time-outs of a device.
    pub(super) fn change(&self, index: u32, terms: &Terms<'_>) -> Result<(), NetlinkError> {
        let attributes = vec![
            number(Attribute::Index, index)?,
            number(Attribute::SizeBytes, terms.size_bytes)?,
            number(Attribute::Timeout, terms.timeout.as_secs())?,
            number(Attribute::DeadConnTimeout, terms.dead_conn_timeout.as_secs())?,
            text(Attribute::BackendIdentifier, terms.backend)?,
        ];
        self.ask(Command::Reconfigure, attributes).map(drop)
    }

    /// Frees a device; whatever it has not answered fails.
    pub(super) fn disconnect(&self, index: u32) -> Result<(), NetlinkError> {
        self.ask(Command::Disconnect, vec![number(Attribute::Index, index)?]).map(drop)
    }

    /// Sends a message and waits for its acknowledgement; the index in the answer, if there is one.
    fn ask(&self, command: Command, attributes: Attributes) -> Result<Option<u32>, NetlinkError> {
        let attributes: GenlBuffer<_, _> = attributes.into_iter().collect();
        let message =
            GenlmsghdrBuilder::default().cmd(command).version(VERSION).attrs(attributes).build().map_err(|error| failed(&error))?;
        let answers = self
            .router
            .send::<_, _, u16, Genlmsghdr<u8, u16>>(self.family, NlmF::ACK, NlPayload::Payload(message))
            .map_err(|error| failed(&error))?;
        let mut index = None;
        for answer in answers {
            let answer: Nlmsghdr<u16, Genlmsghdr<u8, u16>> = answer.map_err(|error| match error {
                RouterError::Nlmsgerr(refusal) => NetlinkError::Refused(io::Error::from_raw_os_error(-*refusal.error())),
                error => failed(&error),
            })?;
            if let Some(payload) = answer.get_payload() {
                let handle = payload.attrs().get_attr_handle();
                index = handle.get_attr_payload_as::<u32>(Attribute::Index.into()).ok().or(index);
            }
        }
        Ok(index)
    }
}

fn connect(index: Option<u32>, terms: &Terms<'_>, sockets: &[BorrowedFd<'_>]) -> Result<Attributes, NetlinkError> {
    let mut attributes = Vec::new();
    if let Some(index) = index {
        attributes.push(number(Attribute::Index, index)?);
    }
    attributes.extend([
        number(Attribute::SizeBytes, terms.size_bytes)?,
        number(Attribute::BlockSizeBytes, u64::from(terms.block_bytes))?,
        number(Attribute::Timeout, terms.timeout.as_secs())?,
        number(Attribute::ServerFlags, u64::from(terms.flags.0))?,
        number(Attribute::DeadConnTimeout, terms.dead_conn_timeout.as_secs())?,
        self::sockets(sockets)?,
        text(Attribute::BackendIdentifier, terms.backend)?,
    ]);
    Ok(attributes)
}

fn attribute<T: NlAttrType, P: Size + ToBytes>(name: T, payload: P) -> Result<Nlattr<T, Buffer>, NetlinkError> {
    let name = AttrTypeBuilder::default().nla_type(name).build().map_err(|error| failed(&error))?;
    NlattrBuilder::default().nla_type(name).nla_payload(payload).build().map_err(|error| failed(&error))
}

fn number<P: Size + ToBytes>(name: Attribute, value: P) -> Result<Nlattr<Attribute, Buffer>, NetlinkError> {
    attribute(name, value)
}

/// With the NUL that the kernel wants at its end.
fn text(name: Attribute, value: &str) -> Result<Nlattr<Attribute, Buffer>, NetlinkError> {
    attribute(name, value)
}

fn sockets(sockets: &[BorrowedFd<'_>]) -> Result<Nlattr<Attribute, Buffer>, NetlinkError> {
    sockets.iter().try_fold(attribute(Attribute::Sockets, Vec::<u8>::new())?, |list, socket| {
        let descriptor = u32::try_from(socket.as_raw_fd()).unwrap_or(u32::MAX);
        let item = attribute(SocketItem::Item, Vec::<u8>::new())?;
        let item = item.nest(&attribute(SocketAttribute::Fd, descriptor)?).map_err(|error| failed(&error))?;
        list.nest(&item).map_err(|error| failed(&error))
    })
}

fn failed(error: &dyn std::fmt::Display) -> NetlinkError {
    NetlinkError::Netlink(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::os::fd::AsFd;

    use super::*;

    fn bytes(attributes: &Attributes) -> Vec<u8> {
        let mut cursor = Cursor::new(Vec::new());
        for attribute in attributes {
            attribute.to_bytes(&mut cursor).unwrap();
        }
        cursor.into_inner()
    }

    /// The layout of netlink attributes, written by hand: length with the header of 4 bytes, type, payload, padded to 4 bytes; numbers in host order.
    #[test]
    fn connect_has_the_attributes_of_nbd_netlink_h() {
        let terms = Terms {
            size_bytes: 1 << 30,
            block_bytes: 4096,
            flags: TransmissionFlags(0x056d),
            timeout: Duration::from_secs(10),
            dead_conn_timeout: Duration::from_secs(300),
            backend: "vol0",
        };
        let socket = std::fs::File::open("/dev/null").unwrap();
        let descriptor = u32::try_from(socket.as_raw_fd()).unwrap().to_ne_bytes();
        let mut expected = Vec::new();
        for (header, payload) in [
            ([8_u16, 1], &0_u32.to_ne_bytes()[..]),
            ([12, 2], &(1_u64 << 30).to_ne_bytes()),
            ([12, 3], &4096_u64.to_ne_bytes()),
            ([12, 4], &10_u64.to_ne_bytes()),
            ([12, 5], &0x056d_u64.to_ne_bytes()),
            ([12, 8], &300_u64.to_ne_bytes()),
            ([16, 0x8007], &[]),
            ([12, 0x8001], &[]),
            ([8, 1], &descriptor),
            ([9, 10], b"vol0\0\0\0\0"),
        ] {
            expected.extend(header.into_iter().flat_map(u16::to_ne_bytes));
            expected.extend_from_slice(payload);
        }
        assert_eq!(bytes(&connect(Some(0), &terms, &[socket.as_fd()]).unwrap()), expected);
    }

    #[test]
    fn any_device_is_asked_for_by_no_index() {
        let terms = Terms {
            size_bytes: 512,
            block_bytes: 512,
            flags: TransmissionFlags(1),
            timeout: Duration::ZERO,
            dead_conn_timeout: Duration::ZERO,
            backend: "",
        };
        assert_eq!(bytes(&connect(None, &terms, &[]).unwrap())[..4], [12, 0, 2, 0]);
    }
}
