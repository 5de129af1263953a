//! The page at `/`: files that are part of the binary and load nothing from elsewhere.

use axum::Router;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Only what comes from here runs, is shown or is talked to, nobody frames it, and no text becomes
/// HTML or a script.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// Path, type and text of each file; those of `/page/` lie under their names in `page/`.
macro_rules! files {
    ($($kind:ident: $($name:literal)*;)*) => {
        &[
            ("/", HTML, include_str!("../page/index.html")),
            $($((concat!("/page/", $name), $kind, include_str!(concat!("../page/", $name))),)*)*
        ]
    };
}

const FILES: &[(&str, &str, &str)] = files! {
    CSS: "page.css" "text.css";
    SCRIPT: "answer.js" "conversation.js" "files.js" "list.js" "markdown.js" "page.js" "parts.js" "render.js"
        "settings.js" "store.js" "stream.js" "strip.js" "talk.js" "theme.js" "turn.js"
        "vendor/highlight.min.js" "vendor/markdown-it.min.js";
    PLAIN: "vendor/highlight.LICENSE" "vendor/markdown-it.LICENSE";
};

/// The paths of the page.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    FILES.iter().fold(Router::new(), |router, (path, kind, text)| {
        let tag = tag(text);
        router.route(
            path,
            get(move |headers: HeaderMap| async move { respond(&headers, kind, tag, text) }),
        )
    })
}

/// What changes when a file does. Browsers ask with it whether theirs is still the one.
fn tag(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

fn respond(asked: &HeaderMap, kind: &'static str, tag: u64, text: &'static str) -> Response {
    let tag = format!("\"{tag:016x}\"");
    let known = asked.get_all(header::IF_NONE_MATCH).iter().filter_map(|tags| tags.to_str().ok());
    let is_known = known.flat_map(|tags| tags.split(',')).any(|known| {
        let known = known.trim();
        known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag
    });
    let mut response = match is_known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => (headers(kind), text).into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.extend(HeaderValue::from_str(&tag).map(|tag| (header::ETAG, tag)));
    response
}

fn headers(kind: &'static str) -> [(HeaderName, HeaderValue); 4] {
    [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_that_is_named_is_served() {
        let served: Vec<&str> = FILES.iter().map(|(path, ..)| *path).collect();
        for (path, kind, text) in FILES.iter().filter(|(path, ..)| !path.contains("vendor")) {
            let named = match *kind {
                HTML => text.split('"').filter_map(|part| part.strip_prefix("page/")).collect(),
                SCRIPT => text.split('"').filter_map(|part| part.strip_prefix("./")).collect(),
                _ => Vec::new(),
            };
            for name in named {
                assert!(served.contains(&format!("/page/{name}").as_str()), "{path} names {name}");
            }
        }
    }

    #[test]
    fn a_file_that_is_known_is_not_sent_again() {
        let fetch = |known: Option<&str>| {
            let known =
                known.map(|tag| (header::IF_NONE_MATCH, HeaderValue::from_str(tag).unwrap()));
            respond(&known.into_iter().collect(), CSS, tag("a"), "a")
        };
        let first = fetch(None);
        assert_eq!(first.status(), StatusCode::OK);
        let tag = first.headers()[header::ETAG].to_str().unwrap().to_owned();
        for known in [tag.clone(), format!("\"x\", {tag}"), format!("W/{tag}"), "*".to_owned()] {
            assert_eq!(fetch(Some(&known)).status(), StatusCode::NOT_MODIFIED, "{known}");
        }
        assert_eq!(fetch(Some("\"x\"")).status(), StatusCode::OK);
    }
}
