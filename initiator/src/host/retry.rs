//! What the status of an I/O command means: done, try again, or an error for the front end.

use std::time::Duration;

use godwit_nvme::{RetryDelay, Status, StatusCode};

use crate::block::BlockError;

/// How often a command is sent again over statuses that allow it.
const MAX_RETRIES: u8 = 5;

/// Before the first retry, when the target names no delay; doubles with each further one.
const FIRST_DELAY: Duration = Duration::from_millis(100);

/// What to do with a command that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It succeeded.
    Done,
    /// Send it again after this time.
    Retry(Duration),
    /// It failed.
    Failed(BlockError),
}

/// The command retry delay times of Identify Controller (CRDT1 to CRDT3).
pub(crate) type RetryDelays = [Duration; 3];

/// Judges the status of a command that was sent again `retries` times already.
pub(crate) fn judge(status: Status, retries: u8, delays: &RetryDelays) -> Verdict {
    if status.is_success() {
        Verdict::Done
    } else if status.is_retryable() && retries < MAX_RETRIES && !is_final(status.code) {
        Verdict::Retry(delay(status.retry_delay, retries, delays))
    } else {
        Verdict::Failed(block_error(status.code))
    }
}

/// Whether a retry would only fail again, whatever the status says.
fn is_final(code: StatusCode) -> bool {
    matches!(code, StatusCode::CAPACITY_EXCEEDED | StatusCode::LBA_OUT_OF_RANGE | StatusCode::RESERVATION_CONFLICT)
}

fn delay(named: RetryDelay, retries: u8, delays: &RetryDelays) -> Duration {
    let named = match named {
        RetryDelay::None => Duration::ZERO,
        RetryDelay::Crdt1 => delays[0],
        RetryDelay::Crdt2 => delays[1],
        RetryDelay::Crdt3 => delays[2],
    };
    if named.is_zero() { FIRST_DELAY * (1 << retries.min(MAX_RETRIES)) } else { named }
}

fn block_error(code: StatusCode) -> BlockError {
    match code {
        StatusCode::CAPACITY_EXCEEDED => BlockError::NoSpace,
        StatusCode::LBA_OUT_OF_RANGE => BlockError::OutOfRange,
        StatusCode::NAMESPACE_WRITE_PROTECTED | StatusCode::WRITE_TO_READ_ONLY_RANGE => BlockError::ReadOnly,
        StatusCode::INVALID_OPCODE | StatusCode::INVALID_FIELD => BlockError::Unsupported,
        StatusCode::RESERVATION_CONFLICT => BlockError::Reserved,
        code if code.is_media_error() => BlockError::Media,
        _ => BlockError::Io,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAYS: RetryDelays = [Duration::from_millis(700), Duration::ZERO, Duration::from_secs(3)];

    #[test]
    fn a_status_without_dnr_is_tried_again_five_times() {
        let status = StatusCode::INTERNAL_ERROR.retryable();
        let verdicts: Vec<_> = (0..6).map(|retries| judge(status, retries, &DELAYS)).collect();
        let delays = [100, 200, 400, 800, 1600].map(|ms| Verdict::Retry(Duration::from_millis(ms)));
        assert_eq!(verdicts[..5], delays);
        assert_eq!(verdicts[5], Verdict::Failed(BlockError::Io));
    }

    #[test]
    fn the_target_names_the_delay() {
        let status = |retry_delay| Status { retry_delay, ..StatusCode::COMMAND_INTERRUPTED.retryable() };
        assert_eq!(judge(status(RetryDelay::Crdt1), 4, &DELAYS), Verdict::Retry(Duration::from_millis(700)));
        assert_eq!(judge(status(RetryDelay::Crdt2), 0, &DELAYS), Verdict::Retry(FIRST_DELAY));
        assert_eq!(judge(status(RetryDelay::Crdt3), 0, &DELAYS), Verdict::Retry(Duration::from_secs(3)));
    }

    #[test]
    fn dnr_is_final() {
        assert_eq!(judge(StatusCode::INTERNAL_ERROR.do_not_retry(), 0, &DELAYS), Verdict::Failed(BlockError::Io));
        assert_eq!(judge(Status::SUCCESS, 5, &DELAYS), Verdict::Done);
    }

    #[test]
    fn each_status_has_its_error() {
        let error = |code: StatusCode| match judge(code.do_not_retry(), 0, &DELAYS) {
            Verdict::Failed(error) => error,
            other => panic!("{other:?}"),
        };
        assert_eq!(error(StatusCode::CAPACITY_EXCEEDED), BlockError::NoSpace);
        assert_eq!(error(StatusCode::LBA_OUT_OF_RANGE), BlockError::OutOfRange);
        assert_eq!(error(StatusCode::NAMESPACE_WRITE_PROTECTED), BlockError::ReadOnly);
        assert_eq!(error(StatusCode::INVALID_OPCODE), BlockError::Unsupported);
        assert_eq!(error(StatusCode::RESERVATION_CONFLICT), BlockError::Reserved);
        assert_eq!(error(StatusCode::UNRECOVERED_READ_ERROR), BlockError::Media);
        assert_eq!(error(StatusCode::WRITE_FAULT), BlockError::Media);
        assert_eq!(error(StatusCode::INVALID_NAMESPACE_OR_FORMAT), BlockError::Io);
    }

    #[test]
    fn no_space_is_told_at_once() {
        assert_eq!(judge(StatusCode::CAPACITY_EXCEEDED.retryable(), 0, &DELAYS), Verdict::Failed(BlockError::NoSpace));
    }
}
