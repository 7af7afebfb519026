//! The description of the REST face: `/openapi.json` for programs, `/docs` for people. Both are made once, from one document; the page
//! needs no script and nothing from elsewhere.

use std::fmt::Write as _;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::Value;

use crate::body::reply::{ReplyBody, json};

/// The document, without the version of the server.
const DOCUMENT: &str = include_str!("openapi.json");

/// Style of the page.
const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a;background:#fff}\
code,pre{font:14px/1.5 ui-monospace,monospace}pre{background:#f4f4f5;padding:.75rem;overflow:auto;border-radius:4px}\
section{border-top:1px solid #ddd;padding:.5rem 0}h2{font-size:1rem;margin:.5rem 0}b{display:inline-block;min-width:3.5rem}\
@media(prefers-color-scheme:dark){body{color:#e4e4e7;background:#18181b}pre{background:#27272a}section{border-color:#3f3f46}a{color:#93c5fd}}";

/// A body that runs a model, for a shell.
const EXAMPLE: &str = "curl -s http://HOST:8080/v2/models/iris/infer -H 'content-type: application/json' -d '\n  \
{\"inputs\": [{\"name\": \"X\", \"datatype\": \"FP32\", \"shape\": [1, 4], \"data\": [5.1, 3.5, 1.4, 0.2]}]}'";

/// The OpenAPI document of the REST face, and the page made of it.
pub(super) struct Description {
    document: Bytes,
    page: Bytes,
}

impl Description {
    /// Makes both, once for a server, with its version in them.
    pub(super) fn new(version: &str) -> Self {
        let mut document: Value = serde_json::from_str(DOCUMENT).expect("the document is JSON: a test reads it");
        document["info"]["version"] = version.into();
        let page = page(&document);
        Self { document: Bytes::from(document.to_string()), page: Bytes::from(page) }
    }

    pub(super) fn document(&self) -> Response<ReplyBody> {
        json(StatusCode::OK, self.document.clone())
    }

    pub(super) fn page(&self) -> Response<ReplyBody> {
        let mut page = json(StatusCode::OK, self.page.clone());
        let policy = HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'");
        page.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
        page.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
        page
    }
}

/// The page of a document.
fn page(document: &Value) -> String {
    let text = |value: &Value| escaped(value.as_str().unwrap_or_default());
    let info = &document["info"];
    let mut page = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>Berth</title><style>{STYLE}</style><h1>{} <small>{}</small></h1>\
         <p>{}<p><a href=openapi.json>openapi.json</a><pre>{}</pre>",
        text(&info["title"]),
        text(&info["version"]),
        text(&info["description"]),
        escaped(EXAMPLE),
    );
    for (path, methods) in document["paths"].as_object().into_iter().flatten() {
        for (method, operation) in methods.as_object().into_iter().flatten() {
            let _ = write!(
                page,
                "<section><h2><b>{}</b> <code>{}</code></h2>{}",
                method.to_uppercase(),
                escaped(path),
                text(&operation["summary"])
            );
            for (what, schema) in [
                ("Body", &operation["requestBody"]["content"]["application/json"]["schema"]),
                ("Answer", &operation["responses"]["200"]["content"]["application/json"]["schema"]),
            ] {
                if !schema.is_null() {
                    let _ = write!(page, "<p>{what}<pre>{}</pre>", escaped(&shape(document, schema)));
                }
            }
            page.push_str("</section>");
        }
    }
    page
}

/// A schema as a sketch: `{name: string, shape: [integer], …}`. Schemas have no cycles.
fn shape(document: &Value, schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|name| name.strip_prefix("#/components/schemas/")) {
        return match name {
            "Datatype" => name.to_owned(),
            _ => shape(document, &document["components"]["schemas"][name]),
        };
    }
    if let Some(fields) = schema["properties"].as_object() {
        let fields: Vec<_> = fields.iter().map(|(name, field)| format!("{name}: {}", shape(document, field))).collect();
        return format!("{{{}}}", fields.join(", "));
    }
    match schema["type"].as_str() {
        Some("array") => format!("[{}]", shape(document, &schema["items"])),
        Some("object") => "{…}".to_owned(),
        Some(word) => word.to_owned(),
        None => "any".to_owned(),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingress::path::Resource;

    #[test]
    fn the_document_is_of_paths_that_are_there() {
        let document: Value = serde_json::from_str(DOCUMENT).expect("JSON");
        let paths = document["paths"].as_object().expect("paths");
        for (path, methods) in paths {
            let filled = path.replace(['{', '}'], "");
            let resource = Resource::of(&filled).unwrap_or_else(|| panic!("{path} is none"));
            for method in methods.as_object().expect("methods").keys() {
                let method = method.to_uppercase().parse().expect("a method");
                assert_eq!(resource.allows(&method), Ok(()), "{method} {path}");
            }
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document: Value = serde_json::from_str(DOCUMENT).expect("JSON");
        let mut open = vec![&document];
        while let Some(value) = open.pop() {
            if let Some(target) = value.get("$ref").and_then(Value::as_str) {
                assert!(document.pointer(target.trim_start_matches('#')).is_some(), "{target}");
            }
            match value {
                Value::Array(all) => open.extend(all),
                Value::Object(all) => open.extend(all.values()),
                _ => {}
            }
        }
    }

    #[test]
    fn the_page_shows_requests() {
        let page = page(&serde_json::from_str(DOCUMENT).expect("JSON"));
        for part in ["<code>/v2/models/{model}/infer</code>", "inputs: [{", "datatype: Datatype", "href=openapi.json"] {
            assert!(page.contains(part), "{part}");
        }
        assert!(!page.contains("<script") && !page.contains("https://"));
    }
}
