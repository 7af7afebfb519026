//! The question of an API server: objects of one version, wanted in another.

use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

use super::convert;

/// A ConversionReview with its question.
#[derive(Deserialize)]
pub struct Review<'a> {
    #[serde(rename = "apiVersion")]
    api_version: String,
    #[serde(borrow)]
    request: Request<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    uid: String,
    #[serde(rename = "desiredAPIVersion")]
    desired: String,
    #[serde(borrow)]
    objects: Vec<&'a RawValue>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    api_version: &'a str,
    kind: &'a str,
    response: Response<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Response<'a> {
    uid: &'a str,
    converted_objects: Vec<Box<RawValue>>,
    result: Outcome,
}

#[derive(Serialize)]
struct Outcome {
    status: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
}

/// A body that is no ConversionReview.
#[derive(Debug, thiserror::Error)]
#[error("no ConversionReview of apiextensions.k8s.io/v1: {0}")]
pub struct Malformed(#[from] serde_json::Error);

impl<'a> Review<'a> {
    /// Reads a ConversionReview. Its objects are looked at one by one when it is answered: a list may be long.
    ///
    /// # Errors
    /// It is none.
    pub fn read(text: &'a [u8]) -> Result<Self, Malformed> {
        Ok(serde_json::from_slice(text)?)
    }

    /// The ConversionReview that answers, and the number of objects in it; none where one of them cannot be converted.
    ///
    /// # Errors
    /// An object is no JSON that this can hold.
    pub fn answer(&self) -> Result<(String, Option<usize>), Malformed> {
        let Request { uid, desired, objects } = &self.request;
        let mut converted = Vec::with_capacity(objects.len());
        let mut failure = String::new();
        for object in objects {
            let object: Value = serde_json::from_str(object.get())?;
            let called = |part: &str| object["metadata"][part].as_str().unwrap_or_default().to_owned();
            let name = format!("{}/{}", called("namespace"), called("name"));
            match convert(object, desired) {
                Ok(object) => converted.push(serde_json::value::to_raw_value(&object)?),
                Err(error) => {
                    failure = format!("{name}: {error}");
                    converted.clear();
                    break;
                }
            }
        }
        let count = failure.is_empty().then_some(objects.len());
        let status = if failure.is_empty() { "Success" } else { "Failure" };
        let result = Outcome { status, message: failure };
        let response = Response { uid, converted_objects: converted, result };
        let answer = Answer { api_version: &self.api_version, kind: "ConversionReview", response };
        Ok((serde_json::to_string(&answer)?, count))
    }
}
