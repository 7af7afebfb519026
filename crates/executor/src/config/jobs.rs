//! The section `async` of a port.

use std::{path::PathBuf, time::Duration};

use serde::Deserialize;
use url::Url;

use super::{Size, Span, Template};
use crate::jobs::{Bounds, CallbackSettings, JobSettings, LEASE, Patience, QueueSettings};

/// Longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

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
    redis: String,
    key: String,
    password_file: Option<PathBuf>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RawCallbacks {
    #[serde(default)]
    allow: Vec<String>,
    secret_file: Option<PathBuf>,
    timeout: Option<Span>,
    attempts: Option<u32>,
}

impl RawJobs {
    pub(super) fn checked(self) -> Result<JobSettings, String> {
        if self.paths.is_empty() {
            return Err("async.paths is empty: name the paths whose requests may be queued".to_owned());
        }
        let prefix = self.prefix.unwrap_or_else(|| "/jobs".to_owned());
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
        let span = |span: Option<Span>, seconds, name: &str| match span.map(|span| span.0) {
            Some(Duration::ZERO) => Err(format!("{name} is zero")),
            span => Ok(span.unwrap_or(Duration::from_secs(seconds))),
        };
        let first = span(self.pause, 1, "async.pause")?;
        let patience = |attempts| Patience { attempts, first, longest: LONGEST_PAUSE.max(first) };
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
            callbacks: CallbackSettings {
                allow: self.callbacks.allow.iter().map(|url| receiver(url)).collect::<Result<_, _>>()?,
                secret_file: self.callbacks.secret_file,
                timeout: span(self.callbacks.timeout, 10, "async.callbacks.timeout")?,
                patience: patience(calls),
            },
        })
    }
}

impl RawQueue {
    fn checked(self) -> Result<QueueSettings, String> {
        let Self { redis, key, password_file } = self;
        let url = Url::parse(&redis).map_err(|error| format!("async.queue.redis is no URL: {error}"))?;
        match url.scheme() {
            "redis" | "redis+unix" | "unix" => {}
            "rediss" => {
                return Err(
                    "async.queue.redis: rediss is not supported; reach Redis inside the cluster or by a tunnel"
                        .to_owned(),
                );
            }
            scheme => return Err(format!("async.queue.redis has the scheme {scheme:?}; it is redis://HOST:PORT")),
        }
        if url.password().is_some() {
            return Err(
                "async.queue.redis holds a password: put it into a file of a Secret, and name that as passwordFile"
                    .to_owned(),
            );
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
        if key.is_empty() || key.len() > 128 || !key.chars().all(plain) {
            return Err(format!("async.queue.key is {key:?}: it is 1 to 128 letters, digits, - _ . and /"));
        }
        Ok(QueueSettings::Redis { url: redis, key, password_file })
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
            ("{paths: [/a], queue: {redis: 'rediss://a', key: k}}", "rediss is not supported"),
            ("{paths: [/a], queue: {redis: 'nats://a', key: k}}", "scheme \"nats\""),
            ("{paths: [/a], queue: {redis: 'redis://a', key: 'k}'}}", "async.queue.key"),
            ("{paths: [/a], callbacks: {allow: [hooks]}}", "async.callbacks.allow"),
            ("{paths: [/a], callbacks: {allow: ['ftp://hooks/']}}", "http or https"),
        ] {
            let error = read(section).expect_err(section);
            assert!(error.contains(expected), "{section}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
