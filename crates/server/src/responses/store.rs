//! Responses that are kept so that later requests can go on from them: in memory, within a number
//! of bytes, the oldest go first.

use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Responses kept at most, however small they are.
const MOST: usize = 4096;

/// What a response takes beside its text.
const OVERHEAD: usize = 512;

/// Keeps responses.
#[derive(Debug)]
pub(crate) struct Store {
    limit: usize,
    shelf: Mutex<Shelf>,
}

#[derive(Debug, Default)]
struct Shelf {
    kept: HashMap<String, Arc<Kept>>,
    /// Ids, the oldest first.
    order: VecDeque<String>,
    /// The response that an item is in, by the item's id.
    items: HashMap<String, String>,
    bytes: usize,
}

/// A response and what it was made from, as the texts whose bytes are counted.
#[derive(Debug)]
pub(super) struct Kept {
    response: String,
    /// All items that led to it, those of earlier responses included.
    input: String,
    /// Ids of the items that it has.
    items: Vec<String>,
}

impl Kept {
    fn bytes(&self) -> usize {
        let ids: usize = self.items.iter().map(String::len).sum();
        self.response.len() + self.input.len() + 2 * ids + OVERHEAD
    }

    pub(super) fn response(&self) -> Value {
        serde_json::from_str(&self.response).unwrap_or_default()
    }

    pub(super) fn input(&self) -> Vec<Value> {
        serde_json::from_str(&self.input).unwrap_or_default()
    }

    /// The conversation up to its end.
    pub(super) fn conversation(&self) -> Vec<Value> {
        let mut items = self.input();
        if let Value::Array(output) = self.response()["output"].take() {
            items.extend(output);
        }
        items
    }
}

impl Store {
    /// Keeps at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, shelf: Mutex::default() }
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a response; one that is larger than all there is room for is not kept.
    pub(super) fn keep(&self, response: &Value, input: &[Value]) {
        let id = response["id"].as_str().unwrap_or_default().to_owned();
        let output = response["output"].as_array().into_iter().flatten();
        let items = output.filter_map(|item| item["id"].as_str()).map(str::to_owned).collect();
        let kept = Kept { response: response.to_string(), input: json!(input).to_string(), items };
        if kept.bytes() > self.limit {
            return;
        }
        let mut shelf = self.shelf();
        shelf.bytes += kept.bytes();
        shelf.items.extend(kept.items.iter().map(|item| (item.clone(), id.clone())));
        shelf.order.push_back(id.clone());
        shelf.kept.insert(id, Arc::new(kept));
        while shelf.bytes > self.limit || shelf.order.len() > MOST {
            let Some(oldest) = shelf.order.front().cloned() else { break };
            shelf.remove(&oldest);
        }
    }

    pub(super) fn get(&self, id: &str) -> Option<Arc<Kept>> {
        self.shelf().kept.get(id).cloned()
    }

    /// Forgets a response; whether there was one.
    pub(super) fn remove(&self, id: &str) -> bool {
        self.shelf().remove(id)
    }

    /// An item of a kept response.
    pub(super) fn item(&self, id: &str) -> Option<Value> {
        let shelf = self.shelf();
        let kept = shelf.items.get(id).and_then(|response| shelf.kept.get(response)).cloned();
        drop(shelf);
        let mut response = kept?.response();
        let items = response["output"].as_array_mut()?;
        items.iter_mut().find(|item| item["id"] == id).map(Value::take)
    }
}

impl Shelf {
    fn remove(&mut self, id: &str) -> bool {
        let Some(kept) = self.kept.remove(id) else { return false };
        self.order.retain(|other| other != id);
        self.bytes -= kept.bytes();
        for item in &kept.items {
            self.items.remove(item);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(id: &str, text: &str) -> Value {
        json!({"id": id, "output": [{"type": "message", "id": format!("msg_{id}"), "content": text}]})
    }

    #[test]
    fn a_conversation_goes_on() {
        let store = Store::new(1 << 20);
        store.keep(&response("a", "hello"), &[json!({"role": "user", "content": "hi"})]);
        let kept = store.get("a").unwrap();
        assert_eq!(kept.conversation().len(), 2);
        assert_eq!(kept.conversation()[1]["content"], "hello");
        assert_eq!(store.item("msg_a").unwrap()["content"], "hello");
        assert!(store.get("b").is_none() && store.item("msg_b").is_none());
        assert!(store.remove("a") && !store.remove("a") && store.item("msg_a").is_none());
        assert_eq!(store.shelf().bytes, 0);
    }

    #[test]
    fn the_oldest_go_and_no_more_is_held_than_allowed() {
        let text = "x".repeat(1000);
        let store = Store::new(10_000);
        for i in 0..20 {
            store.keep(&response(&i.to_string(), &text), &[]);
            assert!(store.shelf().bytes <= 10_000);
        }
        assert!(store.get("0").is_none() && store.get("19").is_some());
        store.keep(&response("large", &"x".repeat(10_000)), &[]);
        assert!(store.get("large").is_none() && store.get("19").is_some());
        let small = Store::new(usize::MAX);
        (0..=MOST).for_each(|i| small.keep(&response(&i.to_string(), ""), &[]));
        assert!(small.get("0").is_none() && small.get("1").is_some());
        assert_eq!(small.shelf().items.len(), MOST);
    }
}
