//! `GET` and `DELETE /v1/responses/{id}`, and the items that a kept response was made from.

use super::store::{Kept, Store};
use crate::error::ApiError;
use crate::models::Models;
use axum::Json;
use axum::extract::{Path, RawQuery, State};
use serde_json::{Value, json};
use std::sync::Arc;

/// Items of a page, unless the request says how many, and at most.
const ITEMS: usize = 20;
const MOST_ITEMS: usize = 100;

/// A response that is kept.
pub(crate) async fn fetch(
    State(models): State<Arc<Models>>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, ApiError> {
    if parameter(query.as_deref(), "stream") == Some("true") {
        let message =
            "`stream` is true, false was expected: a response that is kept is told at once";
        return Err(ApiError::field("stream", message));
    }
    Ok(Json(find(&models, &id)?.response()))
}

/// Forgets a response.
pub(crate) async fn remove(
    State(models): State<Arc<Models>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    match store(&models)?.remove(&id) {
        true => Ok(Json(json!({"id": id, "object": "response", "deleted": true}))),
        false => Err(absent()),
    }
}

/// The items that a response was made from, those of earlier responses included; the latest first
/// unless asked for otherwise.
pub(crate) async fn input_items(
    State(models): State<Arc<Models>>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, ApiError> {
    let mut items = find(&models, &id)?.input();
    let query = query.as_deref();
    match parameter(query, "order") {
        None | Some("desc") => items.reverse(),
        Some("asc") => {}
        Some(_) => return Err(ApiError::field("order", "`order` is neither `asc` nor `desc`")),
    }
    let limit = match parameter(query, "limit") {
        None => ITEMS,
        Some(limit) => {
            let limit = limit.parse().ok().filter(|limit| (1..=MOST_ITEMS).contains(limit));
            let message = format!("`limit` is no number from 1 to {MOST_ITEMS}");
            limit.ok_or_else(|| ApiError::field("limit", message))?
        }
    };
    if let Some(after) = parameter(query, "after") {
        let at = items.iter().position(|item| item["id"] == after);
        let at = at.ok_or_else(|| ApiError::field("after", "`after` is the id of no item"))?;
        items.drain(..=at);
    }
    let has_more = items.len() > limit;
    items.truncate(limit);
    let id_of = |item: Option<&Value>| item.map(|item| item["id"].clone());
    let (first, last) = (id_of(items.first()), id_of(items.last()));
    Ok(Json(
        json!({"object": "list", "data": items, "first_id": first, "last_id": last, "has_more": has_more}),
    ))
}

fn store(models: &Models) -> Result<&Store, ApiError> {
    let message = "responses are not kept: start the server with `--store-responses MIB`";
    models.store.as_deref().ok_or_else(|| ApiError::Absent(message.to_owned()))
}

fn find(models: &Models, id: &str) -> Result<Arc<Kept>, ApiError> {
    store(models)?.get(id).ok_or_else(absent)
}

fn absent() -> ApiError {
    let message = "there is no such response: it was never kept, was deleted or had to make room";
    ApiError::Absent(message.to_owned())
}

/// A parameter of a query. Those that are known here need no unescaping.
pub(crate) fn parameter<'a>(query: Option<&'a str>, name: &str) -> Option<&'a str> {
    let pairs = query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next()
}
