//! `GET /v1/loads`: how busy the engine is, in the form that SGLang gave it and gateways poll.

use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::models::Models;
use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The least that tokens are counted over.
const SPAN: Duration = Duration::from_secs(1);

/// Tokens per second between two looks, however many gateways look.
#[derive(Debug)]
pub(crate) struct Throughput(Mutex<Look>);

#[derive(Debug)]
struct Look {
    at: Instant,
    tokens: u64,
    rate: f64,
}

impl Throughput {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Look { at: Instant::now(), tokens: 0, rate: 0.0 }))
    }

    /// Of `tokens` written since the beginning.
    fn rate(&self, tokens: u64, now: Instant) -> f64 {
        let mut look = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let span = now.duration_since(look.at);
        if span >= SPAN {
            let rate = (tokens - look.tokens) as f64 / span.as_secs_f64();
            *look = Look { at: now, tokens, rate };
        }
        look.rate
    }
}

/// The load of one engine, the first model's, which is also the sum: gateways know one model.
pub(crate) async fn loads(State(models): State<Arc<Models>>) -> Result<Json<Value>, ApiError> {
    Ok(Json(told(&models.choose(None)?.metrics, Instant::now())))
}

fn told(metrics: &Metrics, now: Instant) -> Value {
    let (running, waiting) = (metrics.running.get(), metrics.waiting.get());
    let (usage, slots, tokens) = (metrics.kv_usage.get(), metrics.slots, metrics.token_capacity);
    let used = (usage * tokens as f64).round() as u64;
    let rate = metrics.throughput.rate(metrics.generation_tokens.get(), now);
    let queried = metrics.cached_queries.get().max(1);
    let hit_rate = metrics.cached_hits.get() as f64 / queried as f64;
    let utilization = running as f64 / slots.max(1) as f64;
    json!({
        "timestamp": jiff::Timestamp::now().to_string(),
        "version": env!("CARGO_PKG_VERSION"),
        "dp_rank_count": 1,
        "loads": [{
            "dp_rank": 0, "num_running_reqs": running, "num_waiting_reqs": waiting,
            "num_total_reqs": running + waiting, "num_used_tokens": used,
            "max_total_num_tokens": tokens, "token_usage": usage, "gen_throughput": rate,
            "cache_hit_rate": hit_rate, "utilization": utilization, "max_running_requests": slots,
        }],
        "aggregate": {
            "total_running_reqs": running, "total_waiting_reqs": waiting,
            "total_reqs": running + waiting, "avg_token_usage": usage, "avg_throughput": rate,
            "avg_utilization": utilization,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_is_what_was_written_between_looks() {
        let throughput = Throughput::new();
        let begin = throughput.0.lock().unwrap().at;
        let after = |ms| begin + Duration::from_millis(ms);
        assert_eq!(throughput.rate(100, after(500)), 0.0);
        assert_eq!(throughput.rate(300, after(2000)), 150.0);
        // Another gateway that looks right after it hears the same.
        assert_eq!(throughput.rate(301, after(2100)), 150.0);
        assert_eq!(throughput.rate(300, after(4000)), 0.0);
    }
}
