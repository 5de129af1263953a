//! A simulated worker: slots, a queue, a prefix cache, and the server's wheel: passes over prompts,
//! several at once, and rounds of every answer between them.

use super::Random;
use super::curves::Curves;
use super::router::{Asked, View};
use std::collections::{HashMap, VecDeque};

/// Beside running answers prompts are read this long at a time, and at least so many tokens.
const CHUNK_S: f64 = 0.04;
const CHUNK_TOKENS: f64 = 64.0;
/// Alone they are read in passes of so many, on a processor of fewer.
const ALONE_TOKENS: f64 = 2048.0;
const ALONE_ON_PROCESSOR: f64 = 256.0;
/// Seconds of rounds for each second of a pass over prompts, before the next one.
const ROUNDS_A_CHUNK: f64 = 1.25;

/// An answer in the works.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) asked: Asked,
    pub(super) turn: usize,
    pub(super) at: f64,
    pub(super) cached: usize,
    unread: f64,
    /// Tokens of the answer, and of those the ones still to be written.
    pub(super) answer: f64,
    pub(super) left: f64,
    /// When the first token came.
    pub(super) first: Option<f64>,
    /// Tokens of the answer that were written elsewhere, before a worker died.
    pub(super) written: f64,
}

impl Job {
    pub(super) fn new(asked: Asked, turn: usize, at: f64, answer: f64) -> Self {
        let (cached, unread, first, written) = (0, 0.0, None, 0.0);
        Self { asked, turn, at, cached, unread, answer, left: answer, first, written }
    }

    /// Tokens of the prompt that have been read.
    fn read(&self) -> f64 {
        self.asked.prompt as f64 + self.written - self.unread
    }
}

/// States that are kept, by conversation and by system prompt; the least recently used go.
#[derive(Debug, Default)]
struct Cache {
    entries: HashMap<Key, (usize, u64)>,
    tokens: usize,
    clock: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Talk(usize),
    System(usize),
}

impl Cache {
    fn cached(&self, asked: &Asked) -> usize {
        let of = |key| self.entries.get(&key).map_or(0, |(tokens, _)| *tokens);
        of(Key::Talk(asked.talk)).max(of(Key::System(asked.system))).min(asked.prompt - 1)
    }

    fn keep(&mut self, key: Key, tokens: usize, most: usize) {
        self.clock += 1;
        let before = self.entries.insert(key, (tokens, self.clock)).map_or(0, |(tokens, _)| tokens);
        self.tokens += tokens - before.min(tokens);
        while self.tokens > most
            && let Some(oldest) = self.entries.iter().min_by_key(|(_, (_, used))| *used)
        {
            let (key, tokens) = (*oldest.0, oldest.1.0);
            self.entries.remove(&key);
            self.tokens -= tokens.min(self.tokens);
        }
    }
}

/// A turn of the wheel.
#[derive(Debug, Default)]
enum Turn {
    /// A round of every answer.
    #[default]
    Write,
    /// A pass over so many tokens of each prompt that is read.
    Read(Vec<f64>),
}

#[derive(Debug, Default)]
pub(super) struct Worker {
    pub(super) is_up: bool,
    /// Finishes what it has and takes nothing new.
    pub(super) drains: bool,
    waiting: VecDeque<Job>,
    reading: VecDeque<Job>,
    writing: Vec<Job>,
    cache: Cache,
    /// What is under way.
    turn: Turn,
    /// Seconds of rounds that have to go by before prompts are read again.
    owed: f64,
    /// Counts lives and idle times, so that a turn planned in another one is not taken.
    pub(super) life: u64,
    pub(super) is_turning: bool,
}

impl Worker {
    /// One that takes requests.
    pub(super) fn open() -> Self {
        Self { is_up: true, ..Self::default() }
    }

    pub(super) fn load(&self) -> usize {
        self.waiting.len() + self.reading.len() + self.writing.len()
    }

    pub(super) fn view(&self, asked: &Asked) -> View {
        let all = self.waiting.iter().chain(&self.reading);
        let held = self.reading.iter().chain(&self.writing);
        View {
            is_open: self.is_up && !self.drains,
            load: self.load(),
            unread: all.map(|job| job.unread).sum(),
            held: held.map(|job| job.asked.prompt as f64).sum(),
            cached: self.cache.cached(asked),
        }
    }

    pub(super) fn take(&mut self, mut job: Job) {
        job.unread = (job.asked.prompt - self.cache.cached(&job.asked)) as f64;
        self.waiting.push_back(job);
    }

    /// Begins a turn of the wheel; how long it takes, where there is anything to do.
    pub(super) fn begin_turn(
        &mut self,
        curves: &Curves,
        slots: usize,
        chunk: Option<usize>,
        random: &mut Random,
    ) -> Option<f64> {
        while self.reading.len() + self.writing.len() < slots
            && let Some(mut job) = self.waiting.pop_front()
        {
            job.cached = self.cache.cached(&job.asked);
            job.unread = (job.asked.prompt - job.cached) as f64 + job.written;
            self.reading.push_back(job);
        }
        let writing = self.writing.len();
        if !self.reading.is_empty() && (writing == 0 || self.owed <= 0.0) {
            let most = match (writing, chunk) {
                (0, None) => ALONE_TOKENS,
                (0, Some(_)) => ALONE_ON_PROCESSOR,
                (_, Some(tokens)) => tokens as f64,
                (_, None) => curves.prompt_tokens(CHUNK_S).max(CHUNK_TOKENS),
            };
            let shares = self.shares(most);
            let before = self.reading.iter().zip(&shares).map(|(job, share)| job.read() * share);
            let seconds = curves.prompt_s(before.sum(), shares.iter().sum(), random);
            self.owed = ROUNDS_A_CHUNK * seconds;
            self.turn = Turn::Read(shares);
            return Some(seconds);
        }
        self.turn = Turn::Write;
        if writing == 0 {
            return None;
        }
        let before = self.writing.iter().map(|job| job.read() + job.answer - job.left);
        let seconds = curves.round_s(writing, before.sum());
        self.owed -= seconds;
        Some(seconds)
    }

    /// How many of a pass's tokens each prompt has: half of them are those of who has waited
    /// longest, the others go to who has least left.
    fn shares(&self, most: f64) -> Vec<f64> {
        let mut shares = vec![0.0; self.reading.len()];
        let mut room = most;
        let mut order: Vec<usize> = (1..shares.len()).collect();
        order.sort_by(|a, b| self.reading[*a].unread.total_cmp(&self.reading[*b].unread));
        let half = (0, (most / 2.0).ceil());
        let others = order.into_iter().chain([0]).map(|i| (i, most));
        for (i, limit) in [half].into_iter().chain(others) {
            let more = (self.reading[i].unread - shares[i]).min(limit).min(room);
            shares[i] += more;
            room -= more;
        }
        shares
    }

    /// Ends it at `now`, where a round has so many tokens of every answer; those that are whole.
    pub(super) fn end_turn(&mut self, now: f64, round: f64, kept: usize) -> Vec<Job> {
        match std::mem::take(&mut self.turn) {
            Turn::Write => self.writing.iter_mut().for_each(|job| job.left -= round),
            Turn::Read(shares) => self.end_read(now, &shares, kept),
        }
        let whole = self.writing.extract_if(.., |job| job.left <= 0.0).collect::<Vec<Job>>();
        for job in whole.iter().filter(|job| job.asked.has_answers) {
            let tokens = job.asked.prompt + job.answer as usize;
            self.cache.keep(Key::Talk(job.asked.talk), tokens, kept);
        }
        whole
    }

    /// Prompts that have been read to their end have a first token.
    fn end_read(&mut self, now: f64, shares: &[f64], kept: usize) {
        // Nobody joins a pass that is under way; who was first is behind the others now.
        let mut jobs: Vec<Job> = self.reading.drain(..).collect();
        jobs.rotate_left(1);
        let shares = shares[1..].iter().chain(&shares[..1]);
        for (mut job, share) in jobs.into_iter().zip(shares) {
            job.unread -= share;
            let asked = job.asked;
            if job.read() >= asked.system_tokens as f64 {
                self.cache.keep(Key::System(asked.system), asked.system_tokens, kept);
            }
            if job.unread > 0.0 {
                self.reading.push_back(job);
                continue;
            }
            job.first.get_or_insert(now);
            job.left -= 1.0;
            self.cache.keep(Key::Talk(asked.talk), asked.prompt - asked.question, kept);
            self.writing.push(job);
        }
    }

    /// It is gone, and with it its cache; who was on it.
    pub(super) fn die(&mut self) -> Vec<Job> {
        let jobs =
            self.waiting.drain(..).chain(self.reading.drain(..)).chain(self.writing.drain(..));
        let jobs = jobs.collect();
        *self = Self { life: self.life + 1, ..Self::default() };
        jobs
    }
}
