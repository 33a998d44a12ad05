//! What wakes a peer that sleeps over the first message on a connection.
//!
//! siw, the kernel's iWARP, answers the MPA Request of a peer first and takes the socket over for messages afterwards (`siw_accept`: `siw_send_mpareqrep`,
//! then `siw_qp_socket_assoc`). What comes in between is told to nobody: `siw_cm_llp_data_ready` drops the news in this state, and nothing looks at the
//! socket before more data come to it. A host sends Connect and waits for its answer, so both ends would wait for ever without this. Seen with every peer of siw, siw
//! itself included, the more often the busier its processors are.
//!
//! More data is all that it needs, and iWARP has messages that nobody has to take note of: of zero bytes, so that no STag is looked at (RFC 5040, RDMA Write
//! Message and RDMA Read Operation), as RFC 6581 has them open a connection:
//!
//! * the side that connected, which has sent something and has heard nothing, sends an RDMA Write;
//! * the side that accepted by an iWARP device has nothing but its own device's word that there is no message. It asks for an RDMA Read: the response is
//!   data from the peer, behind whatever came before. A peer that allows no reads gets none. By MPA's rule a responder is silent before the first message has
//!   come, for the initiator could have missed the Reply (RFC 5044, Connection Startup); this long after it, that is over.

use std::time::Duration;

/// How long a first message may stay without an answer, or out, before the peer is nudged; and before it is nudged once more.
pub(crate) const NUDGE_AFTER: Duration = Duration::from_millis(500);

/// How often. On a busy machine a thread may rest for long between two steps.
pub(crate) const NUDGES: u8 = 8;
