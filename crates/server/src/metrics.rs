//! Counters and histograms in Prometheus' text form. Names that gateways for vLLM know are used where they mean the
//! same; the others begin with `forerun`. Nothing here tells what was said.

use crate::job::{Finish, Outcome};
use engine::Round;
use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::sync::atomic::AtomicU64;

/// Why requests ended.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Ended {
    finished_reason: &'static str,
}

/// Who proposed.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Drafter {
    drafter: &'static str,
}

/// What is counted.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    /// Answers being read or written.
    pub(crate) running: Gauge,
    /// Answers that wait for a slot.
    pub(crate) waiting: Gauge,
    pub(crate) prompt_tokens: Counter,
    /// Of the prompts' tokens, those that passes have read.
    pub(crate) prefill_tokens: Counter,
    pub(crate) generation_tokens: Counter,
    pub(crate) cached_queries: Counter,
    pub(crate) cached_hits: Counter,
    pub(crate) cache_bytes: Gauge,
    pub(crate) cache_host_bytes: Gauge,
    pub(crate) cache_entries: Gauge,
    /// Of the tokens that all slots could hold, those that are held.
    pub(crate) kv_usage: Gauge<f64, AtomicU64>,
    pub(crate) refused: Counter,
    pub(crate) first_token: Histogram,
    per_token: Histogram,
    drafts: Counter,
    drafted: Counter,
    accepted: Counter,
    accept_length: Histogram,
    rounds: Family<Drafter, Counter>,
    ended: Family<Ended, Counter>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let seconds = || {
            let steps = [1.0, 2.5, 5.0];
            Histogram::new((-3..3).flat_map(move |power| steps.map(|s| s * 10f64.powi(power))))
        };
        let mut metrics = Self {
            registry: Registry::default(),
            running: Gauge::default(),
            waiting: Gauge::default(),
            prompt_tokens: Counter::default(),
            prefill_tokens: Counter::default(),
            generation_tokens: Counter::default(),
            cached_queries: Counter::default(),
            cached_hits: Counter::default(),
            cache_bytes: Gauge::default(),
            cache_host_bytes: Gauge::default(),
            cache_entries: Gauge::default(),
            kv_usage: Gauge::default(),
            refused: Counter::default(),
            first_token: seconds(),
            per_token: seconds(),
            drafts: Counter::default(),
            drafted: Counter::default(),
            accepted: Counter::default(),
            accept_length: Histogram::new((1..=16).map(f64::from)),
            rounds: Family::default(),
            ended: Family::default(),
        };
        let r = &mut metrics.registry;
        r.register("vllm:num_requests_running", "Answers being read or written", metrics.running.clone());
        r.register("vllm:num_requests_waiting", "Answers that wait for a slot", metrics.waiting.clone());
        // The second name is the one that older gateways know.
        for name in ["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"] {
            r.register(name, "Tokens held, of all that the slots could hold", metrics.kv_usage.clone());
        }
        r.register("vllm:prompt_tokens", "Tokens of prompts", metrics.prompt_tokens.clone());
        r.register("vllm:generation_tokens", "Tokens of answers", metrics.generation_tokens.clone());
        r.register("vllm:prefix_cache_queries", "Prompt tokens looked up", metrics.cached_queries.clone());
        r.register("vllm:prefix_cache_hits", "Prompt tokens found", metrics.cached_hits.clone());
        r.register("vllm:time_to_first_token_seconds", "Arrival to first token", metrics.first_token.clone());
        r.register("vllm:time_per_output_token_seconds", "Decoding, by token", metrics.per_token.clone());
        r.register("vllm:spec_decode_num_drafts", "Rounds with a draft", metrics.drafts.clone());
        r.register("vllm:spec_decode_num_draft_tokens", "Drafted tokens judged", metrics.drafted.clone());
        r.register(
            "vllm:spec_decode_num_accepted_tokens",
            "Of them, how many stood",
            metrics.accepted.clone(),
        );
        r.register("vllm:request_success", "Answers that ended", metrics.ended.clone());
        r.register("forerun_accept_length", "Tokens of a round", metrics.accept_length.clone());
        r.register("forerun_prefill_tokens", "Prompt tokens read", metrics.prefill_tokens.clone());
        r.register("forerun_rounds", "Rounds by who proposed", metrics.rounds.clone());
        r.register("forerun_prefix_cache_bytes", "Bytes that cached states use", metrics.cache_bytes.clone());
        r.register(
            "forerun_prefix_cache_host_bytes",
            "Bytes of those stowed in the host's memory",
            metrics.cache_host_bytes.clone(),
        );
        r.register("forerun_prefix_cache_entries", "Cached states", metrics.cache_entries.clone());
        r.register("forerun_requests_refused", "Requests turned away", metrics.refused.clone());
        metrics
    }

    pub(crate) fn add_round(&self, round: &Round) {
        self.rounds.get_or_create(&Drafter { drafter: round.drafter }).inc();
        self.drafts.inc_by(u64::from(round.drafted > 0));
        self.drafted.inc_by(round.drafted as u64);
        self.accepted.inc_by(round.stood as u64);
        self.accept_length.observe(round.accept_length() as f64);
        self.generation_tokens.inc_by(round.emitted.len() as u64);
    }

    pub(crate) fn add_answer(&self, outcome: &Outcome) {
        let finished_reason = match outcome.finish {
            Finish::Stop => "stop",
            Finish::Length => "length",
        };
        self.ended.get_or_create(&Ended { finished_reason }).inc();
        if outcome.completion_tokens > 1 {
            self.per_token.observe(outcome.report.timing.decode_s / (outcome.completion_tokens - 1) as f64);
        }
    }

    pub(crate) fn add_abort(&self) {
        self.ended.get_or_create(&Ended { finished_reason: "abort" }).inc();
    }

    /// The page of `/metrics`.
    pub(crate) fn page(&self) -> String {
        let mut page = String::new();
        // Writing to a string cannot fail; a page cut short is still better than no page.
        let _ = encode(&mut page, &self.registry);
        page
    }
}
