//! Says where a model answers, with a request that was tried.

use std::{net::SocketAddr, time::Duration};

use berth_wire::api::{DeploymentStatus, DeploymentView};
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::declare::{CallFormat, Declared, Model};
use crate::{
    client,
    commands::wait::{StatusLine, progress},
    failure::Failure,
    node::Started,
    terminal,
};

/// Interval of looks for the model. People do not see less.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Limit for one answer of this process: the first inference of a large model takes seconds.
const ANSWER: Duration = Duration::from_secs(60);

/// Rows of other lengths that are tried, of those that an error names.
const TRIES: usize = 8;

/// Longest request that is shown: it has to fit a screen.
const LONGEST_SHOWN: usize = 2_000;

/// Longest row that is written out.
const LONGEST_ROW: usize = 4096;

/// Waits for the first model that does not fail and prints where it answers; a failure is printed as often as its text changes.
pub(super) async fn announce(started: Started, declared: Declared) {
    if let Err(failure) = tell(&started, &declared).await {
        eprintln!("{failure}");
    }
}

async fn tell(started: &Started, declared: &Declared) -> Result<(), Failure> {
    let client = client::to_itself()?;
    let (Some(mut model), Some(gateway)) = (declared.models.first(), started.http) else { return Ok(()) };
    let mut others = declared.models.iter().skip(1);
    let (path, outcome) = loop {
        let asks = Asks { http: client.clone(), scheme: started.scheme, gateway, api: started.api, model };
        let next = others.next();
        if let Some(answered) = asks.until_it_answers(next.is_some()).await? {
            break answered;
        }
        let Some(next) = next else { return Ok(()) };
        model = next;
    };
    let count = declared.models.len();
    let others =
        if count > 1 { format!(", one of {count} models, each loaded by its first request") } else { String::new() };
    let url = format!("{}://{gateway}{path}", started.scheme);
    let example = match outcome {
        Ok(body) => to_paste(&url, &body),
        Err(refusal) => refused(model, &refusal),
    };
    Ok(terminal::print(&format!("{} answers at {url}{others}\n\n{example}\n\n", model.name.as_str()))?)
}

/// A request for a shell.
fn to_paste(url: &str, body: &Value) -> String {
    let body = body.to_string().replace('\'', "'\\''");
    let head = format!("  curl -s '{url}' -H 'content-type: application/json' -d");
    if body.len() <= LONGEST_SHOWN {
        return format!("{head} '{body}'");
    }
    format!("{head} @request.json\n\nThe smallest request is too long to be shown here ({} bytes)", body.len())
}

/// The words for a model that is there and does not take what was tried.
fn refused(model: &Model, refusal: &str) -> String {
    match &model.call_format {
        CallFormat::Rows(_) => format!(
            "It refuses a row of zeros: {refusal}\nRequests here are rows of numbers: {{\"features\": [1.0, 2.0]}}. For a model \
             that takes anything else, such as named columns or text, write a card: `berth card new`"
        ),
        CallFormat::Document(_, None) => "Its card's interface.input_schema says what it takes".to_owned(),
        CallFormat::Document(..) => format!(
            "It refuses a request that was made up from its card: {refusal}\nAn example in interface.input_schema of the card is \
             tried instead"
        ),
        CallFormat::Tensors => {
            format!("It refuses zeros: {refusal}\n`berth describe {}` shows its inputs", model.name.as_str())
        }
    }
}

/// Outcome of the requests that were tried: one that works, or what the model says about a row of zeros.
type Outcome = Result<Value, String>;

/// Asks this process, as clients do.
struct Asks<'a> {
    http: reqwest::Client,
    scheme: &'static str,
    gateway: SocketAddr,
    api: SocketAddr,
    model: &'a Model,
}

impl Asks<'_> {
    /// The path at which the model answers, once it is ready, and the outcome; `None`: it failed, and there are others to ask.
    async fn until_it_answers(&self, has_others: bool) -> Result<Option<(String, Outcome)>, Failure> {
        let mut told = None;
        let name = self.model.name.as_str();
        let (line, mut lines) = (StatusLine::new(name), progress::SparseLines::since(Instant::now()));
        loop {
            let Some(status) = self.status().await else {
                line.show("not declared yet");
                tokio::time::sleep(POLL_INTERVAL).await;
                continue;
            };
            // A request for a model that is still loading would be one in flight, which whoever stops the server waits for.
            let replicas = &status.replicas;
            let tried = match &self.model.call_format {
                _ if (replicas.desired > 0 && replicas.ready == 0) || serves_another(&status) => None,
                CallFormat::Rows(endpoint) => self.rows(endpoint).await,
                CallFormat::Document(endpoint, None) => Some((endpoint.clone(), Err(String::new()))),
                CallFormat::Document(endpoint, Some(body)) => self.one(endpoint, body).await,
                CallFormat::Tensors => self.tensors().await,
            };
            if tried.is_some() {
                return Ok(tried);
            }
            let hint = hint(&self.model.declared, &status);
            let trouble = trouble(&status).map(|text| format!("{name}: {text}{hint}\n"));
            if let Some(text) = trouble.as_ref().filter(|_| trouble != told) {
                line.clear();
                terminal::print(text)?;
            }
            if trouble.is_some() && has_others {
                return Ok(None);
            }
            let text = progress::text(&status);
            line.show(&text);
            if trouble.is_none() && lines.is_due(&text, &line, Instant::now()) {
                // Nobody to tell is no reason to end.
                let _ = terminal::print_aside(&format!("{name}: {text}"));
            }
            told = trouble.or(told);
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// One row of zeros, of the length that the model's own error names.
    async fn rows(&self, endpoint: &str) -> Option<(String, Outcome)> {
        let mut lengths = vec![4];
        let (mut tried, mut refusal) = (Vec::new(), None);
        while let Some(length) = lengths.pop() {
            if tried.len() >= TRIES || tried.contains(&length) {
                continue;
            }
            tried.push(length);
            let body = json!({"features": vec![0; length]});
            let (status, text) = self.post(endpoint, &body).await?;
            match status {
                StatusCode::OK => return Some((endpoint.to_owned(), Ok(body))),
                // Not there yet.
                StatusCode::NOT_FOUND | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => return None,
                _ => {
                    // The answer around the message has numbers of its own, such as those in the request's id.
                    let said = message(text);
                    lengths.extend(numbers(&said));
                    refusal = Some(said);
                }
            }
        }
        refusal.map(|text| (endpoint.to_owned(), Err(text)))
    }

    /// One request.
    async fn one(&self, path: &str, body: &Value) -> Option<(String, Outcome)> {
        let (status, text) = self.post(path, body).await?;
        Some((path.to_owned(), outcome(status, body, text)?))
    }

    /// Zeros for every input that the model names.
    async fn tensors(&self) -> Option<(String, Outcome)> {
        let name = self.model.name.as_str();
        let metadata = self.get(self.gateway, &["v2", "models", name]).await?;
        let inputs: Vec<Value> = metadata.get("inputs")?.as_array()?.iter().filter_map(zeros).collect();
        let body = json!({"inputs": inputs});
        let path = self.path(&["v2", "models", name, "infer"])?;
        self.one(&path, &body).await
    }

    fn path(&self, segments: &[&str]) -> Option<String> {
        let mut url = url::Url::parse(&format!("{}://{}", self.scheme, self.gateway)).ok()?;
        url.path_segments_mut().ok()?.extend(segments);
        Some(url.path().to_owned())
    }

    async fn post(&self, path: &str, body: &Value) -> Option<(StatusCode, String)> {
        let url = format!("{}://{}{path}", self.scheme, self.gateway);
        let answer = self.http.post(url).timeout(ANSWER).json(body).send().await.ok()?;
        Some((answer.status(), answer.text().await.ok()?))
    }

    async fn get(&self, at: SocketAddr, segments: &[&str]) -> Option<Value> {
        let url = format!("{}://{at}{}", self.scheme, self.path(segments)?);
        let answer = self.http.get(url).timeout(ANSWER).send().await.ok()?;
        if answer.status() == StatusCode::OK { answer.json().await.ok() } else { None }
    }

    /// The status, once it speaks of what was declared now.
    async fn status(&self) -> Option<DeploymentStatus> {
        let view = self.get(self.api, &["v1", "deployments", self.model.name.as_str()]).await?;
        let view: DeploymentView = serde_json::from_value(view).ok()?;
        is_of(&view, &self.model.declared).then_some(view.status)
    }
}

/// False of what an earlier run has left under the same name.
fn is_of(view: &DeploymentView, declared: &Value) -> bool {
    let same = |field: &str| view.spec.get("model").and_then(|model| model.get(field)) == declared.get(field);
    view.status.observed_generation == view.metadata.generation && ["format", "uri", "card"].into_iter().all(same)
}

/// An earlier revision answers as long as the new one does not.
fn serves_another(status: &DeploymentStatus) -> bool {
    let pair = &status.revision;
    pair.serving.as_ref().is_some_and(|serving| *serving != pair.wanted)
}

/// The flag that helps where a card's weights are not to be had, or a model without a card lacks packages.
fn hint(declared: &Value, status: &DeploymentStatus) -> &'static str {
    let (category, hint) = match declared.get("card").is_some() {
        true => ("network", "\n  `--artifact FILE` takes weights from here"),
        false => ("dependencies", "\n  `--requirements FILE` takes other packages, `--python VERSION` another Python"),
    };
    let mut failures = status.replica_details.iter().filter_map(|replica| replica.failure.as_ref());
    // What is not tried again leaves no replica: its message begins with the category.
    let said = format!(": {category}: ");
    let mut conditions = status.conditions.iter().filter(|condition| condition.reason == "LoadFailed");
    let has_failed = failures.any(|failure| failure.category == category)
        || conditions.any(|condition| condition.message.contains(&said));
    if has_failed { hint } else { "" }
}

/// The reason why it does not answer: a failure that somebody has to mend, or an attempt that will be repeated.
fn trouble(status: &DeploymentStatus) -> Option<&str> {
    // An earlier revision that still answers hides the failure in the phase.
    let stuck = status.conditions.iter().find(|condition| {
        condition.kind == "Progressing"
            && condition.status == "False"
            && matches!(condition.reason.as_str(), "RolloutStuck" | "RolloutOverdue" | "LoadFailed")
    });
    let failed = matches!(status.phase.as_str(), "Failed" | "ScheduleFailed");
    let message = status.conditions.iter().map(|condition| condition.message.as_str()).find(|text| !text.is_empty());
    // One that is not repeated is told in a moment, as the model's failure.
    let failures = || status.replica_details.iter().filter_map(|replica| replica.failure.as_ref());
    let repeats = || failures().any(|failure| failure.retry_at.is_some());
    let attempted = || status.conditions.iter().find(|condition| condition.reason == "LoadFailed" && repeats());
    match stuck.filter(|_| serves_another(status)) {
        Some(stuck) => Some(stuck.message.as_str()),
        None if failed => Some(message.unwrap_or("it cannot be served")),
        None => attempted().map(|condition| condition.message.as_str()),
    }
}

/// The outcome of a request; `None`: the model is not there yet.
fn outcome(status: StatusCode, body: &Value, text: String) -> Option<Outcome> {
    match status {
        StatusCode::OK => Some(Ok(body.clone())),
        StatusCode::NOT_FOUND | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => None,
        _ => Some(Err(message(text))),
    }
}

/// The message of an answer that is an error.
fn message(text: String) -> String {
    let document: Option<Value> = serde_json::from_str(&text).ok();
    document.and_then(|answer| answer.get("error")?.as_str().map(str::to_owned)).unwrap_or(text)
}

/// The numbers in a text, the last one last: errors name the length that was expected before or after the one that came, and at their
/// end, behind numbers of lines.
fn numbers(text: &str) -> Vec<usize> {
    let words = text.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok());
    let mut numbers: Vec<usize> = words.filter(|number| (1..=LONGEST_ROW).contains(number)).collect();
    numbers.split_off(numbers.len().saturating_sub(64))
}

/// A tensor of zeros for an input; dimensions that vary are 1.
pub(crate) fn zeros(input: &Value) -> Option<Value> {
    let (name, datatype) = (input.get("name")?.as_str()?, input.get("datatype")?.as_str()?);
    let dimensions = input.get("shape")?.as_array()?.iter();
    let shape: Vec<u64> = dimensions.map(|dimension| dimension.as_i64().unwrap_or(1).max(1).unsigned_abs()).collect();
    let count = shape.iter().try_fold(1_u64, |product, dimension| product.checked_mul(*dimension))?;
    let zero = match datatype {
        "BOOL" => json!(false),
        "BYTES" => json!(""),
        _ => json!(0),
    };
    let count = usize::try_from(count).ok().filter(|count| *count <= LONGEST_ROW * 16)?;
    Some(json!({"name": name, "datatype": datatype, "shape": shape, "data": vec![zero; count]}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_frameworks_name_the_length_of_a_row() {
        for text in [
            "X has 1 features, but LogisticRegression is expecting 30 features as input",
            "Feature shape mismatch, expected: 30, got 1",
            "The number of features in data (1) is not the same as it was in training data (30).",
            "a row has 1 numbers, and the model takes 5 × 6: 30",
            &format!("{} shapes cannot be multiplied (1x4 and 30x1)", "line 7, in forward\n".repeat(100)),
        ] {
            assert!(numbers(text).contains(&30), "{text}");
        }
        assert_eq!(numbers("line 99999999999999999999, at 2"), [2]);
    }

    #[test]
    fn a_request_can_be_pasted_and_a_refusal_is_an_answer() {
        let pasted = to_paste("http://a/v1/b", &json!({"text": "it's"}));
        assert_eq!(pasted, r#"  curl -s 'http://a/v1/b' -H 'content-type: application/json' -d '{"text":"it'\''s"}'"#);
        assert!(to_paste("http://a", &json!({"image": vec![0; 5_000]})).contains("@request.json"));
        let body = json!({});
        assert_eq!(outcome(StatusCode::SERVICE_UNAVAILABLE, &body, String::new()), None);
        let refused = outcome(StatusCode::BAD_REQUEST, &body, r#"{"error": "it takes text"}"#.to_owned());
        assert_eq!(refused, Some(Err("it takes text".to_owned())));
    }

    #[test]
    fn what_an_earlier_run_left_under_the_name_is_another_model() {
        let view = |observed: u64, serving: &str| -> DeploymentView {
            serde_json::from_value(json!({
                "apiVersion": "berth.dev/v1", "kind": "ModelDeployment", "metadata": {"name": "iris", "generation": 2},
                "spec": {"model": {"format": "onnx", "uri": "file:/m/iris.onnx"}, "replicas": 1},
                "status": {
                    "phase": "Degraded", "observedGeneration": observed, "replicas": {"desired": 1, "ready": 1},
                    "revision": {"wanted": "iris@b", "serving": serving},
                    "conditions": [{
                        "type": "Progressing", "status": "False", "reason": "RolloutStuck", "message": "iris@b was given up"
                    }]
                }
            }))
            .expect("a deployment")
        };
        let onnx = json!({"format": "onnx", "uri": "file:/m/iris.onnx"});
        assert!(is_of(&view(2, "iris@a"), &onnx));
        assert!(!is_of(&view(1, "iris@a"), &onnx), "the status is of an older spec");
        assert!(!is_of(&view(2, "iris@a"), &json!({"format": "sklearn", "uri": "file:/m/iris.joblib"})));
        let old = view(2, "iris@a").status;
        assert!(serves_another(&old));
        assert_eq!(trouble(&old), Some("iris@b was given up"));
        let new = view(2, "iris@b").status;
        assert!(!serves_another(&new) && trouble(&new).is_none());
    }

    #[test]
    fn an_attempt_that_failed_is_told_with_the_way_to_go_on() {
        let mut status: DeploymentStatus = serde_json::from_value(json!({
            "phase": "Progressing",
            "conditions": [{
                "type": "Available", "status": "False", "reason": "LoadFailed", "message": "attempt 1 failed: could not fetch"
            }],
            "replicaDetails": [{"worker": "local", "state": "Failed", "failure": {
                "category": "network", "message": "could not fetch", "attempts": 1, "at": "2026-11-26T06:26:10.431Z",
                "retryAt": "2026-11-26T06:26:40.431Z"
            }}]
        }))
        .expect("a status");
        assert_eq!(trouble(&status), Some("attempt 1 failed: could not fetch"));
        assert!(hint(&json!({"format": "python", "card": {}}), &status).contains("--artifact FILE"));
        assert_eq!(hint(&json!({"format": "onnx"}), &status), "", "it has no such flag");
        status.replica_details[0].failure.as_mut().expect("a failure").retry_at = None;
        assert_eq!(trouble(&status), None, "the model's failure follows, with the same words");
    }

    #[test]
    fn inputs_get_zeros_in_their_shape() {
        let input = json!({"name": "X", "datatype": "FP32", "shape": [-1, 3]});
        let expected = json!({"name": "X", "datatype": "FP32", "shape": [1, 3], "data": [0, 0, 0]});
        assert_eq!(zeros(&input), Some(expected));
        assert_eq!(zeros(&json!({"name": "X", "datatype": "BYTES", "shape": [i64::MAX, 3]})), None);
    }
}
