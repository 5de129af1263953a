//! The engine's own thread. It takes jobs from a channel and turns a wheel: let go of who has left,
//! admit who waits, read one chunk of one prompt, run one round of the answers whose turn it is. So
//! a long prompt stalls nobody, and whoever hangs up has left the pass by the next round.

use crate::answer::{Answer, Begun, Reading};
use crate::chunk::Chunk;
use crate::error::ApiError;
use crate::job::{Event, News, Ticket};
use crate::metrics::Metrics;
use crate::prefix::PrefixCache;
use crate::room::{self, Away};
use crate::turns::Turns;
use engine::sampling::Constraint;
use engine::{Engine, Generation, Sequence};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;
use text::Tokenizer;

/// Sequences that a pass can hold, each with at least its anchor's row.
pub const MAX_SLOTS: usize = 32;

/// What the thread works with.
pub(crate) struct Scheduler {
    pub(crate) engine: Engine,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) cache: PrefixCache<Engine>,
    pub(crate) metrics: Arc<Metrics>,
    /// What of a prompt is read between two rounds of other answers.
    pub(crate) chunk: Chunk,
    /// Set to give up what is under way.
    pub(crate) abandon: Arc<AtomicBool>,
    /// Sequences under way at most.
    pub(crate) slots: usize,
    /// Tokens that a sequence may hold.
    pub(crate) context: usize,
    /// Name of the way tokens are proposed.
    pub(crate) mode: &'static str,
    pub(crate) load_s: f64,
}

/// One answer that waits for a slot.
pub(crate) struct Waiting {
    pub(crate) ticket: Arc<Ticket>,
    /// Which of the ticket's choices.
    pub(crate) choice: usize,
    /// The state that a sibling left after reading all of the prompt but its last token.
    pub(crate) start: Option<Sequence>,
}

/// What is under way.
pub(crate) struct Work {
    waiting: VecDeque<Waiting>,
    reading: VecDeque<Reading>,
    pub(crate) answers: Turns<Answer>,
    /// Answers that had to make way, who left first in front.
    pub(crate) away: VecDeque<Away>,
    /// Texts that were under way when there was no room for another; as long as none of them ends
    /// there is none.
    full: Option<usize>,
    /// Rounds in a row that failed as a whole.
    failed: usize,
}

impl Work {
    fn new() -> Self {
        let (waiting, reading, away) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        Self { waiting, reading, answers: Turns::new(), away, full: None, failed: 0 }
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.busy_slots() == 0 && self.away.is_empty()
    }

    fn held_tokens(&self) -> usize {
        let reading = self.reading.iter().map(|reading| reading.sequence.committed());
        reading.chain(self.answers.iter().map(Answer::held_tokens)).sum()
    }

    /// Texts under way, those that had to make way apart.
    pub(crate) fn busy_slots(&self) -> usize {
        self.reading.len() + self.answers.len()
    }
}

impl Scheduler {
    /// Works until every sender is gone and nothing is left to do.
    pub(crate) fn run(mut self, jobs: &Receiver<Arc<Ticket>>) {
        let mut work = Work::new();
        while self.take_jobs(&mut work, jobs) {
            self.let_go(&mut work);
            self.admit(&mut work);
            self.change_turns(&mut work);
            self.run_round(&mut work);
            self.metrics.running.set(work.busy_slots() as i64);
            self.metrics.waiting.set((work.waiting.len() + work.away.len()) as i64);
            self.metrics.state_bytes.set(self.engine.backend().budget().held() as i64);
            self.metrics
                .kv_usage
                .set(work.held_tokens() as f64 / (self.slots * self.context) as f64);
        }
    }

    /// Takes what has come; waits where there is nothing to do. Nothing is left when it says no.
    fn take_jobs(&self, work: &mut Work, jobs: &Receiver<Arc<Ticket>>) -> bool {
        let take = |ticket: Arc<Ticket>, work: &mut Work| {
            work.waiting.push_back(Waiting { ticket, choice: 0, start: None });
        };
        if work.is_empty() {
            match jobs.recv() {
                Ok(ticket) => take(ticket, work),
                Err(_) => return false,
            }
        }
        loop {
            match jobs.try_recv() {
                Ok(ticket) => take(ticket, work),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return true,
            }
        }
    }

    /// Drops what nobody waits for any more and what has run out of time.
    fn let_go(&self, work: &mut Work) {
        let now = Instant::now();
        let abandon = self.abandon.load(Ordering::Relaxed);
        let stays = |ticket: &Ticket, choice: usize| {
            let late = ticket.deadline.is_some_and(|d| d <= now);
            if ticket.events.is_closed() || late || abandon {
                self.metrics.add_abort();
                let seconds = now.duration_since(ticket.arrived).as_secs();
                fail(
                    ticket,
                    choice,
                    if abandon { ApiError::Closing } else { ApiError::Deadline { seconds } },
                );
                return false;
            }
            true
        };
        work.waiting.retain(|w| stays(&w.ticket, w.choice));
        work.reading.retain(|r| stays(&r.ticket, r.choice));
        work.answers.retain(|a| {
            let stays = stays(&a.ticket, a.choice);
            if !stays {
                a.record(&a.outcome());
            }
            stays
        });
        work.away.retain(|away| {
            let answer = &away.answer;
            let stays = stays(&answer.ticket, answer.choice);
            if !stays {
                answer.record(&answer.outcome());
            }
            stays
        });
    }

    /// Gives free slots to those who wait, first come, first served.
    fn admit(&mut self, work: &mut Work) {
        self.bring_back(work);
        // Where there is no room for those who have begun, nobody new is let in.
        work.full = work.full.filter(|full| *full > 0 && work.busy_slots() >= *full);
        while work.away.is_empty()
            && work.full.is_none()
            && work.busy_slots() < self.slots
            && let Some(Waiting { ticket, choice, start }) = work.waiting.pop_front()
        {
            let prompt = &ticket.job.prompt;
            let sibling = start.is_some();
            let (cached, sequence) = match start {
                Some(sequence) => (sequence.committed(), sequence),
                // What is to be scored has to be read.
                None if ticket.job.scores.is_some() => (0, self.engine.sequence()),
                None => match self.cache.find(&mut self.engine, prompt) {
                    Some(found) => found,
                    None => (0, self.engine.sequence()),
                },
            };
            if !sibling {
                self.metrics.prompt_tokens.inc_by(prompt.len() as u64);
                if ticket.job.scores.is_none() {
                    self.metrics.cached_queries.inc_by(prompt.len() as u64);
                    self.metrics.cached_hits.inc_by(cached as u64);
                }
                self.note_cache();
            }
            let opening = self.tokenizer.special("<|im_start|>");
            let reading = Reading::new(ticket, choice, sequence, cached, opening);
            reading.tell();
            admit_siblings(&reading, &mut work.waiting);
            work.reading.push_back(reading);
        }
    }

    /// Reads a chunk of a prompt where it is time for one, and lets the next answers go on where a
    /// turn is over.
    fn change_turns(&mut self, work: &mut Work) {
        if !work.reading.is_empty() && work.answers.let_read() {
            let start = Instant::now();
            self.read_chunk(work);
            work.answers.add_chunk(start.elapsed().as_secs_f64());
        }
        if work.answers.is_over() {
            work.answers.on().iter_mut().for_each(Answer::end_turn);
            work.answers.next();
            work.answers.on().iter_mut().for_each(Answer::begin_turn);
        }
    }

    /// Reads a chunk of the prompt that has waited longest for one.
    fn read_chunk(&mut self, work: &mut Work) {
        let Some(mut reading) = work.reading.pop_front() else { return };
        if reading.ticket.job.room == 0 && reading.is_at_last() {
            self.end_unwritten(&reading);
            return;
        }
        let scores = reading.ticket.job.scores;
        let largest = self.engine.model().options().max_rows;
        let is_alone = work.answers.is_empty();
        let limit = if is_alone { largest } else { self.chunk.tokens() };
        let limit = if scores.is_some() { limit.min(self.engine.scored_rows()) } else { limit };
        let end = reading.chunk_end(limit);
        let ticket = Arc::clone(&reading.ticket);
        let prompt = &ticket.job.prompt;
        let choice = reading.choice;
        let rows = end - reading.sequence.committed();
        while let Err(error) = self.engine.reserve(&mut reading.sequence, rows) {
            if !error.is_out_of_memory() || !self.drop_kept() {
                drop(reading);
                return self.not_begun(work, ticket, choice, &error);
            }
        }
        self.metrics.prefill_tokens.inc_by((end - reading.sequence.committed()) as u64);
        if end < prompt.len() {
            let (from, start) = (reading.sequence.committed(), Instant::now());
            let read = guarded(|| {
                match scores {
                    None => self.engine.read(&mut reading.sequence, &prompt[from..end])?,
                    Some(top) => {
                        let (tokens, following) = (&prompt[from..end], &prompt[from + 1..=end]);
                        let sequence = &mut reading.sequence;
                        reading
                            .scores
                            .extend(self.engine.read_scored(sequence, tokens, following, top)?);
                    }
                }
                // A device may still be at it; who is told of progress is told what has been read
                // indeed.
                if is_alone && !ticket.job.progress {
                    Ok(())
                } else {
                    Ok(self.engine.backend().finish()?)
                }
            });
            match read {
                Ok(()) => {
                    if !is_alone && scores.is_none() {
                        self.chunk.add(end - from, start.elapsed().as_secs_f64());
                    }
                    reading.tell();
                    self.keep(&reading);
                    if reading.is_at_last() {
                        reading.tell_scores();
                    }
                    admit_siblings(&reading, &mut work.waiting);
                    work.reading.push_back(reading);
                }
                Err(error) => fail(&ticket, choice, error),
            }
            return;
        }
        let begun = Begun::of(&reading, self.mode, self.load_s);
        let generation = match guarded(|| Ok(self.begin(reading))) {
            Ok(Err(error)) => return self.not_begun(work, ticket, choice, &error),
            Ok(Ok(generation)) => Ok(generation),
            Err(error) => Err(error),
        };
        match generation {
            Ok(mut generation) => {
                let likelihood = ticket.job.likelihoods.map(|top| {
                    generation.tell_likelihoods(top);
                    self.engine.first_likelihood(&generation, top)
                });
                let likelihood = match likelihood.transpose() {
                    Ok(likelihood) => likelihood,
                    Err(error) => {
                        return fail(&ticket, choice, ApiError::Internal(error.to_string()));
                    }
                };
                self.metrics.first_token.observe(ticket.arrived.elapsed().as_secs_f64());
                self.metrics.generation_tokens.inc();
                let mut answer = Answer::new(begun, generation, Arc::clone(&self.tokenizer));
                match answer.take_first(likelihood) {
                    true => self.end(answer),
                    false => work.answers.push(answer),
                }
            }
            Err(error) => fail(&ticket, choice, error),
        }
    }

    /// A prompt that could not be read. For want of room it is read again when others have ended;
    /// where there are none it does not fit at all.
    fn not_begun(
        &mut self,
        work: &mut Work,
        ticket: Arc<Ticket>,
        choice: usize,
        error: &engine::Error,
    ) {
        let others = work.busy_slots();
        match error.is_out_of_memory() {
            true if self.drop_kept() || others > 0 || !work.away.is_empty() => {
                work.full = Some(others);
                work.waiting.push_front(Waiting { ticket, choice, start: None });
            }
            true => fail(&ticket, choice, room::too_large(ticket.job.prompt.len())),
            false => fail(&ticket, choice, told(&ticket, error)),
        }
    }

    /// Ends answers that are to have no tokens, now that their prompt has been read.
    fn end_unwritten(&mut self, reading: &Reading) {
        let Ticket { job, events, record, .. } = &*reading.ticket;
        for choice in job.first_choice..job.first_choice + job.choices.len() {
            let outcome = Begun::of(reading, self.mode, self.load_s).unwritten();
            self.metrics.add_answer(&outcome, &reading.ticket);
            if let Some(record) = record {
                record.add_answer(&outcome, choice == job.first_choice);
            }
            let _ = events.send(Event { choice, news: News::Done(Box::new(outcome)) });
        }
    }

    fn begin(&mut self, reading: Reading) -> Result<Generation, engine::Error> {
        let Reading { ticket, choice, sequence, .. } = reading;
        let prompt = &ticket.job.prompt;
        let unread = &prompt[sequence.committed()..];
        let sampling = ticket.job.choices[choice].clone();
        let held = Some(ticket.job.held.clone()).filter(|held| !held.is_free());
        let constraint = held.map(|held| Box::new(held) as Box<dyn Constraint>);
        let ends = ticket.job.ends.clone();
        self.engine.begin_within(constraint, sequence, unread, prompt, sampling, ends, |_| ())
    }

    /// Keeps the state where a prompt has just been read up to a place worth coming back to.
    fn keep(&mut self, reading: &Reading) {
        if reading.at_mark() {
            let sequence = &reading.sequence;
            let tokens = &reading.ticket.job.prompt[..sequence.committed()];
            self.cache.insert(&mut self.engine, tokens, sequence.clone());
            self.note_cache();
        }
    }

    /// One round of every answer whose turn it is, verified in one pass.
    fn run_round(&mut self, work: &mut Work) {
        let on = work.answers.on();
        if on.is_empty() {
            return;
        }
        let start = Instant::now();
        let mut texts: Vec<_> = on.iter_mut().map(Answer::text).collect();
        let rounds = match guarded(|| Ok(self.engine.step_all(&mut texts))) {
            Ok(Ok(rounds)) => rounds,
            Ok(Err(error)) => return self.no_round(work, error),
            Err(error) => {
                // A panic: nobody knows where they are.
                on.drain(..).for_each(|a| a.fail(error.clone()));
                return;
            }
        };
        work.failed = 0;
        work.away.iter_mut().for_each(Away::wait);
        let on = work.answers.on();
        let answers = std::mem::take(on);
        let (texts, mut tokens) = (answers.len(), 0);
        for (mut answer, round) in answers.into_iter().zip(&rounds) {
            let round = match round {
                Ok(round) => round,
                Err(error) => {
                    fail(&answer.ticket, answer.choice, told(&answer.ticket, error));
                    continue;
                }
            };
            self.metrics.add_round(round, answer.since_last());
            tokens += round.emitted.len();
            match answer.take_round(round) {
                true => self.end(answer),
                false => work.answers.on().push(answer),
            }
        }
        work.answers.add_round(texts, tokens, start.elapsed().as_secs_f64());
    }

    /// A round that could not be run has changed nothing. Where there was no room for it somebody
    /// makes way; another failure may have been a passing one, and is tried again once.
    fn no_round(&mut self, work: &mut Work, error: engine::Error) {
        if error.is_out_of_memory() && self.make_way(work) {
            return;
        }
        work.failed += 1;
        if work.failed < 2 && !error.is_lost() && !error.is_out_of_memory() {
            tracing::warn!(cause = %error, "a round failed and is tried again");
            return;
        }
        tracing::error!(cause = %error, "a round failed");
        let is_alone = work.busy_slots() == 1;
        for answer in work.answers.on().drain(..) {
            let tokens = answer.held_tokens();
            let too_large = is_alone && error.is_out_of_memory();
            let error =
                if too_large { room::too_large(tokens) } else { told(&answer.ticket, &error) };
            answer.fail(error);
        }
    }

    /// Tells that an answer is whole and keeps the state it left.
    fn end(&mut self, answer: Answer) {
        let outcome = answer.outcome();
        self.metrics.add_answer(&outcome, &answer.ticket);
        answer.record(&outcome);
        answer.tell(News::Done(Box::new(outcome)));
        let (tokens, sequence) = answer.into_state();
        self.cache.insert(&mut self.engine, &tokens, sequence);
        self.note_cache();
    }

    pub(crate) fn note_cache(&self) {
        let (near, far) = self.cache.bytes();
        self.metrics.cache_bytes.set(near as i64);
        self.metrics.cache_host_bytes.set(far as i64);
        self.metrics.cache_entries.set(self.cache.len() as i64);
    }
}

/// Lets the other answers to a prompt begin once the first has read all of it but the last token.
fn admit_siblings(reading: &Reading, waiting: &mut VecDeque<Waiting>) {
    let job = &reading.ticket.job;
    if reading.choice > 0 || job.room == 0 || !reading.is_at_last() {
        return;
    }
    for choice in (1..job.choices.len()).rev() {
        let (ticket, start) = (Arc::clone(&reading.ticket), Some(reading.sequence.clone()));
        waiting.push_front(Waiting { ticket, choice, start });
    }
}

impl Answer {
    /// It ends here.
    pub(crate) fn fail(&self, error: ApiError) {
        fail(&self.ticket, self.choice, error);
    }
}

/// Tells a client that there is no more; whoever has left does not hear it.
fn fail(ticket: &Ticket, choice: usize, error: ApiError) {
    if let Some(record) = ticket.record.as_ref().filter(|_| !ticket.events.is_closed()) {
        record.fail(&error);
    }
    let choice = ticket.job.first_choice + choice;
    let _ = ticket.events.send(Event { choice, news: News::Failed(error) });
}

/// What a client is told of an error: one of what the answer is held to is about the request, and
/// its own.
fn told(ticket: &Ticket, error: &engine::Error) -> ApiError {
    match error {
        engine::Error::Constraint { reason, .. } => ticket.job.held.error(reason),
        error => ApiError::Internal(error.to_string()),
    }
}

/// Runs a part of the engine; a panic becomes an error. Passes only read committed state, and a
/// commit that was cut short belongs to a sequence that is dropped with the error.
fn guarded<T>(work: impl FnOnce() -> Result<T, engine::Error>) -> Result<T, ApiError> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|error| ApiError::Internal(error.to_string())),
        Err(_) => Err(ApiError::Internal("the engine panicked".to_owned())),
    }
}
