//! The memory of a thread as a device knows it.
//!
//! # Who may reach what
//!
//! Userspace verbs cannot revoke a region and use it again in the way of a command: registering takes a system call and more. So a buffer that
//! [`Fabric::expose`](crate::Fabric::expose) lends is registered when it is lent for the first time, by itself and under a key of its own, and stays
//! registered: the peer may go on to reach it until the queue pair has ended. That bounds what a peer may do in three ways.
//!
//! * The pool as a whole is registered for our own work requests only. A target lends nothing, so no peer ever reaches its memory by a key.
//! * A thread that lends (a host) speaks to one target at a time, and its pool is that association's own: what a target may still reach are buffers of
//!   this very volume. They are read after the response that covers them and not relied on before, and a queue pair is put into its error state
//!   before the buffers of an unanswered command are used again.
//! * On iWARP the sink of an RDMA Read is a region that the peer may write to, and its key goes over the wire. There a queue pair that reads has
//!   a protection domain of its own, in which a key of another connection means nothing, and a sink is registered for one RDMA Read and
//!   deregistered before anyone looks at what it brought.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::rc::Rc;

use godwit_memory::{Buffer, Pool};

use super::device::{Device, ProtectionDomain, Region, Rights};
use super::error::VerbsError;
use crate::{Access, Rkey};

/// A protection domain with the thread's pool in it.
#[derive(Debug)]
pub(super) struct Domain {
    /// Regions of single buffers, by their place in the pool and what the peer may do with them.
    lent: HashMap<(usize, Access), Region>,
    /// The pool as a whole, once it is of use: that takes the kernel a while, which a connection that never asks for anything is not worth.
    whole: OnceCell<Region>,
    protection: Rc<ProtectionDomain>,
    // Keeps the memory mapped: dropped last.
    pool: Pool,
}

impl Domain {
    pub(super) fn new(device: Device, pool: &Pool) -> Result<Self, VerbsError> {
        let protection = ProtectionDomain::new(device)?;
        Ok(Self { lent: HashMap::new(), whole: OnceCell::new(), protection, pool: pool.clone() })
    }

    pub(super) fn protection(&self) -> &Rc<ProtectionDomain> {
        &self.protection
    }

    /// The key for our own work requests on buffers of the pool.
    pub(super) fn lkey(&self) -> Result<u32, VerbsError> {
        if let Some(whole) = self.whole.get() {
            return Ok(whole.lkey());
        }
        let (start, bytes) = self.pool.mapping();
        // SAFETY: the pool is kept until the region is gone.
        let whole = unsafe { Region::new(&self.protection, start, bytes, Rights::Local) }?;
        Ok(self.whole.get_or_init(|| whole).lkey())
    }

    /// The key by which the peer reaches a buffer.
    pub(super) fn lend(&mut self, buffer: &Buffer, access: Access) -> Result<Rkey, VerbsError> {
        if let Some(region) = self.lent.get(&(buffer.pool_offset(), access)) {
            return Ok(Rkey(region.rkey()));
        }
        let rights = match access {
            Access::RemoteRead => Rights::RemoteRead,
            Access::RemoteWrite => Rights::RemoteWrite,
        };
        // SAFETY: the buffer is a part of the pool, which is kept until the region is gone.
        let region = unsafe { Region::new(&self.protection, buffer.address(), buffer.capacity(), rights) }?;
        let rkey = Rkey(region.rkey());
        self.lent.insert((buffer.pool_offset(), access), region);
        Ok(rkey)
    }

    /// Deregisters a buffer whose region the peer has invalidated.
    pub(super) fn forget(&mut self, buffer: &Buffer) {
        for access in [Access::RemoteRead, Access::RemoteWrite] {
            self.lent.remove(&(buffer.pool_offset(), access));
        }
    }

    /// Registers the sink of one RDMA Read on iWARP.
    pub(super) fn sink(&self, buffer: &Buffer) -> Result<Region, VerbsError> {
        // SAFETY: the buffer is a part of the pool, and its region is dropped with the work request that holds both.
        unsafe { Region::new(&self.protection, buffer.address(), buffer.capacity(), Rights::RemoteWrite) }
    }
}
