//! Bodies of jobs on their way in: read whole at a pace, counted against the room of all jobs as they come.

use std::{pin::pin, time::Duration};

use bytes::Bytes;
use http::StatusCode;
use http_body_util::BodyExt as _;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, timeout_at},
};

use crate::BoxError;

/// The unit of memory for bodies on their way.
pub(super) const KIB: usize = 1 << 10;

/// The least speed of a request's body: what has come of it holds memory of all jobs meanwhile.
#[derive(Debug, Clone, Copy)]
pub(super) struct UploadRate {
    /// So many more bytes, or the end,
    bytes: usize,
    /// come within this time.
    within: Duration,
    /// Longest wait for the whole body.
    whole: Duration,
}

pub(super) const PACE: UploadRate =
    UploadRate { bytes: 64 << 10, within: Duration::from_secs(10), whole: Duration::from_mins(5) };

/// Reason why a body was not read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BodyError {
    NoRoom,
    Refused(StatusCode, String),
}

/// A whole body, and the room that it holds: taken as data comes, so that who announces much and sends nothing takes none from others.
pub(super) async fn whole<B>(
    body: B,
    most: usize,
    room: &Semaphore,
    pace: UploadRate,
) -> Result<(Vec<u8>, Option<SemaphorePermit<'_>>), BodyError>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
{
    let refused = |status, reason: String| Err(BodyError::Refused(status, reason));
    let mut body = pin!(body);
    let (mut read, mut held, mut permit) = (Vec::new(), 0, None::<SemaphorePermit<'_>>);
    let now = Instant::now();
    let (end, mut due, mut wanted) = (now + pace.whole, now + pace.within, pace.bytes);
    loop {
        let frame = match timeout_at(due.min(end), body.frame()).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(None) => return Ok((read, permit)),
            // The client has gone.
            Ok(Some(Err(_))) => return refused(StatusCode::BAD_REQUEST, "the body broke off".to_owned()),
            Err(_) if end <= due => {
                let seconds = pace.whole.as_secs();
                let reason = format!("the body did not arrive within {seconds} s: send it again");
                return refused(StatusCode::REQUEST_TIMEOUT, reason);
            }
            Err(_) => {
                let (bytes, seconds) = (pace.bytes, pace.within.as_secs());
                let reason = format!("less than {bytes} bytes of the body arrived within {seconds} s: send it again");
                return refused(StatusCode::REQUEST_TIMEOUT, reason);
            }
        };
        // Nobody reads trailers.
        let Ok(data) = frame.into_data() else { continue };
        let length = read.len() + data.len();
        if length > most {
            let reason = format!("the body has more than {most} bytes, which is the most for a job (async.maxBody)");
            return refused(StatusCode::PAYLOAD_TOO_LARGE, reason);
        }
        let needed = length.div_ceil(KIB);
        if needed > held {
            let more = u32::try_from(needed - held).unwrap_or(u32::MAX);
            let more = room.try_acquire_many(more).map_err(|_| BodyError::NoRoom)?;
            match &mut permit {
                Some(permit) => permit.merge(more),
                None => permit = Some(more),
            }
            held = needed;
        }
        read.extend_from_slice(&data);
        if length >= wanted {
            (wanted, due) = (length + pace.bytes, Instant::now() + pace.within);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::{FutureExt as _, StreamExt as _, stream};
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;
    use crate::body::full;

    type FrameResult = Result<Frame<Bytes>, Infallible>;

    fn part(length: usize) -> FrameResult {
        Ok(Frame::data(vec![b'x'; length].into()))
    }

    fn status<T>(read: Result<T, BodyError>) -> Option<StatusCode> {
        match read {
            Err(BodyError::Refused(status, _)) => Some(status),
            _ => None,
        }
    }

    #[tokio::test]
    async fn a_body_that_never_comes_is_not_waited_for_without_an_end() {
        let (soon, room) = (Duration::from_millis(20), Semaphore::new(4));
        for pace in [UploadRate { within: soon, ..PACE }, UploadRate { whole: soon, ..PACE }] {
            let silent = StreamBody::new(stream::pending::<FrameResult>());
            assert_eq!(status(whole(silent, 10, &room, pace).await), Some(StatusCode::REQUEST_TIMEOUT), "{pace:?}");
        }
        let long = whole(full("more than ten bytes"), 10, &room, PACE).await;
        assert_eq!(status(long), Some(StatusCode::PAYLOAD_TOO_LARGE));
        let (read, permit) = whole(full("ten bytes"), 10, &room, PACE).await.expect("whole");
        assert_eq!((read.as_slice(), room.available_permits()), (&b"ten bytes"[..], 3));
        drop(permit);
        assert_eq!(room.available_permits(), 4);
    }

    #[tokio::test]
    async fn a_body_that_drips_is_refused_and_one_that_comes_is_read() {
        let pace = UploadRate { bytes: 1_000, within: Duration::from_millis(100), ..PACE };
        let drips = |length: usize, parts: usize| {
            let parts = stream::iter(0..parts).then(move |_| async move {
                tokio::time::sleep(Duration::from_millis(5)).await;
                part(length)
            });
            StreamBody::new(parts)
        };
        let room = Semaphore::new(1 << 10);
        let read = whole(drips(1, usize::MAX), 1 << 20, &room, pace).await;
        assert_eq!(status(read), Some(StatusCode::REQUEST_TIMEOUT));
        assert_eq!(room.available_permits(), 1 << 10);
        // It takes longer than the time for a part of it.
        let (read, _) = whole(drips(1_000, 40), 1 << 20, &room, pace).await.expect("whole");
        assert_eq!(read.len(), 40_000);
    }

    #[tokio::test]
    async fn room_is_taken_by_what_came_and_not_by_what_was_announced() {
        let room = Semaphore::new(4);
        let stalled = |length: usize| StreamBody::new(stream::iter([part(length)]).chain(stream::pending()));
        // Up to four KiB each, and so far one.
        let mut reading: Vec<_> = (0..3).map(|_| Box::pin(whole(stalled(1_000), 4 * KIB, &room, PACE))).collect();
        for one in &mut reading {
            assert!(one.as_mut().now_or_never().is_none());
        }
        assert_eq!(room.available_permits(), 1);
        let too_much = whole(stalled(2 * KIB), 4 * KIB, &room, PACE).await;
        assert!(matches!(too_much, Err(BodyError::NoRoom)));
        drop(reading);
        assert_eq!(room.available_permits(), 4);
    }
}
