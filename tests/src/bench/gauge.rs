//! Quantities of ours that are no ratio to a peer.

use std::fmt;

use super::sample::Section;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// The slowest Keep Alive under full load.
    KeepAliveWorst,
    /// The slowest answer of the control socket under full load.
    StatusWorst,
    /// Memory of the target for each idle connection.
    IdleConnectionMemory,
    /// Processor time of the target with the most idle connections.
    IdleConnectionsCpu,
    /// Processor time of the target for each request beside the most idle connections, against none.
    CostBesideIdle,
    /// Processor time of the target for each request with the most namespaces, against one.
    CostOfNamespaces,
    /// Processor time of the target for each request on the most connections, against one.
    CostOfConnections,
    /// Processor time of the target for each request at the greatest depth, against depth 32.
    CostOfDepth,
}

impl Name {
    /// Where it is measured.
    pub const fn section(self) -> Section {
        match self {
            Self::KeepAliveWorst | Self::StatusWorst => Section::Fairness,
            _ => Section::Scaling,
        }
    }

    /// What its number counts.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::KeepAliveWorst | Self::StatusWorst => "ms",
            Self::IdleConnectionMemory => "KiB",
            Self::IdleConnectionsCpu => "% of a core",
            _ => "x",
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KeepAliveWorst => "slowest Keep Alive under full load",
            Self::StatusWorst => "slowest `status` under full load",
            Self::IdleConnectionMemory => "memory for each of 1,000 idle connections",
            Self::IdleConnectionsCpu => "processor time with 1,000 idle connections",
            Self::CostBesideIdle => "target CPU per I/O beside 1,000 idle connections, against none",
            Self::CostOfNamespaces => "target CPU per I/O with 256 namespaces, against one",
            Self::CostOfConnections => "target CPU per I/O on 64 connections, against one at the same depth in all",
            Self::CostOfDepth => "target CPU per I/O at depth 1,023, against depth 32",
        })
    }
}

/// What was measured of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Gauge {
    /// What.
    pub name: Name,
    /// Each value, one a round.
    pub values: Vec<f64>,
}
