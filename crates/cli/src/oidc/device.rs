//! The code that a person enters elsewhere, and the wait until that has been done (RFC 8628, sections 3.2 to 3.5).

use std::{
    io::{IsTerminal as _, Write as _},
    time::Duration,
};

use serde::Deserialize;
use tokio::time::{Instant, sleep};
use url::Url;

use super::issuer::{Issuer, IssuerError, Refusal, Tokens, shown};
use crate::{failure::Failure, terminal};

/// The grant, by its name.
const GRANT: &str = "urn:ietf:params:oauth:grant-type:device_code";

/// Between two polls: unless the issuer says, at least, and at most.
const INTERVAL: u64 = 5;
const MIN_INTERVAL: Duration = Duration::from_secs(1);
const MAX_INTERVAL: Duration = Duration::from_secs(60);

/// Added for good when the issuer finds that polls come too often (RFC 8628).
const SLOW_DOWN_STEP: Duration = Duration::from_secs(5);

/// The longest that anybody waits for a person.
const MAX_LOGIN_SECONDS: u64 = 1_800;

/// The answer of the device authorization endpoint.
#[derive(Deserialize)]
struct Code {
    device_code: String,
    user_code: String,
    #[serde(alias = "verification_url")]
    verification_uri: String,
    verification_uri_complete: Option<String>,
    expires_in: u64,
    interval: Option<u64>,
}

/// The step after a poll that brought no tokens.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// Poll again after the interval.
    Wait(Duration),
    /// Give up, for this reason.
    Over(String),
}

/// Decides when to poll.
struct Poll {
    interval: Duration,
}

impl Poll {
    fn new(interval: Option<u64>) -> Self {
        Self { interval: Duration::from_secs(interval.unwrap_or(INTERVAL)).clamp(MIN_INTERVAL, MAX_INTERVAL) }
    }

    fn on(&mut self, trouble: &IssuerError) -> Next {
        match trouble {
            IssuerError::Refused(Refusal { error, .. }) if error == "authorization_pending" => {}
            IssuerError::Refused(Refusal { error, .. }) if error == "slow_down" => self.interval += SLOW_DOWN_STEP,
            IssuerError::Refused(refusal) => {
                return Next::Over(match refusal.error.as_str() {
                    "access_denied" => "the login was refused at the issuer".to_owned(),
                    "expired_token" => "the code has expired: log in again".to_owned(),
                    _ => format!("the issuer says {}", refusal.text()),
                });
            }
            IssuerError::Unreadable(why) => return Next::Over(why.clone()),
            IssuerError::Away(_) => self.interval *= 2,
        }
        self.interval = self.interval.min(MAX_INTERVAL);
        Next::Wait(self.interval)
    }
}

/// Shows a person where to go with which code, and waits until the issuer gives tokens.
///
/// # Errors
/// The issuer has no such grant or gives none, the person refused, or the code expired.
pub(super) async fn log_in(issuer: &Issuer, scope: &str) -> Result<Tokens, Failure> {
    let Some(endpoint) = &issuer.device else {
        let message = "the issuer has no device_authorization_endpoint: get a token by its own tools and give it with --token-file -";
        return Err(Failure::Failed(message.to_owned()));
    };
    let code: Code = match issuer.ask(endpoint, &[("scope", scope)]).await {
        Ok(code) => code,
        Err(trouble) => return Err(trouble.failure("the issuer gives no code for a login")),
    };
    let lasts = Duration::from_secs(code.expires_in.min(MAX_LOGIN_SECONDS));
    let (until, mut poll) = (Instant::now() + lasts, Poll::new(code.interval));
    told(&code, lasts)?;
    let mut wait = poll.interval;
    let mut last = None;
    while Instant::now() + wait <= until {
        sleep(wait).await;
        let fields = [("grant_type", GRANT), ("device_code", code.device_code.as_str())];
        let trouble = match issuer.ask::<Tokens>(&issuer.token, &fields).await {
            Ok(tokens) => return Ok(tokens),
            Err(trouble) => trouble,
        };
        wait = match poll.on(&trouble) {
            Next::Wait(wait) => wait,
            Next::Over(why) => return Err(Failure::Failed(why)),
        };
        last = match trouble {
            IssuerError::Away(why) => Some(why),
            IssuerError::Refused(_) | IssuerError::Unreadable(_) => None,
        };
    }
    let last = last.map(|why| format!(" (the issuer could not be asked last: {why})")).unwrap_or_default();
    Err(Failure::TimedOut(format!("nobody agreed to the login in time{last}: log in again")))
}

/// Says where to go. Addresses are parsed, and the code has no control characters: both are the issuer's words.
fn told(code: &Code, lasts: Duration) -> Result<(), Failure> {
    let page = |text: &str| {
        let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "https" | "http"));
        url.ok_or_else(|| Failure::Failed("the issuer names no page for the code".to_owned()))
    };
    let complete = code.verification_uri_complete.as_deref().map(page).transpose()?;
    let mut text = format!(
        "Open {} in a browser on any machine, and enter the code\n\n    {}\n\n",
        page(&code.verification_uri)?,
        shown(&code.user_code)
    );
    if let Some(complete) = complete {
        text.push_str(&format!("or open {complete}\n\n"));
    }
    let kind = if std::io::stderr().is_terminal() { " (Ctrl-C gives up)" } else { "" };
    text.push_str(&format!("Waiting for {} at most{kind} …\n", terminal::short(lasts)));
    Ok(std::io::stderr().write_all(text.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(troubles: &[IssuerError]) -> Next {
        let mut poll = Poll::new(Some(5));
        troubles.iter().map(|trouble| poll.on(trouble)).last().expect("one at least")
    }

    fn refused(error: &str) -> IssuerError {
        IssuerError::Refused(Refusal::of(error))
    }

    #[test]
    fn polls_come_less_often_where_the_issuer_says_so_or_cannot_be_asked() {
        let seconds = |seconds| Next::Wait(Duration::from_secs(seconds));
        assert_eq!(after(&[refused("authorization_pending")]), seconds(5));
        assert_eq!(after(&[refused("slow_down")]), seconds(10));
        assert_eq!(after(&[refused("slow_down"), refused("authorization_pending"), refused("slow_down")]), seconds(15));
        assert_eq!(after(&[IssuerError::Away("503".to_owned()), refused("authorization_pending")]), seconds(10));
        let storm: Vec<_> = (0..100).map(|_| IssuerError::Away("gone".to_owned())).collect();
        assert_eq!(after(&storm), seconds(60));
    }

    #[test]
    fn a_refusal_ends_the_wait() {
        for error in ["access_denied", "expired_token", "invalid_client", "invalid_grant"] {
            assert!(matches!(after(&[refused(error)]), Next::Over(_)), "{error}");
        }
        assert_eq!(after(&[IssuerError::Unreadable("no JSON".to_owned())]), Next::Over("no JSON".to_owned()));
    }

    #[test]
    fn an_interval_has_bounds() {
        for (said, seconds) in [(None, 5), (Some(0), 1), (Some(7), 7), (Some(u64::MAX), 60)] {
            assert_eq!(Poll::new(said).interval, Duration::from_secs(seconds));
        }
    }
}
