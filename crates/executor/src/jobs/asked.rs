//! Wishes of a request about asynchronous serving, in its headers.
//!
//! `Prefer: respond-async` and `wait=SECONDS` are RFC 7240's; `Idempotency-Key` is of the IETF draft of that name;
//! `Berth-Priority` and `Berth-Callback` are Berth's own.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, header};
use url::Url;

use super::job::{JobId, Priority};

pub(crate) const PREFER: HeaderName = HeaderName::from_static("prefer");
pub(crate) const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");
pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const PRIORITY: HeaderName = HeaderName::from_static("berth-priority");
const CALLBACK: HeaderName = HeaderName::from_static("berth-callback");

/// The most bytes of an idempotency key: a UUID or a hash in hexadecimal digits fits several times; keys are kept as
/// long as their jobs.
const LONGEST_KEY: usize = 255;

/// The most bytes of a callback's URL: many servers and proxies take no longer ones.
const LONGEST_URL: usize = 2_048;

/// The longest wait for a result that one request may ask for: proxies and load balancers commonly end a silent
/// connection after a minute.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Wishes about one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wishes {
    pub(crate) priority: Priority,
    pub(crate) key: Option<String>,
    pub(crate) callback: Option<String>,
}

impl Wishes {
    /// Reads them. `allowed`: where callbacks may go.
    ///
    /// # Errors
    /// The reason why a header cannot be followed.
    pub(crate) fn read(headers: &HeaderMap, allowed: &[Url]) -> Result<Self, String> {
        let priority = match text(headers, &PRIORITY)? {
            None => Priority::default(),
            Some(text) => {
                Priority::parse(text).ok_or_else(|| format!("Berth-Priority is {text:?}: it is high, normal or low"))?
            }
        };
        let key = text(headers, &IDEMPOTENCY_KEY)?;
        if key.is_some_and(|key| key.is_empty() || key.len() > LONGEST_KEY) {
            return Err(format!("Idempotency-Key is empty or longer than {LONGEST_KEY} bytes"));
        }
        let callback = text(headers, &CALLBACK)?;
        if let Some(callback) = callback
            && !is_allowed(callback, allowed)
        {
            let remedy = "ask the operator to list its address in async.callbacks.allow";
            return Err(format!("Berth-Callback names an address to which no answers are sent: {remedy}"));
        }
        Ok(Self { priority, key: key.map(str::to_owned), callback: callback.map(str::to_owned) })
    }
}

/// Leaves in the headers what the model server shall see: a key by which it can know a job that it has run already.
pub(crate) fn settle(headers: &mut HeaderMap, id: &JobId) {
    for name in
        [PREFER, PRIORITY, CALLBACK, header::CONNECTION, header::TRANSFER_ENCODING, header::EXPECT, header::UPGRADE]
    {
        headers.remove(name);
    }
    if let (false, Ok(id)) = (headers.contains_key(IDEMPOTENCY_KEY), HeaderValue::from_str(id.as_str())) {
        headers.insert(IDEMPOTENCY_KEY, id);
    }
}

/// True if the sender wants no answer now.
pub(crate) fn prefers_async(headers: &HeaderMap) -> bool {
    preferences(headers).any(|(name, _)| name.eq_ignore_ascii_case("respond-async"))
}

/// Time that the sender will wait for a result.
pub(crate) fn wait(headers: &HeaderMap) -> Option<Duration> {
    let (_, seconds) = preferences(headers).find(|(name, _)| name.eq_ignore_ascii_case("wait"))?;
    let seconds = seconds.trim_matches('"').parse().ok()?;
    Some(Duration::from_secs(seconds).min(LONGEST_WAIT))
}

fn preferences(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    let values = headers.get_all(PREFER).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|preference| {
        let preference = preference.split(';').next().unwrap_or_default().trim();
        let (name, value) = preference.split_once('=').unwrap_or((preference, ""));
        (name.trim(), value.trim())
    })
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, String> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    match (value.to_str(), values.next()) {
        (Ok(text), None) => Ok(Some(text.trim())),
        _ => Err(format!("the header {name} is there twice, or is not visible ASCII")),
    }
}

/// True if a URL has the origin of an allowed one and lies below its path.
fn is_allowed(text: &str, allowed: &[Url]) -> bool {
    let Ok(url) = Url::parse(text) else { return false };
    let plain = text.len() <= LONGEST_URL && url.username().is_empty() && url.password().is_none();
    plain
        && allowed.iter().any(|allowed| {
            let folder = allowed.path().trim_end_matches('/');
            let below = url.path().strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
            url.origin().is_tuple() && url.origin() == allowed.origin() && below
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{mutator, template::PathTemplate};

    /// A template, a path, then a header in each line: a short fuzz run, the same each time (`cargo xtask fuzz` for a long one).
    /// What is taken keeps its bounds, callbacks go to the allowed places alone, and the model sees none of the wishes.
    #[test]
    fn fuzz_jobs() {
        let allowed = [Url::parse("https://hooks.example/berth").expect("a URL")];
        let id = JobId::parse(&"0".repeat(32)).expect("an id");
        mutator::run("jobs", |data| {
            let text = String::from_utf8_lossy(data);
            let mut lines = text.lines();
            let (template, path) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
            if let Ok(read) = PathTemplate::parse(template) {
                let fits = read.matches(path);
                assert!(read.as_str() == template && (!fits || path.starts_with('/')), "{template} {path}");
                assert!(template.contains('{') || fits == (path == template), "{template} {path}");
            }
            let mut headers = HeaderMap::new();
            for (name, value) in lines.filter_map(|line| line.split_once(':')) {
                if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                    headers.append(name, value);
                }
            }
            assert!(wait(&headers).is_none_or(|wait| wait <= LONGEST_WAIT));
            if let Ok(wishes) = Wishes::read(&headers, &allowed) {
                assert!(wishes.key.is_none_or(|key| (1..=LONGEST_KEY).contains(&key.len())));
                let goes = wishes.callback.map(|callback| Url::parse(&callback).expect("a URL"));
                let fits = |url: Url| {
                    let below = url.path() == "/berth" || url.path().starts_with("/berth/");
                    below && (url.scheme(), url.host_str(), url.port()) == ("https", Some("hooks.example"), None)
                };
                assert!(goes.is_none_or(fits));
            }
            settle(&mut headers, &id);
            assert!(!headers.contains_key(PREFER) && !headers.contains_key(CALLBACK));
            assert!(headers.contains_key(IDEMPOTENCY_KEY));
        });
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair =
            |(name, value): &(&'static str, &str)| (HeaderName::from_static(name), value.parse().expect("a value"));
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn preferences_are_read() {
        for (value, is_async, seconds) in [
            ("respond-async", true, None),
            ("Respond-Async, wait=10", true, Some(10)),
            ("wait=5; foo=bar , return=minimal", false, Some(5)),
            ("wait=\"7\"", false, Some(7)),
            ("wait=1000000", false, Some(60)),
            ("wait=-1", false, None),
            ("respond-asynchronously", false, None),
            ("", false, None),
        ] {
            let headers = headers(&[("prefer", value)]);
            assert_eq!(
                (prefers_async(&headers), wait(&headers).map(|wait| wait.as_secs())),
                (is_async, seconds),
                "{value}"
            );
        }
    }

    #[test]
    fn wishes_are_read_or_refused() {
        let allowed = [Url::parse("https://hooks.example/berth").expect("a URL")];
        let read = |pairs: &[_]| Wishes::read(&headers(pairs), &allowed);
        let all = [
            ("berth-priority", "low"),
            ("idempotency-key", "a 1"),
            ("berth-callback", "https://hooks.example/berth/1?x"),
        ];
        let expected = Wishes {
            priority: Priority::Low,
            key: Some("a 1".to_owned()),
            callback: Some("https://hooks.example/berth/1?x".to_owned()),
        };
        assert_eq!(read(&all), Ok(expected));
        assert_eq!(read(&[]).map(|wishes| wishes.priority), Ok(Priority::Normal));
        for (name, value, part) in [
            ("berth-priority", "urgent", "high, normal or low"),
            ("idempotency-key", "", "empty or longer"),
            ("berth-callback", "https://hooks.example.evil/berth/", "no answers are sent"),
            ("berth-callback", "https://hooks.example/berthold", "no answers are sent"),
            ("berth-callback", "https://hooks.example/berth/../admin", "no answers are sent"),
            ("berth-callback", "http://hooks.example/berth/", "no answers are sent"),
            ("berth-callback", "https://hooks.example:8443/berth/", "no answers are sent"),
            ("berth-callback", "https://a:b@hooks.example/berth/", "no answers are sent"),
            ("berth-callback", "file:///etc/passwd", "no answers are sent"),
        ] {
            let error = read(&[(name, value)]).expect_err(value);
            assert!(error.contains(part), "{value}: {error}");
        }
    }

    #[test]
    fn the_model_sees_a_key_and_no_wishes() {
        let id = JobId::generate();
        let mut sent = headers(&[("prefer", "respond-async"), ("berth-priority", "low"), ("x-other", "1")]);
        settle(&mut sent, &id);
        assert_eq!(sent, headers(&[("x-other", "1"), ("idempotency-key", id.as_str())]));
        let mut sent = headers(&[("idempotency-key", "mine")]);
        settle(&mut sent, &id);
        assert_eq!(sent[IDEMPOTENCY_KEY], "mine");
    }
}
