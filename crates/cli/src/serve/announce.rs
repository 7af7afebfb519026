//! Says where a model answers, with a request that was tried.

use std::{net::SocketAddr, time::Duration};

use berth_wire::api::{DeploymentStatus, DeploymentView};
use reqwest::StatusCode;
use serde_json::{Value, json};

use super::declare::{Declared, Model};
use crate::{
    client,
    commands::wait::{StatusLine, progress},
    failure::Failure,
    node::Started,
    terminal,
};

/// Interval of looks for the model. People do not see less.
const EVERY: Duration = Duration::from_millis(100);

/// Limit for one answer of this process.
const ANSWER: Duration = Duration::from_secs(60);

/// Rows of other lengths that are tried, of those that an error names.
const TRIES: usize = 8;

/// Longest row that is written out.
const LONGEST_ROW: usize = 4096;

/// Waits for the first model and prints where it answers; a failure is printed as often as its text changes.
pub(super) async fn announce(started: Started, declared: Declared) {
    if let Err(failure) = tell(&started, &declared).await {
        eprintln!("{failure}");
    }
}

async fn tell(started: &Started, declared: &Declared) -> Result<(), Failure> {
    let client = client::to_itself()?;
    let (Some(first), Some(gateway)) = (declared.models.first(), started.http) else { return Ok(()) };
    let asks = Asks { http: client, scheme: started.scheme, gateway, api: started.api, model: first };
    let (path, outcome) = asks.until_it_answers().await?;
    let count = declared.models.len();
    let others =
        if count > 1 { format!(", one of {count} models, each loaded by its first request") } else { String::new() };
    let url = format!("{}://{gateway}{path}", started.scheme);
    let example = match outcome {
        Ok(body) => format!("  curl -s '{url}' -H 'content-type: application/json' -d '{body}'"),
        Err(refusal) => format!(
            "It refuses a row of zeros: {refusal}\nRequests here are rows of numbers: {{\"features\": [1.0, 2.0]}}. For a model \
             that takes anything else, such as named columns or text, write a card: `berth card new`"
        ),
    };
    Ok(terminal::print(&format!("{} answers at {url}{others}\n\n{example}\n\n", first.name.as_str()))?)
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
    /// The path at which the model answers, once it is ready, and the outcome.
    async fn until_it_answers(&self) -> Result<(String, Outcome), Failure> {
        let mut told = None;
        let line = StatusLine::new(self.model.name.as_str());
        loop {
            let status = self.status().await.unwrap_or_default();
            // A request for a model that is still loading would be one in flight, which whoever stops the server waits for.
            let replicas = &status.replicas;
            let tried = match &self.model.rows_at {
                _ if replicas.desired > 0 && replicas.ready == 0 => None,
                Some(endpoint) => self.rows(endpoint).await,
                None => self.tensors().await,
            };
            if let Some(answered) = tried {
                return Ok(answered);
            }
            let trouble = trouble(&status).map(|text| format!("{}: {text}\n", self.model.name.as_str()));
            if let Some(text) = trouble.as_ref().filter(|_| trouble != told) {
                line.clear();
                terminal::print(text)?;
            }
            line.show(&progress::text(&status));
            told = trouble.or(told);
            tokio::time::sleep(EVERY).await;
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
                    lengths.extend(numbers(&text));
                    refusal = Some(message(text));
                }
            }
        }
        refusal.map(|text| (endpoint.to_owned(), Err(text)))
    }

    /// Zeros for every input that the model names.
    async fn tensors(&self) -> Option<(String, Outcome)> {
        let name = self.model.name.as_str();
        let metadata = self.get(self.gateway, &["v2", "models", name]).await?;
        let inputs: Vec<Value> = metadata.get("inputs")?.as_array()?.iter().filter_map(zeros).collect();
        let body = json!({"inputs": inputs});
        let path = self.path(&["v2", "models", name, "infer"])?;
        let (status, _) = self.post(&path, &body).await?;
        (status == StatusCode::OK).then_some((path, Ok(body)))
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

    async fn status(&self) -> Option<DeploymentStatus> {
        let view = self.get(self.api, &["v1", "deployments", self.model.name.as_str()]).await?;
        serde_json::from_value::<DeploymentView>(view).ok().map(|view| view.status)
    }
}

/// The reason why it does not answer, where that is no matter of waiting.
fn trouble(status: &DeploymentStatus) -> Option<&str> {
    let failed = matches!(status.phase.as_str(), "Failed" | "ScheduleFailed");
    let message = status.conditions.iter().map(|condition| condition.message.as_str()).find(|text| !text.is_empty());
    failed.then(|| message.unwrap_or("it cannot be served"))
}

/// The message of an answer that is an error.
fn message(text: String) -> String {
    let document: Option<Value> = serde_json::from_str(&text).ok();
    document.and_then(|answer| answer.get("error")?.as_str().map(str::to_owned)).unwrap_or(text)
}

/// The numbers in a text, the last one last: errors name the length that was expected before or after the one that came.
fn numbers(text: &str) -> Vec<usize> {
    let words = text.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok());
    words.filter(|number| (1..=LONGEST_ROW).contains(number)).take(64).collect()
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
        ] {
            assert!(numbers(text).contains(&30), "{text}");
        }
        assert_eq!(numbers("line 99999999999999999999, at 2"), [2]);
    }

    #[test]
    fn inputs_get_zeros_in_their_shape() {
        let input = json!({"name": "X", "datatype": "FP32", "shape": [-1, 3]});
        let expected = json!({"name": "X", "datatype": "FP32", "shape": [1, 3], "data": [0, 0, 0]});
        assert_eq!(zeros(&input), Some(expected));
        assert_eq!(zeros(&json!({"name": "X", "datatype": "BYTES", "shape": [i64::MAX, 3]})), None);
    }
}
