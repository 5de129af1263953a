//! A simulated worker: slots, a queue, a prefix cache, and the server's wheel: a chunk of one prompt,
//! then a round of every answer.

use super::curves::Curves;
use super::router::{Asked, View};
use std::collections::{HashMap, VecDeque};

/// Beside running answers a prompt is read this long at a time, and at least so many tokens.
const CHUNK_S: f64 = 0.04;
const CHUNK_TOKENS: f64 = 64.0;
/// Alone it is read in chunks of so many.
const ALONE_TOKENS: f64 = 2048.0;

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

    /// Tokens that can be read at once: states are kept where the first message ends and where the
    /// last two begin, so chunks end there.
    fn until_mark(&self) -> f64 {
        let Asked { prompt, system_tokens, question, before, .. } = self.asked;
        let read = self.read();
        let marks = [system_tokens, prompt - question - before, prompt - question];
        let next = marks.into_iter().map(|mark| mark as f64 - read).filter(|tokens| *tokens > 0.0);
        next.fold(self.unread, f64::min)
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

#[derive(Debug, Default)]
pub(super) struct Worker {
    pub(super) is_up: bool,
    /// Finishes what it has and takes nothing new.
    pub(super) drains: bool,
    waiting: VecDeque<Job>,
    reading: VecDeque<Job>,
    writing: Vec<Job>,
    cache: Cache,
    /// What the turn of the wheel that is under way will have read of the first prompt.
    chunk: f64,
    /// Seconds of it behind that, which are the answers'.
    round: f64,
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
    ) -> Option<f64> {
        while self.reading.len() + self.writing.len() < slots
            && let Some(mut job) = self.waiting.pop_front()
        {
            job.cached = self.cache.cached(&job.asked);
            job.unread = (job.asked.prompt - job.cached) as f64 + job.written;
            self.reading.push_back(job);
        }
        let writing = self.writing.len();
        let mut seconds = 0.0;
        (self.chunk, self.round) = (0.0, 0.0);
        if let Some(first) = self.reading.front() {
            let most = match (writing, chunk) {
                (0, _) => ALONE_TOKENS,
                (_, Some(tokens)) => tokens as f64,
                (_, None) => curves.prompt_tokens(CHUNK_S).max(CHUNK_TOKENS),
            };
            self.chunk = first.until_mark().min(most);
            seconds += curves.prompt_s(first.read(), self.chunk);
        }
        if writing > 0 {
            let before = self.writing.iter().map(|job| job.read() + job.answer - job.left);
            self.round = curves.round_s(writing, before.sum());
            seconds += self.round;
        }
        (seconds > 0.0 || !self.reading.is_empty()).then_some(seconds)
    }

    /// Ends it at `now`, with so many tokens more of every answer; those that are whole.
    pub(super) fn end_turn(&mut self, now: f64, round: f64, kept: usize) -> Vec<Job> {
        self.writing.iter_mut().for_each(|job| job.left -= round);
        let whole = self.writing.extract_if(.., |job| job.left <= 0.0).collect::<Vec<Job>>();
        for job in whole.iter().filter(|job| job.asked.has_answers) {
            let tokens = job.asked.prompt + job.answer as usize;
            self.cache.keep(Key::Talk(job.asked.talk), tokens, kept);
        }
        let Some(mut job) = self.reading.pop_front() else { return whole };
        job.unread -= self.chunk;
        let asked = job.asked;
        if job.read() >= asked.system_tokens as f64 {
            self.cache.keep(Key::System(asked.system), asked.system_tokens, kept);
        }
        if job.unread > 0.0 {
            // Prompts take turns.
            self.reading.push_back(job);
            return whole;
        }
        job.first.get_or_insert(now - self.round);
        job.left -= 1.0;
        self.cache.keep(Key::Talk(asked.talk), asked.prompt - asked.question, kept);
        self.writing.push(job);
        whole
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
