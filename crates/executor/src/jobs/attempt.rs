//! The decision after an attempt: ended, tried again, or given up.

use std::time::Duration;

use http::StatusCode;

use super::{
    job::Answer,
    queue::{Completion, Kind},
};

/// Number of a task's attempts, and the pauses between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RetryPolicy {
    /// Attempts in all.
    pub(crate) attempts: u32,
    /// Pause after the first attempt. Each pause is twice the one before.
    pub(crate) first: Duration,
    /// Longest pause.
    pub(crate) longest: Duration,
}

/// Outcome of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Answered(Answer),
    /// Nobody answered, and why.
    Failed(String),
    /// Nothing that another attempt could change.
    Hopeless(String),
}

/// Next step of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Next {
    End(Completion),
    Again { after: Duration, why: String },
}

impl RetryPolicy {
    /// The decision about a task after its `attempt`th attempt.
    pub(crate) fn next(self, kind: Kind, attempt: u32, outcome: Outcome) -> Next {
        let (why, answer) = match outcome {
            Outcome::Hopeless(why) => return Next::End(Completion::Dead { why, answer: None }),
            Outcome::Failed(why) => (why, None),
            Outcome::Answered(answer) => match (kind, is_passing(answer.status())) {
                (Kind::Run, false) => return Next::End(Completion::Answered(answer)),
                (Kind::Callback, _) if answer.status().is_success() => return Next::End(Completion::Delivered),
                // The receiver wants none of it (RFC 9110, 15.5.11).
                (Kind::Callback, _) if answer.status() == StatusCode::GONE => {
                    return Next::End(Completion::Dead {
                        why: "the receiver answered 410: it is gone".to_owned(),
                        answer: None,
                    });
                }
                (Kind::Run, true) => (format!("the model server answered {}", answer.status()), Some(answer)),
                (Kind::Callback, _) => (format!("the receiver answered {}", answer.status()), None),
            },
        };
        if attempt >= self.attempts {
            return Next::End(Completion::Dead { why, answer });
        }
        Next::Again { after: self.pause(attempt), why }
    }

    fn pause(self, attempt: u32) -> Duration {
        let doublings = attempt.saturating_sub(1).min(31);
        self.first.saturating_mul(1 << doublings).min(self.longest)
    }
}

/// True for an answer that says that it may be another one later. All others are what the model has to say.
fn is_passing(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::HeaderMap;

    use super::*;

    const PATIENCE: RetryPolicy =
        RetryPolicy { attempts: 3, first: Duration::from_secs(1), longest: Duration::from_secs(10) };

    fn answered(status: u16) -> Outcome {
        let status = StatusCode::from_u16(status).expect("a status");
        Outcome::Answered(Answer::new(status, &HeaderMap::new(), Bytes::new()))
    }

    fn word(next: &Next) -> &'static str {
        match next {
            Next::End(Completion::Answered(_)) => "answered",
            Next::End(Completion::Delivered) => "delivered",
            Next::End(Completion::Dead { .. }) => "dead",
            Next::Again { .. } => "again",
        }
    }

    #[test]
    fn what_an_attempt_leads_to() {
        for (kind, attempt, outcome, expected) in [
            (Kind::Run, 1, answered(200), "answered"),
            (Kind::Run, 1, answered(400), "answered"),
            (Kind::Run, 1, answered(500), "answered"),
            (Kind::Run, 1, answered(503), "again"),
            (Kind::Run, 2, answered(429), "again"),
            (Kind::Run, 3, answered(503), "dead"),
            (Kind::Run, 1, Outcome::Failed("gone".into()), "again"),
            (Kind::Run, 3, Outcome::Failed("gone".into()), "dead"),
            (Kind::Run, 1, Outcome::Hopeless("not readable".into()), "dead"),
            (Kind::Callback, 1, answered(204), "delivered"),
            (Kind::Callback, 1, answered(404), "again"),
            (Kind::Callback, 1, answered(302), "again"),
            (Kind::Callback, 1, answered(410), "dead"),
            (Kind::Callback, 3, answered(500), "dead"),
        ] {
            let next = PATIENCE.next(kind, attempt, outcome.clone());
            assert_eq!(word(&next), expected, "{kind:?} {attempt} {outcome:?}");
        }
    }

    #[test]
    fn a_dead_run_keeps_the_last_answer() {
        let Next::End(Completion::Dead { why, answer }) = PATIENCE.next(Kind::Run, 3, answered(503)) else {
            panic!("it is dead")
        };
        assert_eq!(why, "the model server answered 503 Service Unavailable");
        assert_eq!(answer.map(|answer| answer.status()), Some(StatusCode::SERVICE_UNAVAILABLE));
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        let seconds: Vec<_> = (1..=6).map(|attempt| PATIENCE.pause(attempt).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 10, 10]);
        assert_eq!(PATIENCE.pause(u32::MAX).as_secs(), 10);
    }
}
