//! The section `log` of a port.

use std::path::PathBuf;

use serde::Deserialize;
use url::Url;

use super::{
    Size, Template,
    broker::{self, RawLogin, RawTls},
};
use crate::{
    broker::Login,
    log::{KafkaSettings, LogSettings, Mechanism, Redaction, SinkSettings},
};

/// Most bytes of a body: brokers take messages of a megabyte.
const MOST_OF_A_BODY: u64 = 128 << 10;

/// Memory where nothing else is said.
const MEMORY: u64 = 16 << 20;

/// Size of a file, and the number of older ones, where nothing else is said.
const FILE: u64 = 64 << 20;
const KEEP: u32 = 3;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RawLog {
    sample: Option<f64>,
    #[serde(default)]
    paths: Vec<Template>,
    bodies: Option<Size>,
    #[serde(default)]
    redact: RawRedact,
    memory: Option<Size>,
    to: RawSink,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRedact {
    #[serde(default)]
    headers: Vec<String>,
    #[serde(default)]
    fields: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RawSink {
    file: Option<PathBuf>,
    max_size: Option<Size>,
    keep: Option<u32>,
    http: Option<String>,
    nats: Option<String>,
    subject: Option<String>,
    kafka: Option<String>,
    topic: Option<String>,
    user: Option<String>,
    mechanism: Option<RawMechanism>,
    password_file: Option<PathBuf>,
    token_file: Option<PathBuf>,
    credentials_file: Option<PathBuf>,
    tls: Option<RawTls>,
}

#[derive(Clone, Copy, Deserialize)]
enum RawMechanism {
    #[serde(rename = "plain")]
    Plain,
    #[serde(rename = "scram-sha-256")]
    ScramSha256,
    #[serde(rename = "scram-sha-512")]
    ScramSha512,
}

impl RawLog {
    pub(super) fn checked(self) -> Result<LogSettings, String> {
        let sample = self.sample.unwrap_or(1.0);
        if !(sample > 0.0 && sample <= 1.0) {
            return Err(format!("log.sample is {sample}: it is above 0 and at most 1"));
        }
        let (bodies, memory) = (self.bodies.map_or(0, |size| size.0), self.memory.map_or(MEMORY, |size| size.0));
        if bodies > MOST_OF_A_BODY {
            return Err(format!("log.bodies is {bodies} bytes: it is at most {MOST_OF_A_BODY}"));
        }
        if memory < 64 * 1_024 + 8 * bodies || memory > u64::from(u32::MAX) {
            return Err(format!("log.memory is {memory} bytes: it is from 64 KiB and 8 bodies to 4 GiB"));
        }
        let fields = self.redact.fields.into_iter().collect();
        let headers = self.redact.headers.iter().map(|name| name.to_ascii_lowercase()).collect();
        let size = |bytes: u64| usize::try_from(bytes).map_err(|error| error.to_string());
        Ok(LogSettings {
            sample,
            paths: self.paths.into_iter().map(|path| path.0).collect(),
            bodies: size(bodies)?,
            redaction: Redaction { headers, fields },
            memory: size(memory)?,
            sink: self.to.checked()?,
        })
    }
}

impl RawSink {
    fn checked(self) -> Result<SinkSettings, String> {
        const PLACE: &str = "log.to";
        let ways = [self.file.is_some(), self.http.is_some(), self.nats.is_some(), self.kafka.is_some()];
        if ways.into_iter().filter(|is| *is).count() != 1 {
            return Err(format!(
                "{PLACE} names none of file, http, nats and kafka, or several: lines go to one of them"
            ));
        }
        self.only_its_own(PLACE)?;
        let login = RawLogin {
            password: self.password_file,
            token: self.token_file.clone(),
            credentials: self.credentials_file,
        };
        if let Some(path) = self.file {
            let size = self.max_size.map_or(FILE, |size| size.0);
            if !path.is_absolute() || size < 1 << 20 {
                return Err(format!("{PLACE}.file is an absolute path, and maxSize at least 1MiB"));
            }
            return Ok(SinkSettings::File { path, size, keep: self.keep.unwrap_or(KEEP).min(100) });
        }
        if let Some(url) = self.http {
            let url = Url::parse(&url).map_err(|error| format!("{PLACE}.http is no URL: {error}"))?;
            if !matches!(url.scheme(), "http" | "https") || !url.username().is_empty() || url.password().is_some() {
                return Err(format!("{PLACE}.http is a URL of http or https without a user; tokenFile is for tokens"));
            }
            let tls = self.tls.map(|tls| tls.checked("log.to.tls")).transpose()?;
            return Ok(SinkSettings::Http { url, token_file: self.token_file, tls });
        }
        if let Some(urls) = self.nats {
            let subject = self.subject.ok_or_else(|| format!("{PLACE}.subject is missing: name where lines go"))?;
            let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '*' | '>');
            if subject.is_empty() || !subject.chars().all(plain) || subject.split('.').any(str::is_empty) {
                return Err(format!("{PLACE}.subject is {subject:?}: it is words with dots between them"));
            }
            return Ok(SinkSettings::Nats { broker: broker::nats(&urls, login, self.tls, PLACE)?, subject });
        }
        let servers: Vec<String> =
            self.kafka.unwrap_or_default().split(',').map(|server| server.trim().to_owned()).collect();
        let is_address = |server: &String| {
            server.parse::<http::uri::Authority>().is_ok_and(|server| server.port_u16().is_some_and(|port| port > 0))
                && !server.contains('@')
        };
        if !servers.iter().all(is_address) {
            return Err(format!("{PLACE}.kafka is HOST:PORT, or several with commas between them"));
        }
        let topic = self.topic.ok_or_else(|| format!("{PLACE}.topic is missing: name where lines go"))?;
        if topic.is_empty() || topic.len() > 249 {
            return Err(format!("{PLACE}.topic has 1 to 249 characters"));
        }
        if self.user.is_some() != login.password.is_some() {
            return Err(format!("{PLACE}: user and passwordFile belong together: give both, or none"));
        }
        let mechanism = match self.mechanism {
            None | Some(RawMechanism::Plain) => Mechanism::Plain,
            Some(RawMechanism::ScramSha256) => Mechanism::ScramSha256,
            Some(RawMechanism::ScramSha512) => Mechanism::ScramSha512,
        };
        let tls = self.tls.map(|tls| tls.checked("log.to.tls")).transpose()?;
        let login = Login { user: self.user, password_file: login.password, ..Login::default() };
        Ok(SinkSettings::Kafka(KafkaSettings { servers, topic, login, mechanism, tls }))
    }

    /// Refuses fields that another place would need.
    fn only_its_own(&self, place: &str) -> Result<(), String> {
        let (file, http, nats, kafka) =
            (self.file.is_some(), self.http.is_some(), self.nats.is_some(), self.kafka.is_some());
        let fields = [
            ("maxSize", self.max_size.is_some(), file),
            ("keep", self.keep.is_some(), file),
            ("subject", self.subject.is_some(), nats),
            ("topic", self.topic.is_some(), kafka),
            ("user", self.user.is_some(), kafka),
            ("mechanism", self.mechanism.is_some(), kafka),
            ("passwordFile", self.password_file.is_some(), nats || kafka),
            ("tokenFile", self.token_file.is_some(), nats || http),
            ("credentialsFile", self.credentials_file.is_some(), nats),
            ("tls", self.tls.is_some(), http || nats || kafka),
        ];
        match fields.into_iter().find(|(_, is, fits)| *is && !*fits) {
            None => Ok(()),
            Some((name, ..)) => Err(format!("{place}.{name} does not belong to this kind of place")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::{Config, log::SinkSettings};

    fn read(section: &str) -> Result<Config, String> {
        let text = format!("ports: [{{name: a, listen: 8081, upstream: 8080, log: {section}}}]");
        Config::parse(Path::new("executor.yaml"), &text).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_left_out_has_a_value() {
        let config = read("{to: {file: /var/log/a.jsonl}}").expect("it is right");
        let log = config.ports[0].log.as_ref().expect("it has the section");
        assert_eq!((log.sample, log.bodies, log.memory), (1.0, 0, 16 << 20));
        assert!(matches!(log.sink, SinkSettings::File { size, keep: 3, .. } if size == 64 << 20));
        for section in [
            "{to: {http: 'https://logs/in', tokenFile: /t, tls: {ca: /ca}}}",
            "{to: {nats: 'tls://a,tls://b', subject: logs.iris, credentialsFile: /c}}",
            "{to: {kafka: 'a:9092, b:9092', topic: logs, user: u, passwordFile: /p, mechanism: scram-sha-512, tls: {}}}",
        ] {
            assert!(read(section).is_ok(), "{section}: {:?}", read(section));
        }
    }

    #[test]
    fn what_is_wrong_is_told() {
        for (section, expected) in [
            ("{}", "missing field `to`"),
            ("{to: {}}", "names none of"),
            ("{to: {file: /a, http: 'http://a'}}", "or several"),
            ("{sample: 0, to: {file: /a}}", "log.sample is 0"),
            ("{sample: 1.5, to: {file: /a}}", "log.sample is 1.5"),
            ("{bodies: 1MiB, to: {file: /a}}", "log.bodies"),
            ("{memory: 1KiB, to: {file: /a}}", "log.memory"),
            ("{to: {file: a}}", "absolute path"),
            ("{to: {http: 'ftp://a'}}", "http or https"),
            ("{to: {http: 'http://u:secret@a'}}", "without a user"),
            ("{to: {nats: 'nats://a'}}", "log.to.subject is missing"),
            ("{to: {nats: 'nats://a', subject: 'a.>'}}", "words with dots"),
            ("{to: {kafka: a, topic: t}}", "HOST:PORT"),
            ("{to: {kafka: 'a:1'}}", "log.to.topic is missing"),
            ("{to: {kafka: 'a:1', topic: t, user: u}}", "belong together"),
            ("{to: {file: /a, topic: t}}", "log.to.topic does not belong"),
        ] {
            let error = read(section).expect_err(section);
            assert!(error.contains(expected) && !error.contains("secret"), "{section}: {error}");
        }
    }
}
