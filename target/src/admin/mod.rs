//! Admin commands that need no I/O: each module makes the bytes or the number that a command is answered with.

pub(crate) mod features;
pub(crate) mod identify;
pub(crate) mod log_page;

use std::net::SocketAddr;

use godwit_nvme::sqe::{AdminCommand, FabricsCommand};
use godwit_nvme::{Sqe, StatusCode};
use godwit_rdma::Remote;
use godwit_reactor::Time;

use crate::controller::{Controller, Transition};
use crate::limits::{ASYNC_EVENT_REQUESTS, MAX_TRANSFER_BYTES};
use crate::offer::Offer;
use crate::request::{BAD_LENGTH, Refusal, host_memory, location};
use crate::subsystem::Target;

/// What a command is answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A result.
    Result(u64),
    /// Data for the host: these bytes, then zeroes up to a length. A host may ask for far more than there is, and may be slow to take it.
    Data {
        /// What is not all zero, perhaps.
        bytes: Vec<u8>,
        /// Length of all.
        len_bytes: usize,
        /// Where to.
        to: Remote,
    },
    /// A result; and the I/O queues have to go.
    Stopped,
    /// Nothing yet: the command is held until there is an event.
    Held,
    /// To be aborted if it can be: a command of this queue.
    Abort(godwit_nvme::sqe::Abort),
    /// A result; and the keep-alive timer is another now.
    KeepAliveChanged,
}

/// What commands are answered from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About<'a> {
    pub(crate) target: &'a Target,
    pub(crate) offer: &'a Offer,
    /// The address that the host came to.
    pub(crate) local: Option<SocketAddr>,
    pub(crate) now: Time,
}

/// Carries out a command of an admin queue.
pub(crate) fn execute(controller: &mut Controller, sqe: &Sqe, about: &About<'_>) -> Result<Answer, Refusal> {
    sqe.check_flags().map_err(|status| Refusal { status, location: Some(location::FLAGS) })?;
    let command = AdminCommand::parse(sqe);
    if !controller.is_ready() && !matches!(command, AdminCommand::Fabrics(_) | AdminCommand::KeepAlive) {
        return Err(StatusCode::COMMAND_SEQUENCE_ERROR.do_not_retry().into());
    }
    match command {
        AdminCommand::Fabrics(FabricsCommand::PropertyGet(access)) => controller.property(access).map(Answer::Result),
        AdminCommand::Fabrics(FabricsCommand::PropertySet(access, value)) => {
            let transition = controller.set_property(access, value)?;
            Ok(if transition == Transition::Stopped { Answer::Stopped } else { Answer::Result(0) })
        }
        AdminCommand::KeepAlive if controller.keep_alive().is_zero() => Err(StatusCode::KEEP_ALIVE_TIMEOUT_INVALID.do_not_retry().into()),
        // As any command, it was a sign of life when it came.
        AdminCommand::KeepAlive => Ok(Answer::Result(0)),
        AdminCommand::Identify(identify) => {
            let bytes = identify::identify(&identify, controller, about)?;
            let len_bytes = godwit_nvme::identify::LEN_BYTES;
            Ok(Answer::Data { bytes, len_bytes, to: host_data(sqe, len_bytes)? })
        }
        AdminCommand::GetLogPage(page) => {
            let len_bytes = usize::try_from(page.length.bytes()).unwrap_or(usize::MAX);
            if len_bytes > MAX_TRANSFER_BYTES {
                return Err(Refusal::at(location::CDW10, StatusCode::INVALID_FIELD));
            }
            let to = host_data(sqe, len_bytes)?;
            let bytes = log_page::log_page(&page, len_bytes, controller, about)?;
            if !page.retain_event {
                controller.pending.log_was_read(page.id);
            }
            Ok(Answer::Data { bytes, len_bytes, to })
        }
        AdminCommand::GetFeatures(command) => match features::get(&command, controller, about)? {
            features::Value::Dword(value) => Ok(Answer::Result(value.into())),
            features::Value::Data(bytes) => {
                let len_bytes = bytes.len();
                Ok(Answer::Data { bytes, len_bytes, to: host_data(sqe, len_bytes)? })
            }
        },
        AdminCommand::SetFeatures(command) => {
            let keep_alive = controller.keep_alive();
            let result = features::set(&command, controller, about)?;
            Ok(if controller.keep_alive() == keep_alive { Answer::Result(result.into()) } else { Answer::KeepAliveChanged })
        }
        AdminCommand::AsyncEventRequest if controller.event_requests >= ASYNC_EVENT_REQUESTS => {
            Err(StatusCode::AER_LIMIT_EXCEEDED.do_not_retry().into())
        }
        AdminCommand::AsyncEventRequest => {
            controller.event_requests += 1;
            Ok(Answer::Held)
        }
        AdminCommand::Abort(abort) => Ok(Answer::Abort(abort)),
        AdminCommand::Fabrics(_) | AdminCommand::Other(_) => Err(Refusal::at(location::OPCODE, StatusCode::INVALID_OPCODE)),
    }
}

/// Memory of the host of at least this length, to write to.
fn host_data(sqe: &Sqe, len_bytes: usize) -> Result<Remote, Refusal> {
    let (to, length) = host_memory(sqe)?;
    if u64::from(length) >= len_bytes as u64 { Ok(to) } else { Err(BAD_LENGTH) }
}

#[cfg(test)]
mod tests;
