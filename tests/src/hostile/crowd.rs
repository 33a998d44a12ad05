//! Many connections at a time that stop at every point of an honest beginning and then say nothing.

use std::time::{Duration, Instant};

use godwit_nvme::cm::QueueRequest;
use godwit_nvme::{Cntlid, Qid, QueueSize};

use super::host::{self, Answer, Host};
use super::link::Link;
use super::socket::Socket;
use super::{Aim, Misbehaviour, Random, Tally};

/// Connections that are held open.
#[derive(Debug)]
pub struct Crowd {
    /// Those that have not begun as they should: the daemons may not wait for them for ever.
    silent: Vec<Socket>,
    links: Vec<Link>,
    /// Admin queues that were connected.
    pub controllers: usize,
}

impl Crowd {
    /// Gathers `count` connections of each sort: to the target without a word, in the middle of their start-up frame, started up but not connected,
    /// and connected to a controller; to the initiator without a word, and in the middle of an option. What is refused is not there.
    ///
    /// # Errors
    /// What a daemon did wrong.
    pub fn gather(aim: &Aim, seed: u64, count: usize) -> Result<Self, Misbehaviour> {
        let random = &mut Random::new(seed, 0);
        let tally = Tally::default();
        let mut crowd = Self { silent: Vec::new(), links: Vec::new(), controllers: 0 };
        let refused = |error| Misbehaviour::Refused { at: "a connection", error };
        for _ in 0..count {
            crowd.silent.push(Socket::tcp(aim.target).map_err(refused)?);
            let mut half = Socket::tcp(aim.target).map_err(refused)?;
            half.send(b"MPA ID Req");
            crowd.silent.push(half);
            crowd.silent.push(Socket::unix(&aim.nbd).map_err(refused)?);
            let mut half = Socket::unix(&aim.nbd).map_err(refused)?;
            half.send(b"\0\0\0\x03IHAVEOPT\0\0");
            crowd.silent.push(half);
            let size = QueueSize::new(32).expect("not zero");
            let request = QueueRequest::new(Qid::ADMIN, size, Cntlid::new(0)).to_wire();
            if let Answer::Accepted(link) = host::start(aim, random, &request, "MPA start-up")? {
                crowd.silent.push(link.into_socket());
            }
            let host = Host::new(aim, random);
            match host::connect_admin(aim, &host, random, &mut tally.stream()) {
                Ok((link, _)) => {
                    crowd.links.push(link);
                    crowd.controllers += 1;
                }
                Err(Misbehaviour::Refused { .. }) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(crowd)
    }

    /// Waits until the daemons have closed every connection that has not begun as it should; how many they had not when `limit` was over.
    pub fn wait_for_the_door(&mut self, limit: Duration) -> usize {
        let deadline = Instant::now() + limit;
        self.silent.retain_mut(|socket| {
            while !socket.is_over && Instant::now() < deadline {
                socket.receive(deadline.saturating_duration_since(Instant::now()));
            }
            !socket.is_over
        });
        self.silent.len()
    }
}
