//! The dashboard's files, which are in the binary: plain HTML, CSS and JavaScript modules, as they are read here.
//!
//! Served by whichever node is asked, also while no controller decides: then the page says so. Nothing is loaded from other
//! hosts, and what the API tells is put into the page as text only (`dom.js`); the policy below has browsers insist on both.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};

/// Address of the page. Files are beside it, so that it also works below a path of a reverse proxy.
const PAGE: &str = "/dashboard/";

/// Rules for browsers: nothing from elsewhere, no inline script or style, no text made into markup, no frame around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// Every file: its name, its media type, its content. The page itself has no name.
const FILES: [(&str, &str, &str); 18] = [
    ("", HTML, include_str!("dashboard/index.html")),
    ("style.css", CSS, include_str!("dashboard/style.css")),
    ("icon.svg", SVG, include_str!("dashboard/icon.svg")),
    ("app.js", SCRIPT, include_str!("dashboard/app.js")),
    ("api.js", SCRIPT, include_str!("dashboard/api.js")),
    ("dom.js", SCRIPT, include_str!("dashboard/dom.js")),
    ("format.js", SCRIPT, include_str!("dashboard/format.js")),
    ("parts.js", SCRIPT, include_str!("dashboard/parts.js")),
    ("fleet.js", SCRIPT, include_str!("dashboard/fleet.js")),
    ("models.js", SCRIPT, include_str!("dashboard/models.js")),
    ("model.js", SCRIPT, include_str!("dashboard/model.js")),
    ("charts.js", SCRIPT, include_str!("dashboard/charts.js")),
    ("live.js", SCRIPT, include_str!("dashboard/live.js")),
    ("try.js", SCRIPT, include_str!("dashboard/try.js")),
    ("rollout.js", SCRIPT, include_str!("dashboard/rollout.js")),
    ("events.js", SCRIPT, include_str!("dashboard/events.js")),
    ("log.js", SCRIPT, include_str!("dashboard/log.js")),
    ("sources.js", SCRIPT, include_str!("dashboard/sources.js")),
];

/// The file of this name, or `None`.
pub(super) fn file(name: &str) -> Option<Response> {
    let (_, media_type, content) = FILES.iter().find(|(known, ..)| *known == name)?;
    let mut response = content.into_response();
    let headers = response.headers_mut();
    let fixed = [
        (header::CONTENT_TYPE, *media_type),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // After an update, the page and its files must be of one version.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    Some(response)
}

/// Redirect to the page.
pub(super) fn moved() -> Response {
    (StatusCode::PERMANENT_REDIRECT, [(header::LOCATION, "dashboard/")]).into_response()
}

/// The answer to a request of the page or its files; `None` for all other paths.
pub(super) fn answer(path: &str) -> Option<Response> {
    match path.strip_prefix(PAGE) {
        Some(name) => file(name),
        None => (path == PAGE.trim_end_matches('/')).then(moved),
    }
}

#[cfg(test)]
mod tests;
