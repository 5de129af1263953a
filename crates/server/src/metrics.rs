//! Counters and histograms in Prometheus' text form. Names that gateways for vLLM know are used
//! where they mean the same; the others begin with `forerun`. Nothing here tells what was said.

use crate::job::{Finish, Outcome, Ticket};
use crate::loads::Throughput;
use crate::prefix::Source;
use engine::PrefillReport;
use engine::Round;
use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};
use std::collections::HashSet;
use std::sync::atomic::AtomicU64;
use store::Tally;

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

/// How far behind a round's tip a drafted token lies; the first is 0.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Position {
    position: u64,
}

/// What went wrong.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

/// How states are kept, in the words of vLLM's dashboards.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct CacheConfig {
    /// Tokens of a page of keys and values.
    pub(crate) block_size: u64,
    /// Pages that all slots together can fill.
    pub(crate) num_gpu_blocks: u64,
    pub(crate) cache_dtype: String,
    pub(crate) enable_prefix_caching: String,
    pub(crate) prefix_cache_bytes: u64,
    pub(crate) prefix_cache_host_bytes: u64,
    /// Answers written at once.
    pub(crate) slots: u64,
}

/// Where a prompt's beginning was known.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct FoundIn {
    from: &'static str,
}

/// What became of states on disk.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Fate {
    what: &'static str,
}

/// States on disk.
#[derive(Debug)]
pub(crate) struct DiskMetrics {
    bytes: Gauge,
    states: Gauge,
    moved: Family<Fate, Gauge>,
    fates: Family<Fate, Gauge>,
}

impl DiskMetrics {
    fn new(b: &mut Book) -> Self {
        Self {
            bytes: b.made("forerun_prefix_cache_disk_bytes", "Bytes of states on disk"),
            states: b.made("forerun_prefix_cache_disk_states", "States of this model on disk"),
            moved: b.made(
                "forerun_prefix_cache_disk_moved_bytes",
                "Bytes of states written to disk and read from it since the start",
            ),
            fates: b.made(
                "forerun_prefix_cache_disk_fates",
                "States on disk that made room, were damaged and removed, or could not be kept \
                 or read, since the start",
            ),
        }
    }

    /// As it is now.
    pub(crate) fn set(&self, tally: &Tally) {
        self.bytes.set(tally.bytes as i64);
        self.states.set(tally.states as i64);
        for (what, bytes) in [("written", tally.written_bytes), ("read", tally.read_bytes)] {
            self.moved.get_or_create(&Fate { what }).set(bytes as i64);
        }
        let fates =
            [("evicted", tally.evicted), ("damaged", tally.damaged), ("failed", tally.failed)];
        for (what, count) in fates {
            self.fates.get_or_create(&Fate { what }).set(count as i64);
        }
    }
}

/// What is counted.
#[derive(Debug)]
pub(crate) struct Metrics {
    /// Whose they are.
    pub(crate) model: String,
    registry: Registry,
    /// Answers being read or written.
    pub(crate) running: Gauge,
    /// Answers that wait for a slot.
    pub(crate) waiting: Gauge,
    pub(crate) prompt_tokens: Counter,
    /// Of the prompts' tokens, those that passes have read.
    pub(crate) prefill_tokens: Counter,
    /// Of prompts that were shortened: their tokens that were dropped, and that the scorer read.
    dropped_tokens: Counter,
    scored_tokens: Counter,
    scoring: Histogram,
    pub(crate) scoring_failures: Counter,
    pub(crate) generation_tokens: Counter,
    pub(crate) cached_queries: Counter,
    pub(crate) cached_hits: Counter,
    hits_from: Family<FoundIn, Counter>,
    pub(crate) disk: DiskMetrics,
    pub(crate) cache_bytes: Gauge,
    pub(crate) state_bytes: Gauge,
    pub(crate) cache_host_bytes: Gauge,
    pub(crate) cache_entries: Gauge,
    /// Of the tokens that all slots could hold, those that are held.
    pub(crate) kv_usage: Gauge<f64, AtomicU64>,
    pub(crate) refused: Counter,
    pub(crate) first_token: Histogram,
    between_tokens: Histogram,
    per_token: Histogram,
    whole: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    prompt_lengths: Histogram,
    answer_lengths: Histogram,
    rooms: Histogram,
    choices: Histogram,
    drafts: Counter,
    drafted: Counter,
    accepted: Counter,
    accepted_at: Family<Position, Counter>,
    accept_length: Histogram,
    rounds: Family<Drafter, Counter>,
    ended: Family<Ended, Counter>,
    errors: Family<Kind, Counter>,
    engine_errors: Family<Kind, Counter>,
    pub(crate) device_lost: Counter,
    /// 1 while the model has an engine.
    pub(crate) loaded: Gauge,
    pub(crate) loads: Counter,
    /// Answers written at once, and tokens that they can hold together.
    pub(crate) slots: u64,
    pub(crate) token_capacity: u64,
    pub(crate) throughput: Throughput,
}

/// Registers metrics one by one.
struct Book(Registry);

impl Book {
    fn add<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.0.register(name, help, metric.clone());
        metric
    }

    fn made<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        self.add(name, help, M::default())
    }

    fn seconds(&mut self, name: &str, help: &str) -> Histogram {
        let steps = [1.0, 2.5, 5.0];
        let buckets = (-3..3).flat_map(move |power| steps.map(|s| s * 10f64.powi(power)));
        self.add(name, help, Histogram::new(buckets))
    }

    /// Of up to `most` tokens.
    fn tokens(&mut self, name: &str, help: &str, most: usize) -> Histogram {
        let steps = (0..9).flat_map(|power| [1.0, 2.0, 5.0].map(|s| s * 10f64.powi(power)));
        self.add(name, help, Histogram::new(steps.take_while(|step| *step <= most as f64)))
    }
}

impl Metrics {
    /// For a model of that name, whose context holds so many tokens.
    pub(crate) fn new(model: &str, context: usize) -> Self {
        let label = ("model_name".into(), model.to_owned().into());
        let mut b = Book(Registry::with_labels(std::iter::once(label)));
        // The second name is the one that older gateways know.
        let held = "Tokens held, of all that the slots could hold";
        let kv_usage: Gauge<f64, AtomicU64> = b.made("vllm:kv_cache_usage_perc", held);
        b.add("vllm:gpu_cache_usage_perc", held, kv_usage.clone());
        let mean = "Decoding by token, of an answer";
        let per_token = b.seconds("vllm:request_time_per_output_token_seconds", mean);
        b.add("vllm:time_per_output_token_seconds", mean, per_token.clone());
        let metrics = Self {
            model: model.to_owned(),
            running: b.made("vllm:num_requests_running", "Answers being read or written"),
            waiting: b.made("vllm:num_requests_waiting", "Answers that wait for a slot"),
            prompt_tokens: b.made("vllm:prompt_tokens", "Tokens of prompts"),
            prefill_tokens: b.made("forerun_prefill_tokens", "Prompt tokens read"),
            dropped_tokens: b.made("forerun_prefill_dropped_tokens", "Prompt tokens left out"),
            scored_tokens: b.made("forerun_prefill_scored_tokens", "Tokens that a scorer read"),
            scoring: b.seconds("forerun_prefill_scoring_seconds", "Shortening a prompt"),
            scoring_failures: b
                .made("forerun_prefill_scoring_failures", "Prompts that could not be scored"),
            generation_tokens: b.made("vllm:generation_tokens", "Tokens of answers"),
            cached_queries: b.made("vllm:prefix_cache_queries", "Prompt tokens looked up"),
            cached_hits: b.made("vllm:prefix_cache_hits", "Prompt tokens found"),
            hits_from: b.made(
                "forerun_prefix_cache_hit_tokens",
                "Prompt tokens found, by where: memory, host, disk",
            ),
            disk: DiskMetrics::new(&mut b),
            cache_bytes: b.made("forerun_prefix_cache_bytes", "Bytes that cached states use"),
            state_bytes: b
                .made("forerun_state_bytes", "Bytes that the states of texts use, cached ones too"),
            cache_host_bytes: b.made(
                "forerun_prefix_cache_host_bytes",
                "Bytes of those stowed in the host's memory",
            ),
            cache_entries: b.made("forerun_prefix_cache_entries", "Cached states"),
            kv_usage,
            refused: b.made("forerun_requests_refused", "Requests turned away"),
            first_token: b.seconds("vllm:time_to_first_token_seconds", "Arrival to first token"),
            between_tokens: b.seconds(
                "vllm:inter_token_latency_seconds",
                "From one round's tokens of an answer to the next's",
            ),
            per_token,
            whole: b.seconds("vllm:e2e_request_latency_seconds", "Arrival to last token"),
            queue: b.seconds("vllm:request_queue_time_seconds", "Arrival to a slot"),
            prefill: b.seconds("vllm:request_prefill_time_seconds", "A slot to the first token"),
            decode: b.seconds("vllm:request_decode_time_seconds", "First token to last"),
            prompt_lengths: b.tokens("vllm:request_prompt_tokens", "Tokens of a prompt", context),
            answer_lengths: b.tokens(
                "vllm:request_generation_tokens",
                "Tokens of an answer",
                context,
            ),
            rooms: b.tokens(
                "vllm:request_params_max_tokens",
                "Tokens that an answer may have",
                context,
            ),
            choices: b.tokens("vllm:request_params_n", "Answers to a prompt", 20),
            drafts: b.made("vllm:spec_decode_num_drafts", "Rounds with a draft"),
            drafted: b.made("vllm:spec_decode_num_draft_tokens", "Drafted tokens judged"),
            accepted: b
                .made("vllm:spec_decode_num_accepted_tokens", "Of them, how many were accepted"),
            accepted_at: b.made(
                "vllm:spec_decode_num_accepted_tokens_per_pos",
                "Of them, by how far behind the tip",
            ),
            accept_length: b.add(
                "forerun_accept_length",
                "Tokens of a round",
                Histogram::new((1..=16).map(f64::from)),
            ),
            rounds: b.made("forerun_rounds", "Rounds by who proposed"),
            ended: b.made("vllm:request_success", "Answers that ended"),
            errors: b.made("forerun_request_errors", "Requests that failed, by what went wrong"),
            engine_errors: b.made(
                "forerun_engine_errors",
                "Passes, reads and commits that failed, those tried again too",
            ),
            device_lost: b.made("forerun_device_lost", "Times that the device was lost"),
            loaded: b.made("forerun_model_loaded", "Whether the model is loaded"),
            loads: b.made("forerun_model_loads", "Times that the model was loaded"),
            slots: 0,
            token_capacity: 0,
            throughput: Throughput::new(),
            registry: b.0,
        };
        // What has not happened yet is 0 and not absent.
        for finished_reason in ["stop", "length", "abort"] {
            metrics.ended.get_or_create(&Ended { finished_reason }).inc_by(0);
        }
        for origin in [Source::Memory, Source::Host, Source::Disk] {
            metrics.hits_from.get_or_create(&FoundIn { from: origin.name() }).inc_by(0);
        }
        metrics.disk.set(&Tally::default());
        metrics.accepted_at.get_or_create(&Position { position: 0 }).inc_by(0);
        metrics.errors.get_or_create(&Kind { kind: "internal" }).inc_by(0);
        for kind in ["device_lost", "out_of_memory", "panic", "other"] {
            metrics.engine_errors.get_or_create(&Kind { kind }).inc_by(0);
        }
        metrics
    }

    /// Tells once how states are kept.
    pub(crate) fn tell_cache(&mut self, config: CacheConfig) {
        (self.slots, self.token_capacity) =
            (config.slots, config.block_size * config.num_gpu_blocks);
        let info = Family::<CacheConfig, Gauge>::default();
        info.get_or_create(&config).set(1);
        self.registry.register("vllm:cache_config_info", "How states are kept", info);
    }

    /// A round of an answer, so many seconds after its last tokens came.
    pub(crate) fn add_round(&self, round: &Round, seconds: f64) {
        self.rounds.get_or_create(&Drafter { drafter: round.drafter }).inc();
        self.drafts.inc_by(u64::from(round.drafted > 0));
        self.drafted.inc_by(round.drafted as u64);
        self.accepted.inc_by(round.accepted as u64);
        for position in 0..round.accepted as u64 {
            self.accepted_at.get_or_create(&Position { position }).inc();
        }
        self.accept_length.observe(round.accept_length() as f64);
        self.generation_tokens.inc_by(round.emitted.len() as u64);
        self.between_tokens.observe(seconds);
    }

    /// So many tokens of a prompt were known, there.
    pub(crate) fn add_hit(&self, tokens: usize, from: Option<Source>) {
        self.cached_hits.inc_by(tokens as u64);
        if let Some(from) = from {
            self.hits_from.get_or_create(&FoundIn { from: from.name() }).inc_by(tokens as u64);
        }
    }

    /// An answer is whole.
    pub(crate) fn add_answer(&self, outcome: &Outcome, ticket: &Ticket) {
        let finished_reason = match outcome.finish {
            Finish::Stop => "stop",
            Finish::Length => "length",
        };
        self.ended.get_or_create(&Ended { finished_reason }).inc();
        let timing = &outcome.report.timing;
        if outcome.completion_tokens > 1 {
            self.per_token.observe(timing.decode_s / (outcome.completion_tokens - 1) as f64);
        }
        self.whole.observe(ticket.arrived.elapsed().as_secs_f64());
        self.queue.observe(timing.queue_s);
        self.prefill.observe(timing.prefill_s);
        self.decode.observe(timing.decode_s);
        self.prompt_lengths.observe(outcome.prompt_tokens as f64);
        self.answer_lengths.observe(outcome.completion_tokens as f64);
        self.rooms.observe(ticket.job.room as f64);
        self.choices.observe(ticket.job.choices.len() as f64);
    }

    pub(crate) fn add_abort(&self) {
        self.ended.get_or_create(&Ended { finished_reason: "abort" }).inc();
    }

    /// The engine has gone, and all state with it.
    pub(crate) fn unload(&self) {
        let gauges = [&self.loaded, &self.running, &self.waiting, &self.state_bytes];
        let cache = [&self.cache_bytes, &self.cache_host_bytes, &self.cache_entries];
        for gauge in gauges.into_iter().chain(cache) {
            gauge.set(0);
        }
        self.kv_usage.set(0.0);
    }

    /// A request failed.
    pub(crate) fn add_error(&self, kind: &'static str) {
        self.errors.get_or_create(&Kind { kind }).inc();
    }

    /// A prompt was shortened.
    pub(crate) fn add_shortened(&self, report: &PrefillReport) {
        let PrefillReport { prompt_tokens, kept_tokens, scored_tokens, scoring_s, .. } = report;
        self.dropped_tokens.inc_by((prompt_tokens - kept_tokens) as u64);
        self.scored_tokens.inc_by(*scored_tokens as u64);
        self.scoring.observe(*scoring_s);
    }

    /// The engine could not do something.
    pub(crate) fn add_engine_error(&self, kind: &'static str) {
        self.engine_errors.get_or_create(&Kind { kind }).inc();
    }

    /// What is counted, in OpenMetrics' form.
    fn encoded(&self) -> String {
        let mut page = String::new();
        // Writing to a string cannot fail; a page cut short is still better than no page.
        let _ = encode(&mut page, &self.registry);
        page
    }
}

/// The page of `/metrics`, in OpenMetrics' form or in Prometheus' older one, where a counter's
/// family is called as its samples are. Of several models a family's samples stand together.
pub(crate) fn page<'m>(models: impl Iterator<Item = &'m Metrics>, is_open: bool) -> String {
    let pages: Vec<String> = models.map(Metrics::encoded).collect();
    let lines = pages.iter().flat_map(|page| page.lines()).filter(|line| *line != "# EOF");
    // What a family is called, and its samples.
    let mut families: Vec<(Vec<&str>, Vec<&str>)> = Vec::new();
    let mut at = 0;
    for line in lines {
        if line.starts_with("# HELP ") {
            let known = families.iter().position(|(head, _)| head.contains(&line));
            at = known.unwrap_or(families.len());
        }
        if at == families.len() {
            families.push((Vec::new(), Vec::new()));
        }
        let (head, samples) = &mut families[at];
        match line.starts_with('#') {
            false => samples.push(line),
            true if head.contains(&line) => {}
            true => head.push(line),
        }
    }
    let lines = families.into_iter().flat_map(|(head, samples)| head.into_iter().chain(samples));
    let lines: Vec<&str> = lines.collect();
    if is_open {
        return lines.iter().chain(&["# EOF"]).map(|line| format!("{line}\n")).collect();
    }
    let counters =
        lines.iter().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"));
    let counters: HashSet<&str> = counters.collect();
    let older = |line: &&str| {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(what), Some(name), Some(rest)) if counters.contains(name) => {
                format!("# {what} {name}_total {rest}\n")
            }
            _ => format!("{line}\n"),
        }
    };
    lines.iter().map(older).collect()
}
