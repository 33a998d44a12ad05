//! The one map from errors of a backend to NVMe statuses.

use godwit_nvme::{Status, StatusCode};

use crate::backend::BackendError;

/// What the host is told.
pub(crate) fn of_backend(error: BackendError) -> Status {
    match error {
        BackendError::OutOfRange => StatusCode::LBA_OUT_OF_RANGE,
        BackendError::ReadOnly => StatusCode::NAMESPACE_WRITE_PROTECTED,
        BackendError::NoSpace => StatusCode::CAPACITY_EXCEEDED,
        BackendError::Read { .. } => StatusCode::UNRECOVERED_READ_ERROR,
        BackendError::Write { .. } | BackendError::SyncFailed => StatusCode::WRITE_FAULT,
        BackendError::Truncated => StatusCode::INTERNAL_ERROR,
    }
    .do_not_retry()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_of_a_backend_has_its_status() {
        let wire = |error| of_backend(error).to_wire() >> 1;
        let dnr = 0x4000;
        assert_eq!(wire(BackendError::NoSpace), dnr | 0x081);
        assert_eq!(wire(BackendError::Read { errno: 5 }), dnr | 0x281);
        assert_eq!(wire(BackendError::Write { errno: 5 }), dnr | 0x280);
        assert_eq!(wire(BackendError::SyncFailed), dnr | 0x280);
        assert_eq!(wire(BackendError::Truncated), dnr | 0x006);
        assert_eq!(wire(BackendError::OutOfRange), dnr | 0x080);
        assert_eq!(wire(BackendError::ReadOnly), dnr | 0x020);
    }
}
