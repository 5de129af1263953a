//! Routers, as they are published: taking turns; affinity to where a text was sent before, unless
//! that worker has much more to do (the `cache_aware` policy of sglang-router and smg); and the least
//! cost by what caches hold (Dynamo's KV router).

use clap::ValueEnum;
use std::collections::HashMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Policy {
    /// Workers take turns
    RoundRobin,
    /// Where the beginning of the text was sent before, unless load is uneven
    Affinity,
    /// Where the least has to be read and written, by what caches hold
    Kv,
}

impl Policy {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round robin",
            Self::Affinity => "affinity",
            Self::Kv => "KV",
        }
    }
}

/// Of a text that is less known than this share the least busy worker reads the rest.
const KNOWN_SHARE: f64 = 0.3;
/// Load is uneven where the busiest has more requests than the idlest by this number and factor.
const UNEVEN_BY: usize = 2;
const UNEVEN_TIMES: f64 = 1.1;
/// Tokens of a block.
const BLOCK: f64 = 64.0;

/// What a router knows of a worker.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct View {
    pub(super) is_open: bool,
    /// Requests in the works.
    pub(super) load: usize,
    /// Prompt tokens that it has yet to read, and tokens that its answers hold.
    pub(super) unread: f64,
    pub(super) held: f64,
    /// Tokens of the prompt in question that its cache has.
    pub(super) cached: usize,
}

/// A prompt that wants a worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) talk: usize,
    pub(super) system: usize,
    pub(super) system_tokens: usize,
    pub(super) prompt: usize,
    /// Tokens of its last message.
    pub(super) question: usize,
    /// Whether the next prompt has the answer's own tokens.
    pub(super) has_answers: bool,
}

#[derive(Debug)]
pub(super) struct Router {
    policy: Policy,
    next: usize,
    /// Where a talk was sent last, and how much of it; which workers have seen a system prompt.
    talks: HashMap<usize, (usize, usize)>,
    systems: HashMap<usize, Vec<usize>>,
}

impl Router {
    pub(super) fn new(policy: Policy) -> Self {
        Self { policy, next: 0, talks: HashMap::new(), systems: HashMap::new() }
    }

    /// The worker for a prompt; none where none is open.
    pub(super) fn choose(&mut self, asked: &Asked, views: &[View]) -> Option<usize> {
        let open = || (0..views.len()).filter(|i| views[*i].is_open);
        let chosen = match self.policy {
            Policy::RoundRobin => {
                let from = self.next;
                let mut next = (0..views.len()).map(|i| (from + i) % views.len());
                next.find(|i| views[*i].is_open)?
            }
            Policy::Affinity => {
                let idlest = open().min_by_key(|i| views[*i].load)?;
                let (most, least) = (open().map(|i| views[i].load).max()?, views[idlest].load);
                let is_uneven =
                    most > least + UNEVEN_BY && most as f64 > UNEVEN_TIMES * least as f64;
                let known = if is_uneven { None } else { self.known(asked, views) };
                known.unwrap_or(idlest)
            }
            Policy::Kv => {
                let cost = |i: &usize| {
                    let view = &views[*i];
                    let unread =
                        view.unread + (asked.prompt - view.cached.min(asked.prompt)) as f64;
                    (unread / BLOCK).ceil() + ((view.held + asked.prompt as f64) / BLOCK).ceil()
                };
                open().min_by(|a, b| cost(a).total_cmp(&cost(b)))?
            }
        };
        self.next = chosen + 1;
        self.talks.insert(asked.talk, (chosen, asked.prompt));
        let seen = self.systems.entry(asked.system).or_default();
        if !seen.contains(&chosen) {
            seen.push(chosen);
        }
        Some(chosen)
    }

    /// Where enough of the text was sent before.
    fn known(&self, asked: &Asked, views: &[View]) -> Option<usize> {
        let share = |tokens: usize| tokens as f64 / asked.prompt.max(1) as f64;
        if let Some((worker, tokens)) = self.talks.get(&asked.talk)
            && views[*worker].is_open
            && share(*tokens) > KNOWN_SHARE
        {
            return Some(*worker);
        }
        let seen =
            self.systems.get(&asked.system).filter(|_| share(asked.system_tokens) > KNOWN_SHARE)?;
        seen.iter().copied().filter(|worker| views[*worker].is_open).min_by_key(|w| views[*w].load)
    }
}
