//! The engine's own thread. It takes jobs from a channel and turns a wheel: let go of who has left,
//! admit who waits, read one chunk of one prompt, run one round of the answers whose turn it is. So
//! a long prompt stalls nobody, and whoever hangs up has left the pass by the next round.

use crate::answer::Answer;
use crate::batches::Batches;
use crate::beside::Change;
use crate::disk::{Disk, Fetching};
use crate::error::ApiError;
use crate::failure::{Failure, guarded};
use crate::job::{Event, EventKind, Ticket};
use crate::metrics::Metrics;
use crate::prefill::PrefillBudget;
use crate::prefix::{Hit, PrefixCache, Source};
use crate::reading::{Reading, admit_siblings};
use crate::rebuild::{Health, Load};
use crate::room::{self, Away};
use engine::{Engine, Sequence};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};
use text::Tokenizer;
use tokio::sync::mpsc::UnboundedSender;

/// Sequences that a pass can hold, each with at least its tip's row. Backends may have fewer rows.
pub const MAX_SLOTS: usize = 256;

/// A thread with nothing else to do writes a state down this often.
const SAVE_EVERY: Duration = Duration::from_millis(1);

/// What the thread works with.
pub(crate) struct Scheduler {
    pub(crate) engine: Engine,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) cache: PrefixCache<Engine>,
    /// Where states outlive the process.
    pub(crate) disk: Option<Disk>,
    pub(crate) metrics: Arc<Metrics>,
    /// What of a prompt is read between two rounds of other answers.
    pub(crate) prefill_budget: PrefillBudget,
    /// Set to give up what is under way.
    pub(crate) abandon: Arc<AtomicBool>,
    /// Sequences under way at most.
    pub(crate) slots: usize,
    /// Tokens that a sequence may hold.
    pub(crate) context: usize,
    /// Name of the way tokens are proposed.
    pub(crate) mode: &'static str,
    pub(crate) load_s: f64,
    /// Builds the engine anew.
    pub(crate) load: Load,
    /// When it was last.
    pub(crate) rebuilt: Option<Instant>,
    /// What the cache may take where passes read it, and in the host's memory.
    pub(crate) cache_bytes: usize,
    pub(crate) host_cache_bytes: usize,
    pub(crate) health: Arc<Health>,
    /// Who hears what the cache keeps.
    pub(crate) listener: Option<UnboundedSender<Change>>,
    /// Why the device is lost, where it is.
    pub(crate) lost: Option<String>,
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
    pub(crate) waiting: VecDeque<Waiting>,
    /// Those whose prompts' beginnings are being read from files.
    pub(crate) fetching: VecDeque<Fetching>,
    pub(crate) reading: VecDeque<Reading>,
    pub(crate) answers: Batches<Answer>,
    /// Answers that had to make way, who left first in front.
    pub(crate) away: VecDeque<Away>,
    /// Texts that were under way when there was no room for another; as long as none of them ends
    /// there is none.
    pub(crate) full: Option<usize>,
    /// Rounds in a row that failed as a whole.
    pub(crate) failed: usize,
}

impl Work {
    fn new() -> Self {
        let (waiting, reading, away) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        let (fetching, answers) = (VecDeque::new(), Batches::new());
        Self { waiting, fetching, reading, answers, away, full: None, failed: 0 }
    }

    fn is_empty(&self) -> bool {
        self.is_idle() && self.fetching.is_empty()
    }

    /// Whether there is nothing to do but to wait for files.
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.busy_slots() == 0 && self.away.is_empty()
    }

    fn held_tokens(&self) -> usize {
        let reading = self.reading.iter().map(|reading| reading.sequence.committed());
        reading.chain(self.answers.iter().map(Answer::held_tokens)).sum()
    }

    fn waiting_len(&self) -> usize {
        self.waiting.len() + self.fetching.len() + self.away.len()
    }

    /// Texts under way, those that had to make way apart.
    pub(crate) fn busy_slots(&self) -> usize {
        self.reading.len() + self.answers.len()
    }
}

impl Scheduler {
    /// Works until every sender is gone and nothing is left to do, or until there is nothing left
    /// to work with; then it says why.
    pub(crate) fn run(mut self, jobs: &Receiver<Arc<Ticket>>) -> Result<(), String> {
        let mut work = Work::new();
        while self.take_jobs(&mut work, jobs) {
            self.let_go(&mut work);
            self.admit(&mut work);
            self.change_turns(&mut work);
            self.run_round(&mut work);
            self.save_one(&work);
            self.metrics.running.set(work.busy_slots() as i64);
            self.metrics.waiting.set(work.waiting_len() as i64);
            self.metrics.state_bytes.set(self.engine.held() as i64);
            self.metrics
                .kv_usage
                .set(work.held_tokens() as f64 / (self.slots * self.context) as f64);
            if let Some(reason) = self.lost.take() {
                self = self.rebuild(&mut work, jobs, reason)?;
            }
        }
        self.save_rest();
        Ok(())
    }

    /// Takes what has come; waits where there is nothing to do. Nothing is left when it says no.
    fn take_jobs(&self, work: &mut Work, jobs: &Receiver<Arc<Ticket>>) -> bool {
        let take = |ticket: Arc<Ticket>, work: &mut Work| {
            work.waiting.push_back(Waiting { ticket, choice: 0, start: None });
        };
        if work.is_empty() {
            let came = match self.has_unsaved() {
                true => jobs.recv_timeout(SAVE_EVERY),
                false => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match came {
                Ok(ticket) => take(ticket, work),
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        } else if work.is_idle()
            && let Some(first) = work.fetching.front_mut()
        {
            first.wait();
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
        work.fetching.retain(|f| stays(&f.waiting.ticket, f.waiting.choice));
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
            && let Some((Waiting { ticket, choice, start }, hit)) = self.next_to_begin(work)
        {
            let prompt = &ticket.job.prompt;
            let sibling = start.is_some();
            let (sequence, from) = match (start, hit) {
                (Some(sequence), _) => (sequence, Some(Source::Memory)),
                (None, Some(Hit { state, from, .. })) => (state, Some(from)),
                (None, None) => (self.engine.sequence(), None),
            };
            let cached = sequence.committed();
            if !sibling && !ticket.done.counted.swap(true, Ordering::Relaxed) {
                self.metrics.prompt_tokens.inc_by(ticket.job.asked_tokens() as u64);
                if ticket.job.scores.is_none() {
                    self.metrics.cached_queries.inc_by(prompt.len() as u64);
                    self.metrics.add_hit(cached, from);
                }
                self.note_cache();
            }
            let openings =
                ["<|im_start|>", "<tool_response>"].map(|name| self.tokenizer.special(name));
            let from = from.filter(|_| cached > 0);
            let reading = Reading::new(ticket, choice, sequence, cached, from, openings);
            reading.tell();
            admit_siblings(&reading, &mut work.waiting);
            work.reading.push_back(reading);
        }
    }

    /// Reads a chunk of a prompt where it is time for one, and lets the next answers go on where a
    /// turn is over.
    fn change_turns(&mut self, work: &mut Work) {
        if !work.reading.is_empty() && work.answers.may_read() {
            let start = Instant::now();
            self.read_chunk(work);
            work.answers.add_chunk(start.elapsed().as_secs_f64());
        }
        if work.answers.is_turn_over() {
            work.answers.batch.iter_mut().for_each(Answer::end_turn);
            work.answers.next_turn();
            work.answers.batch.iter_mut().for_each(Answer::begin_turn);
        }
    }

    /// One round of every answer whose turn it is, verified in one pass.
    fn run_round(&mut self, work: &mut Work) {
        if work.answers.batch.is_empty() {
            return;
        }
        let start = Instant::now();
        let mut texts: Vec<_> = work.answers.batch.iter_mut().map(Answer::text).collect();
        let rounds = match guarded(|| self.engine.step_all(&mut texts)) {
            Ok(rounds) => rounds,
            Err(failure) => return self.no_round(work, failure),
        };
        work.failed = 0;
        work.away.iter_mut().for_each(Away::wait);
        let answers = std::mem::take(&mut work.answers.batch);
        let mut tokens = 0;
        for (mut answer, round) in answers.into_iter().zip(rounds) {
            let round = match round {
                Ok(round) => round,
                Err(error) => {
                    let error = self.told(&answer.ticket, &Failure::Engine(error));
                    answer.fail(error);
                    continue;
                }
            };
            self.metrics.add_round(&round, answer.since_last());
            tokens += round.emitted.len();
            match answer.take_round(&round) {
                true => self.end(answer),
                false => work.answers.batch.push(answer),
            }
        }
        work.answers.add_round(tokens, start.elapsed().as_secs_f64());
    }

    /// A round that could not be run has changed nothing. Where there was no room for it somebody
    /// makes way; another failure may have been a passing one, and is tried again once. After a
    /// panic nobody knows where they are.
    fn no_round(&mut self, work: &mut Work, failure: Failure) {
        self.note(&failure);
        if failure.is_out_of_memory() && self.make_way(work) {
            return;
        }
        work.failed += 1;
        if let Failure::Engine(error) = &failure
            && work.failed < 2
            && !error.is_lost()
            && !error.is_out_of_memory()
        {
            tracing::warn!(cause = %error, "a round failed and is tried again");
            return;
        }
        tracing::error!(cause = ?failure, "a round failed");
        let is_too_large = work.busy_slots() == 1 && failure.is_out_of_memory();
        for answer in work.answers.batch.drain(..) {
            answer.fail(match is_too_large {
                true => room::too_large(answer.held_tokens()),
                false => failure.told(&answer.ticket),
            });
        }
    }

    /// Tells that an answer is whole and keeps the state it left.
    pub(crate) fn end(&mut self, answer: Answer) {
        let outcome = answer.outcome();
        self.metrics.add_answer(&outcome, &answer.ticket);
        answer.record(&outcome);
        answer.tell(EventKind::Done(Box::new(outcome)));
        let prompt = answer.ticket.job.prompt.len();
        let (tokens, sequence) = answer.into_state();
        self.engine.remember(tokens.get(prompt..).unwrap_or_default());
        self.keep_state(&tokens, sequence);
    }

    pub(crate) fn note_cache(&self) {
        let (near, far) = self.cache.bytes();
        self.metrics.cache_bytes.set(near as i64);
        self.metrics.cache_host_bytes.set(far as i64);
        self.metrics.cache_entries.set(self.cache.len() as i64);
        if let Some(disk) = &self.disk {
            self.metrics.disk.set(&disk.tally());
        }
    }
}

impl Answer {
    /// It ends here.
    pub(crate) fn fail(&self, error: ApiError) {
        fail(&self.ticket, self.choice, error);
    }
}

/// Tells a client that there is no more; whoever has left does not hear it.
pub(crate) fn fail(ticket: &Ticket, choice: usize, error: ApiError) {
    if let Some(record) = ticket.record.as_ref().filter(|_| !ticket.events.is_closed()) {
        record.fail(&error);
    }
    let choice = ticket.job.first_choice + choice;
    let _ = ticket.events.send(Event { choice, kind: EventKind::Failed(error) });
}
