//! What happens to machines: torn and silent connections, slow disks, killed processes, power cuts.

use std::time::Duration;

use godwit_reactor::sim::HostId;

use super::{QUICK, Simulation};

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Connections are reset.
    Reset,
    /// Nothing passes for a while.
    Silence,
    /// The target is killed and started again.
    Kill,
    /// The target's machine loses its power and comes back.
    PowerCut,
    /// The disk is slow for a while, and meanwhile something else happens.
    SlowDisk,
    /// The user does nothing for a while.
    Idle,
}

impl Simulation {
    /// A random one.
    pub fn draw_fault(&mut self) -> Fault {
        match self.draw(16) {
            0..3 => Fault::Reset,
            3..6 => Fault::Silence,
            6 | 7 => Fault::Kill,
            8 | 9 => Fault::PowerCut,
            10..15 => Fault::SlowDisk,
            _ => Fault::Idle,
        }
    }

    /// Lets something happen, and the time pass that it takes.
    pub fn suffer(&mut self, fault: Fault) {
        tracing::info!("{:?}: {fault:?}", self.world.now());
        match fault {
            Fault::Reset => self.reset(),
            Fault::Silence => {
                let time = match self.draw(3) {
                    0 => self.draw_millis(1, 1000),
                    1 => self.draw_millis(1000, 8000),
                    _ => self.draw_millis(8000, 30_000),
                };
                let pairs = self.draw_pairs();
                self.silence_between(&pairs, time);
            }
            Fault::Kill => self.kill(false),
            Fault::PowerCut => self.kill(true),
            Fault::SlowDisk => {
                let delay = self.draw_millis(100, 25_000);
                self.target.disk.set_delay(delay);
                let time = self.draw_millis(5, 500);
                self.run_for(time);
                match self.draw(8) {
                    0..3 => self.suffer(Fault::Reset),
                    3..6 => self.suffer(Fault::Silence),
                    6 => self.suffer(Fault::Kill),
                    _ => {}
                }
                let time = self.draw_millis(1, 2000);
                self.run_for(time);
                self.target.disk.set_delay(QUICK);
            }
            Fault::Idle => {
                self.rest(true);
                let time = self.draw_millis(5000, 40_000);
                self.run_for(time);
                self.rest(false);
            }
        }
    }

    /// Resets all connections between the machines, or those of one pair of reactors.
    fn reset(&mut self) {
        for (host, target) in self.draw_pairs() {
            self.world.reset_connections(host, target);
        }
    }

    /// Cuts the network between the machines.
    pub fn silence(&mut self, time: Duration) {
        self.silence_between(&self.pairs(), time);
    }

    fn silence_between(&mut self, pairs: &[(HostId, HostId)], time: Duration) {
        for &(host, target) in pairs {
            self.world.partition(host, target, true);
        }
        self.run_for(time);
        tracing::info!("{:?}: the network is back", self.world.now());
        for &(host, target) in pairs {
            self.world.partition(host, target, false);
        }
    }

    fn draw_pairs(&mut self) -> Vec<(HostId, HostId)> {
        let mut pairs = self.pairs();
        if self.draw(3) == 0 {
            let one = usize::try_from(self.draw(pairs.len() as u64)).unwrap_or(0);
            pairs = vec![pairs[one]];
        }
        pairs
    }

    /// Kills the target, with its machine's power or without, and starts it again.
    fn kill(&mut self, power: bool) {
        self.end_target();
        if power {
            self.tally.cuts += 1;
            self.world.cut_power(&self.target.disk);
            self.host.load.model.cut_power();
        }
        // A successor waits for the lock on the file, which operations under way still hold.
        self.run_until("the disk is quiet", |simulation| simulation.world.disk_operations(&simulation.target.disk) == 0);
        let time = self.draw_millis(1, 5000);
        self.run_for(time);
        assert_eq!(self.target.buffers_in_use(), 0, "buffers that the killed target left");
        self.target.start();
    }

    /// Kills the target for good.
    pub fn end_target(&mut self) {
        self.target.kill();
    }

    /// Makes operations of the disk take up to so long.
    pub fn slow_disk(&mut self, delay: Duration) {
        self.target.disk.set_delay(delay);
    }
}
