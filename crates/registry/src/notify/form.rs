//! A notice in the form of each way to tell it. Texts are bounded: a chat refuses what is too long.

use serde_json::{Value, json};

use super::Notice;
use crate::{actual::stamp, settings::NotificationSeverity};

/// Longest text in characters. Slack accepts 3,000 per block.
const MAX_TEXT_CHARS: usize = 2_500;

/// Characters of a field. Slack takes 2,000.
const FIELD: usize = 1_900;

/// Longest title in JSON, in characters. Long enough to reach the cause in a Python error.
const TITLE: usize = 700;

/// Email message, without sender and receivers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Email {
    /// Subject line of at most 150 characters: cluster, severity and title.
    pub subject: String,
    /// Plain text of the message.
    pub text: String,
}

/// Encodes a notice as JSON for a webhook; `held` counts messages that were dropped before it.
#[must_use]
pub fn webhook(notice: &Notice, cluster: &str, held: u64) -> Value {
    let facts: serde_json::Map<String, Value> =
        notice.facts.iter().map(|(name, value)| (name.clone(), Value::String(value.clone()))).collect();
    json!({
        "version": 1,
        "cluster": cluster,
        "kind": notice.kind,
        "subject": notice.subject,
        "severity": word(notice.severity),
        "status": if notice.resolved { "resolved" } else { "firing" },
        "at": stamp(notice.at),
        "title": cut(&notice.title, TITLE),
        "text": bounded(&notice.text),
        "facts": facts,
        "owners": notice.owners,
        "heldBack": held,
    })
}

/// Builds the JSON for Slack's incoming webhooks and compatible ones.
#[must_use]
pub fn slack(notice: &Notice, cluster: &str, held: u64) -> Value {
    let title = headline(notice, cluster);
    let mut blocks = vec![json!({"type": "header", "text": {"type": "plain_text", "text": cut(&title, 150)}})];
    if !notice.text.is_empty() {
        // A code block: nothing in it is read as a mention or a link.
        let text = format!("```{}```", escaped_within(&notice.text.replace("```", "'''"), MAX_TEXT_CHARS));
        blocks.push(json!({"type": "section", "text": {"type": "mrkdwn", "text": text}}));
    }
    let fields: Vec<Value> = notice
        .facts
        .iter()
        .take(10)
        .map(|(name, value)| json!({"type": "mrkdwn", "text": format!("*{}*\n{}", escaped(name), escaped_within(value, FIELD))}))
        .collect();
    if !fields.is_empty() {
        blocks.push(json!({"type": "section", "fields": fields}));
    }
    let mut foot = stamp(notice.at);
    if held > 0 {
        foot.push_str(&format!("; {held} more messages were held back"));
    }
    blocks.push(json!({"type": "context", "elements": [{"type": "plain_text", "text": foot}]}));
    json!({"text": escaped_within(&title, MAX_TEXT_CHARS), "blocks": blocks})
}

/// Encodes a notice as an email; `held` counts messages that were dropped before it.
#[must_use]
pub fn email(notice: &Notice, cluster: &str, held: u64) -> Email {
    let mut text = format!("{}\n\n", cut(&notice.title, TITLE));
    if !notice.text.is_empty() {
        text.push_str(&bounded(&notice.text));
        text.push_str("\n\n");
    }
    for (name, value) in &notice.facts {
        text.push_str(&format!("{name}: {value}\n"));
    }
    text.push_str(&format!("time: {}\ncluster: {cluster}\n", stamp(notice.at)));
    if held > 0 {
        text.push_str(&format!("{held} more messages were held back.\n"));
    }
    Email { subject: cut(&headline(notice, cluster), 150), text }
}

fn headline(notice: &Notice, cluster: &str) -> String {
    let state = if notice.resolved { "resolved" } else { word(notice.severity) };
    let title: String = notice.title.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("[{cluster}] {state}: {title}")
}

const fn word(severity: NotificationSeverity) -> &'static str {
    match severity {
        NotificationSeverity::Info => "info",
        NotificationSeverity::Warning => "warning",
        NotificationSeverity::Error => "error",
        NotificationSeverity::Critical => "critical",
    }
}

fn bounded(text: &str) -> String {
    cut(text, MAX_TEXT_CHARS)
}

fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(most.saturating_sub(2)).collect();
    short.push_str(" …");
    short
}

/// Escaped, and then no longer than `most` characters: Slack counts what it is sent.
fn escaped_within(text: &str, most: usize) -> String {
    let mut out = String::new();
    let mut left = most.saturating_sub(2);
    for c in text.chars() {
        let word = escaped(c.encode_utf8(&mut [0; 4]));
        let Some(rest) = left.checked_sub(word.chars().count()) else {
            out.push_str(" …");
            break;
        };
        out.push_str(&word);
        left = rest;
    }
    out
}

/// Escapes the three characters that Slack treats specially.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notify::tests::notice;

    #[test]
    fn the_forms() {
        let mut notice = notice("iris", NotificationSeverity::Error);
        notice.text = format!("<!channel> & {}", "x".repeat(5_000));
        let web = webhook(&notice, "prod", 3);
        assert_eq!(
            (&web["kind"], &web["status"], &web["heldBack"]),
            (&json!("load-failure"), &json!("firing"), &json!(3))
        );
        assert_eq!(web["facts"]["worker"], "a");
        let chat = slack(&notice, "prod", 0);
        assert_eq!(chat["text"], "[prod] error: iris could not be loaded");
        let body = chat["blocks"][1]["text"]["text"].as_str().expect("a text");
        assert!(body.starts_with("```&lt;!channel&gt; &amp;") && body.len() < 3_000, "nobody is called by a message");
        notice.text = "<Error><Code>AccessDenied</Code></Error>".repeat(100);
        let body = slack(&notice, "prod", 0)["blocks"][1]["text"]["text"].as_str().expect("a text").to_owned();
        assert!((2_400..2_600).contains(&body.chars().count()), "Slack refuses more than 3,000: {}", body.len());
        notice.resolved = true;
        notice.title = "a\r\nBcc: x@example.com".to_owned();
        let mail = email(&notice, "prod", 1);
        assert_eq!(mail.subject, "[prod] resolved: a  Bcc: x@example.com", "one line");
        assert!(mail.text.contains("worker: a") && mail.text.contains("1 more"), "{}", mail.text);
    }
}
