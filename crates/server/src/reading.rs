//! Prompts on their way to an answer: read chunk by chunk between the rounds of others, and kept
//! where later prompts are likely to have begun the same way.

use crate::answer::{Answer, Begun};
use crate::failure::{Failure, guarded};
use crate::job::{Delta, Event, EventKind, Job, Progress, Ticket};
use crate::prefix::Source;
use crate::room;
use crate::scheduler::{Scheduler, Waiting, Work, fail};
use engine::sampling::{Constraint, Likelihood};
use engine::{Generation, Sequence};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// A state is kept each time so many tokens of a prompt have been read.
pub(crate) const KEEP_EVERY: usize = 4096;

/// A prompt being read.
pub(crate) struct Reading {
    pub(crate) ticket: Arc<Ticket>,
    /// Which of the ticket's choices.
    pub(crate) choice: usize,
    pub(crate) sequence: Sequence,
    pub(crate) cached: usize,
    /// Where these tokens were known.
    pub(crate) cached_from: Option<Source>,
    /// How likely the tokens read so far were, where that is wanted.
    pub(crate) scores: Vec<Likelihood>,
    /// Numbers of tokens after which the state is worth keeping, ascending.
    marks: Vec<usize>,
    pub(crate) began: Instant,
}

impl Reading {
    /// `openings` are the tokens that begin a message, and a tool's result in one.
    pub(crate) fn new(
        ticket: Arc<Ticket>,
        choice: usize,
        sequence: Sequence,
        cached: usize,
        cached_from: Option<Source>,
        openings: [Option<u32>; 2],
    ) -> Self {
        let job = &ticket.job;
        let mut marks = marks(&job.prompt, openings);
        // Whoever goes on from here draws from the last token's row, which says nothing about the
        // prompt.
        if job.choices.len() > 1 || job.scores.is_some() || job.room == 0 {
            marks.push(job.prompt.len() - 1);
            marks.dedup();
        }
        let (scores, began) = (Vec::new(), Instant::now());
        Self { ticket, choice, sequence, cached, cached_from, scores, marks, began }
    }

    /// Whether all of the prompt but its last token has been read.
    pub(crate) fn is_at_last(&self) -> bool {
        self.sequence.committed() + 1 >= self.ticket.job.prompt.len()
    }

    /// Tells every answer to the prompt how likely its tokens were.
    pub(crate) fn tell_scores(&mut self) {
        let Ticket { job, events, .. } = &*self.ticket;
        if self.choice > 0 || self.scores.is_empty() {
            return;
        }
        let scores = std::mem::take(&mut self.scores);
        for choice in job.first_choice..job.first_choice + job.choices.len() {
            let delta = Delta { scores: scores.clone(), ..Delta::default() };
            // Whoever has left does not hear it.
            let _ = events.send(Event { choice, kind: EventKind::Delta(delta) });
        }
    }

    /// Where the next chunk ends: after `limit` tokens, at the next mark or at the end of the
    /// prompt.
    pub(crate) fn chunk_end(&self, limit: usize) -> usize {
        let read = self.sequence.committed();
        let mark = self.marks.iter().copied().find(|m| *m > read);
        let Job { decoded_from, prompt, .. } = &self.ticket.job;
        let written = if read < *decoded_from { *decoded_from } else { usize::MAX };
        (read + limit).min(mark.unwrap_or(usize::MAX)).min(written).min(prompt.len())
    }

    /// Tells how far it has come, to those who asked to be told.
    pub(crate) fn tell(&self) {
        let job = &self.ticket.job;
        if job.progress {
            let (read, of, cached) = (self.sequence.committed(), job.prompt.len(), self.cached);
            let ms = self.began.elapsed().as_millis() as u64;
            let kind = EventKind::Progress(Progress { read, of, cached, ms });
            let _ = self.ticket.events.send(Event { choice: job.first_choice + self.choice, kind });
        }
    }

    /// Whether the state is one worth keeping.
    pub(crate) fn at_mark(&self) -> bool {
        self.marks.contains(&self.sequence.committed())
    }
}

impl Scheduler {
    /// Reads a chunk of the prompt that has waited longest for one.
    pub(crate) fn read_chunk(&mut self, work: &mut Work) {
        let Some(mut reading) = work.reading.pop_front() else { return };
        if reading.ticket.job.room == 0 && reading.is_at_last() {
            return self.end_unwritten(&reading);
        }
        let is_alone = work.answers.len() == 0;
        let end = reading.chunk_end(self.chunk_limit(&reading, is_alone));
        let rows = end - reading.sequence.committed();
        while let Err(error) = self.engine.reserve(&mut reading.sequence, rows) {
            if !error.is_out_of_memory() || !self.drop_kept() {
                let Reading { ticket, choice, .. } = reading;
                return self.not_begun(work, ticket, choice, &Failure::Engine(error));
            }
        }
        self.metrics.prefill_tokens.inc_by(rows as u64);
        if end == reading.ticket.job.prompt.len() {
            return self.begin_answer(work, reading);
        }
        if let Err(failure) = self.read_until(&mut reading, end, is_alone) {
            let Reading { ticket, choice, .. } = reading;
            return self.not_begun(work, ticket, choice, &failure);
        }
        reading.tell();
        self.keep(&mut reading);
        if reading.is_at_last() {
            reading.tell_scores();
        }
        admit_siblings(&reading, &mut work.waiting);
        work.reading.push_back(reading);
    }

    /// Tokens that the next chunk may have: beside running answers as many as these can wait for.
    fn chunk_limit(&self, reading: &Reading, is_alone: bool) -> usize {
        let largest = self.engine.model().options().max_rows;
        let limit = if is_alone { largest } else { self.prefill_budget.tokens };
        match reading.ticket.job.scores {
            Some(_) => limit.min(self.engine.scored_rows()),
            None => limit,
        }
    }

    /// Reads a prompt up to `end`, which is not its end.
    fn read_until(
        &mut self,
        reading: &mut Reading,
        end: usize,
        is_alone: bool,
    ) -> Result<(), Failure> {
        let Reading { ticket, sequence, scores, .. } = reading;
        let job = &ticket.job;
        let (from, start) = (sequence.committed(), Instant::now());
        let tokens = &job.prompt[from..end];
        guarded(|| {
            match job.scores {
                None if from >= job.decoded_from => self.engine.read_written(sequence, tokens)?,
                None => self.engine.read(sequence, tokens)?,
                Some(top) => {
                    let following = &job.prompt[from + 1..=end];
                    scores.extend(self.engine.read_scored(sequence, tokens, following, top)?);
                }
            }
            // A device may still be at it; who is told of progress is told what has been read
            // indeed.
            if is_alone && !job.progress {
                return Ok(());
            }
            Ok(self.engine.backend().finish()?)
        })?;
        if !is_alone && job.scores.is_none() {
            self.prefill_budget.add(tokens.len(), start.elapsed().as_secs_f64());
        }
        Ok(())
    }

    /// Reads the rest of a prompt and draws the first token of its answer.
    fn begin_answer(&mut self, work: &mut Work, reading: Reading) {
        let (ticket, choice) = (Arc::clone(&reading.ticket), reading.choice);
        let begun = Begun::of(&reading, self.mode, self.load_s);
        let begin = || {
            let mut generation = self.begin(reading)?;
            let likelihood = ticket.job.likelihoods.map(|top| {
                generation.tell_likelihoods(top);
                self.engine.first_likelihood(&generation, top)
            });
            Ok((generation, likelihood.transpose()?))
        };
        let (generation, likelihood) = match guarded(begin) {
            Ok(generation) => generation,
            Err(failure) => return self.not_begun(work, ticket, choice, &failure),
        };
        self.metrics.first_token.observe(ticket.arrived.elapsed().as_secs_f64());
        self.metrics.generation_tokens.inc();
        let mut answer = Answer::new(begun, generation, Arc::clone(&self.tokenizer));
        match answer.take_first(likelihood) {
            true => self.end(answer),
            false => work.answers.push(answer),
        }
    }

    fn begin(&mut self, reading: Reading) -> Result<Generation, engine::Error> {
        let Reading { ticket, choice, mut sequence, .. } = reading;
        let Job { prompt, written, decoded_from, .. } = &ticket.job;
        let unread = &prompt[sequence.committed()..];
        match sequence.committed() >= *decoded_from {
            true => self.engine.read_written(&mut sequence, unread)?,
            false => self.engine.read(&mut sequence, unread)?,
        }
        let sampling = ticket.job.choices[choice].clone();
        let held = Some(ticket.job.held.clone()).filter(|held| !held.is_free());
        let constraint = held.map(|held| Box::new(held) as Box<dyn Constraint>);
        let ends = ticket.job.ends.clone();
        self.engine.begin_read(constraint, sequence, prompt, *written, sampling, ends)
    }

    /// A prompt that could not be read. For want of room it is read again when others have ended;
    /// where there are none it does not fit at all.
    fn not_begun(
        &mut self,
        work: &mut Work,
        ticket: Arc<Ticket>,
        choice: usize,
        failure: &Failure,
    ) {
        let error = self.told(&ticket, failure);
        let others = work.busy_slots();
        match failure.is_out_of_memory() {
            true if self.drop_kept() || others > 0 || !work.away.is_empty() => {
                work.full = Some(others);
                work.waiting.push_front(Waiting { ticket, choice, start: None });
            }
            true => fail(&ticket, choice, room::too_large(ticket.job.prompt.len())),
            false => fail(&ticket, choice, error),
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
            let _ = events.send(Event { choice, kind: EventKind::Done(Box::new(outcome)) });
        }
    }

    /// Keeps the state where a prompt has just been read up to a place worth coming back to.
    fn keep(&mut self, reading: &mut Reading) {
        if !reading.at_mark() {
            return;
        }
        // Rows that wait for a drafter are much larger than what it makes of them, and every prompt
        // that goes on from here would have it take them in again. Where that fails the next round
        // tells.
        if let Err(error) = self.engine.absorb(&mut reading.sequence) {
            tracing::warn!(cause = %error, "a drafter could not take a prompt in");
        }
        let tokens = &reading.ticket.job.prompt[..reading.sequence.committed()];
        self.keep_state(tokens, reading.sequence.clone());
    }
}

/// Lets the other answers to a prompt begin once the first has read all of it but the last token.
pub(crate) fn admit_siblings(reading: &Reading, waiting: &mut VecDeque<Waiting>) {
    let job = &reading.ticket.job;
    if reading.choice > 0 || job.room == 0 || !reading.is_at_last() {
        return;
    }
    for choice in (1..job.choices.len()).rev() {
        let (ticket, start) = (Arc::clone(&reading.ticket), Some(reading.sequence.clone()));
        waiting.push_front(Waiting { ticket, choice, start });
    }
}

/// Places in a prompt that later prompts are likely to share: the end of the first message (a
/// system prompt with tools), the beginnings of the last two (the next turn, another try at the
/// last one), in the last one that has any the beginnings of its last two tools' results (another
/// result of the last), and every 4096 tokens. A prompt without messages is kept whole but for its
/// last token.
fn marks(prompt: &[u32], [opening, result]: [Option<u32>; 2]) -> Vec<usize> {
    let last = prompt.len() - 1;
    let places = |token: Option<u32>| -> Vec<usize> {
        (1..prompt.len()).filter(|i| Some(prompt[*i]) == token).collect()
    };
    let (messages, results) = (places(opening), places(result));
    let mut marks: Vec<usize> = (KEEP_EVERY..=last).step_by(KEEP_EVERY).collect();
    marks.extend(messages.first());
    let newest = &messages[messages.len().saturating_sub(2)..];
    marks.extend(newest);
    let in_newest = results.iter().filter(|i| newest.first().is_some_and(|first| *i > first));
    marks.extend(in_newest.rev().take(2));
    if messages.is_empty() && last > 0 {
        marks.push(last);
    }
    marks.sort_unstable();
    marks.dedup();
    marks
}

#[cfg(test)]
mod tests {
    use super::marks;

    #[test]
    fn states_are_kept_where_prompts_part() {
        // Four messages of three tokens, each begun by 9.
        let chat = [9, 1, 2, 9, 3, 4, 9, 5, 6, 9, 7, 1];
        let openings = [Some(9), Some(8)];
        assert_eq!(marks(&chat, openings), [3, 6, 9]);
        assert_eq!(marks(&chat[..6], openings), [3]);
        assert_eq!(marks(&chat[..3], openings), [2]);
        assert_eq!(marks(&[5], openings), [0; 0]);
        assert_eq!(marks(&[5, 6, 7], [None, None]), [2]);
        let long = vec![1; 10_000];
        assert_eq!(marks(&long, openings), [4096, 8192, 9999]);
        // A call's results, of which the last may be another next time, and then the answer's
        // opening; results of earlier messages are not marks.
        let agent = [9, 1, 9, 8, 2, 9, 3, 9, 8, 4, 8, 5, 8, 6, 9, 7];
        assert_eq!(marks(&agent, openings), [2, 7, 10, 12, 14]);
    }
}
