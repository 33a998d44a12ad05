//! The commands that shut a controller down: CC.SHN, then CSTS.SHST until it is complete.

use std::time::Duration;

use godwit_nvme::property::{ShutdownNotification, ShutdownStatus};
use godwit_nvme::{ControllerConfiguration, ControllerStatus, Cqe};

use super::bringup::{Command, Next, Script, get_status, set_configuration};
use super::error::HostError;

/// How often CSTS is looked at.
const POLL: Duration = Duration::from_millis(100);

/// The script.
#[derive(Debug)]
pub(crate) struct Shutdown {
    configuration: ControllerConfiguration,
    notified: bool,
}

impl Shutdown {
    /// Of a controller that was enabled with this configuration.
    pub(crate) fn new(configuration: ControllerConfiguration) -> Self {
        Self { configuration, notified: false }
    }
}

impl Script for Shutdown {
    type Outcome = ();

    fn start(&mut self) -> Command {
        let configuration = self.configuration.with_shutdown(ShutdownNotification::Normal);
        set_configuration("the shutdown of the controller", configuration)
    }

    fn answer(&mut self, cqe: &Cqe, _: &[u8]) -> Result<Next<()>, HostError> {
        if !cqe.status().is_success() {
            return Err(HostError::Command { command: "the shutdown of the controller", status: cqe.status() });
        }
        if !std::mem::replace(&mut self.notified, true) {
            return Ok(Next::Command(Box::new(get_status()), Duration::ZERO));
        }
        let status = ControllerStatus::from_bits(cqe.dw0());
        if status.shutdown() == ShutdownStatus::Complete || status.is_gone() {
            return Ok(Next::Done(()));
        }
        Ok(Next::Command(Box::new(get_status()), POLL))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use godwit_nvme::{AdminCommand, Cid, FabricsCommand, Qid, Sqhd, Status};

    fn cqe(result: u32) -> Cqe {
        Cqe::new(Cid::new(0), Qid::ADMIN, Sqhd::new(0), Status::SUCCESS).with_dw0(result)
    }

    #[test]
    fn sets_shn_and_waits_until_shst_is_complete() {
        let mut script = Shutdown::new(ControllerConfiguration::new(true));
        let AdminCommand::Fabrics(FabricsCommand::PropertySet(_, value)) = AdminCommand::parse(&script.start().sqe) else { panic!() };
        assert_eq!(value, 0x0046_4001);
        assert!(matches!(script.answer(&cqe(0), &[]), Ok(Next::Command(_, Duration::ZERO))));
        assert!(matches!(script.answer(&cqe(0b0101), &[]), Ok(Next::Command(_, POLL))));
        assert!(matches!(script.answer(&cqe(0b1001), &[]), Ok(Next::Done(()))));
    }
}
