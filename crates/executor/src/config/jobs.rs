//! The section `async` of a port.

use std::{path::PathBuf, time::Duration};

use serde::Deserialize;
use url::Url;

use super::{
    Size, Span, Template,
    broker::{self, RawLogin, RawTls},
};
use crate::jobs::{Bounds, CallbackSettings, JobSettings, LEASE, QueueSettings, RetryPolicy};

/// Longest pause between two attempts: a server that is back gets its jobs within five minutes.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// The path below which jobs are asked for, where nothing else is said.
pub const JOBS_PREFIX: &str = "/jobs";

/// Memory for bodies where nothing else is said: a sidecar is small.
const MEMORY: u64 = 256 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RawJobs {
    paths: Vec<Template>,
    #[serde(default)]
    always: bool,
    prefix: Option<String>,
    queue: Option<RawQueue>,
    concurrency: Option<usize>,
    max_jobs: Option<usize>,
    max_body: Option<Size>,
    memory: Option<Size>,
    keep: Option<Span>,
    attempts: Option<u32>,
    pause: Option<Span>,
    #[serde(default)]
    callbacks: RawCallbacks,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RawQueue {
    redis: Option<String>,
    nats: Option<String>,
    key: String,
    replicas: Option<usize>,
    password_file: Option<PathBuf>,
    token_file: Option<PathBuf>,
    credentials_file: Option<PathBuf>,
    tls: Option<RawTls>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RawCallbacks {
    #[serde(default)]
    allow: Vec<String>,
    secret_file: Option<PathBuf>,
    timeout: Option<Span>,
    attempts: Option<u32>,
    tls: Option<RawTls>,
}

impl RawJobs {
    pub(super) fn checked(self) -> Result<JobSettings, String> {
        if self.paths.is_empty() {
            return Err("async.paths is empty: name the paths whose requests may be queued".to_owned());
        }
        let prefix = self.prefix.unwrap_or_else(|| JOBS_PREFIX.to_owned());
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.');
        if prefix.len() < 2 || !prefix.starts_with('/') || prefix.ends_with('/') || !prefix.chars().all(plain) {
            return Err(format!("async.prefix is {prefix:?}: it begins with a slash and ends without one, as /jobs"));
        }
        let (runs, calls) = (self.attempts.unwrap_or(10), self.callbacks.attempts.unwrap_or(10));
        if !(1..=50).contains(&runs) || !(1..=50).contains(&calls) {
            return Err("async.attempts and async.callbacks.attempts are from 1 to 50".to_owned());
        }
        let concurrency = above_zero(self.concurrency, 4, "async.concurrency")?;
        let most = above_zero(self.max_jobs, 10_000, "async.maxJobs")?;
        let first = span(self.pause, 1, "async.pause")?;
        let patience = |attempts| RetryPolicy { attempts, first, longest: LONGEST_PAUSE.max(first) };
        let keep = span(self.keep, 24 * 3_600, "async.keep")?;
        let max_body = self.max_body.map_or(16 << 20, |size| size.0);
        let memory = self.memory.map_or(MEMORY.max(max_body.saturating_mul(2)), |size| size.0);
        if memory < max_body {
            return Err(
                "async.memory is less than async.maxBody: a request of that size could never be taken".to_owned()
            );
        }
        Ok(JobSettings {
            paths: self.paths.into_iter().map(|path| path.0).collect(),
            always: self.always,
            prefix,
            queue: self.queue.map_or(Ok(QueueSettings::Memory), RawQueue::checked)?,
            bounds: Bounds { most, memory, keep, lease: LEASE },
            concurrency,
            max_body: usize::try_from(max_body)
                .map_err(|_| "async.maxBody is too large for this machine".to_owned())?,
            runs: patience(runs),
            callbacks: self.callbacks.checked(patience(calls))?,
        })
    }
}

impl RawCallbacks {
    fn checked(self, patience: RetryPolicy) -> Result<CallbackSettings, String> {
        const PLACE: &str = "async.callbacks.tls";
        let allow: Vec<Url> = self.allow.iter().map(|url| receiver(url)).collect::<Result<_, _>>()?;
        if self.tls.is_some() && !allow.iter().any(|url| url.scheme() == "https") {
            return Err(format!("{PLACE}: no address of async.callbacks.allow begins with https://"));
        }
        Ok(CallbackSettings {
            allow,
            secret_file: self.secret_file,
            timeout: span(self.timeout, 10, "async.callbacks.timeout")?,
            patience,
            tls: self.tls.map(|tls| tls.checked(PLACE)).transpose()?,
        })
    }
}

impl RawQueue {
    fn checked(self) -> Result<QueueSettings, String> {
        const PLACE: &str = "async.queue";
        let Self { redis, nats, key, replicas, password_file, token_file, credentials_file, tls } = self;
        let login = RawLogin { password: password_file, token: token_file, credentials: credentials_file };
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let is_key =
            |also: &[char]| (1..=128).contains(&key.len()) && key.chars().all(|c| plain(c) || also.contains(&c));
        match (redis, nats) {
            (Some(_), Some(_)) | (None, None) => {
                Err(format!("{PLACE} names neither redis nor nats, or both: a queue is in one of them"))
            }
            (Some(_), None) if replicas.is_some() => Err(format!("{PLACE}.replicas is for NATS")),
            (Some(_), None) if !is_key(&['.', '/']) => {
                Err(format!("{PLACE}.key is {key:?}: it is 1 to 128 letters, digits, - _ . and /"))
            }
            (Some(url), None) => Ok(QueueSettings::Redis { broker: broker::redis(url, login, tls, PLACE)?, key }),
            (None, Some(_)) if !is_key(&[]) => {
                Err(format!("{PLACE}.key is {key:?}: for NATS it is 1 to 128 letters, digits, - and _"))
            }
            (None, Some(urls)) => {
                let replicas = replicas.unwrap_or(1);
                if !(1..=5).contains(&replicas) {
                    return Err(format!("{PLACE}.replicas is {replicas}: it is from 1 to 5"));
                }
                Ok(QueueSettings::Nats { broker: broker::nats(&urls, login, tls, PLACE)?, key, replicas })
            }
        }
    }
}

fn span(span: Option<Span>, seconds: u64, name: &str) -> Result<Duration, String> {
    match span.map(|span| span.0) {
        Some(Duration::ZERO) => Err(format!("{name} is zero")),
        span => Ok(span.unwrap_or(Duration::from_secs(seconds))),
    }
}

fn above_zero(value: Option<usize>, or: usize, name: &str) -> Result<usize, String> {
    match value {
        Some(0) => Err(format!("{name} is zero: no job could ever run")),
        value => Ok(value.unwrap_or(or)),
    }
}

fn receiver(text: &str) -> Result<Url, String> {
    let wrong = |why: &str| format!("async.callbacks.allow names {text:?}: {why}");
    let url = Url::parse(text).map_err(|error| wrong(&error.to_string()))?;
    match url.scheme() {
        "http" | "https" if url.query().is_none() && url.fragment().is_none() => Ok(url),
        _ => Err(wrong("it is a URL of http or https without a query, such as https://hooks.example/berth")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::{Config, jobs::QueueSettings};

    fn read(section: &str) -> Result<Config, String> {
        let text = format!("ports: [{{name: a, listen: 8081, upstream: 8080, async: {section}}}]");
        Config::parse(Path::new("executor.yaml"), &text).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_left_out_has_a_value() {
        let config = read("{paths: [/predict]}").expect("it is right");
        let jobs = config.ports[0].jobs.as_ref().expect("it has the section");
        assert_eq!((jobs.prefix.as_str(), &jobs.queue, jobs.concurrency), ("/jobs", &QueueSettings::Memory, 4));
        assert_eq!((jobs.runs.attempts, jobs.max_body, jobs.always), (10, 16 << 20, false));
    }

    #[test]
    fn what_is_wrong_is_told() {
        for (section, expected) in [
            ("{}", "missing field `paths`"),
            ("{paths: []}", "async.paths is empty"),
            ("{paths: [/a], prefix: jobs}", "async.prefix"),
            ("{paths: [/a], attempts: 0}", "from 1 to 50"),
            ("{paths: [/a], concurrency: 0}", "async.concurrency is zero"),
            ("{paths: [/a], memory: 1MiB}", "async.memory is less than async.maxBody"),
            ("{paths: [/a], keep: 0s}", "async.keep is zero"),
            ("{paths: [/a], queue: {redis: 'redis://a:6379'}}", "missing field `key`"),
            ("{paths: [/a], queue: {redis: 'redis://:secret@a', key: k}}", "passwordFile"),
            ("{paths: [/a], queue: {redis: 'redis://a', key: k, tls: {}}}", "begins with rediss://"),
            ("{paths: [/a], queue: {redis: 'nats://a', key: k}}", "scheme \"nats\""),
            ("{paths: [/a], queue: {redis: 'redis://a', nats: 'nats://a', key: k}}", "neither redis nor nats, or both"),
            ("{paths: [/a], queue: {redis: 'redis://a', key: k, replicas: 3}}", "is for NATS"),
            ("{paths: [/a], queue: {nats: 'redis://a', key: k}}", "scheme \"redis\""),
            ("{paths: [/a], queue: {nats: 'nats://a', key: a.b}}", "letters, digits, - and _"),
            ("{paths: [/a], queue: {nats: 'nats://a', key: k, replicas: 9}}", "from 1 to 5"),
            ("{paths: [/a], queue: {nats: 'nats://me@a', key: k}}", "belong together"),
            ("{paths: [/a], queue: {nats: 'tls://a', key: k, tls: {key: a}}}", "certificate and key belong together"),
            ("{paths: [/a], queue: {nats: 'nats://me:secret@a', key: k}}", "passwordFile"),
            ("{paths: [/a], queue: {nats: 'nats://a', key: k, tokenFile: a, credentialsFile: b}}", "give one of"),
            ("{paths: [/a], queue: {redis: 'redis://a', key: 'k}'}}", "async.queue.key"),
            ("{paths: [/a], callbacks: {allow: [hooks]}}", "async.callbacks.allow"),
            ("{paths: [/a], callbacks: {allow: ['ftp://hooks/']}}", "http or https"),
            ("{paths: [/a], callbacks: {allow: ['http://hooks/'], tls: {ca: a}}}", "begins with https://"),
            (
                "{paths: [/a], callbacks: {allow: ['https://hooks/'], tls: {key: a}}}",
                "certificate and key belong together",
            ),
        ] {
            let error = read(section).expect_err(section);
            assert!(error.contains(expected), "{section}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
