//! Prompts on their way to an answer: read chunk by chunk between the rounds of others, and kept
//! where later prompts are likely to have begun the same way.

use crate::answer::{Answer, Begun};
use crate::failure::{Failure, guarded};
use crate::job::{Delta, Event, EventKind, Job, Progress, Ticket};
use crate::prefill::shares;
use crate::prefix::Source;
use crate::room;
use crate::scheduler::{Scheduler, Waiting, Work, fail};
use engine::sampling::{Constraint, Likelihood};
use engine::{Generation, ReadPass, Sequence};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
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
        if self.ticket.done.scores.swap(true, Ordering::Relaxed) {
            return;
        }
        for choice in job.first_choice..job.first_choice + job.choices.len() {
            let delta = Delta { scores: scores.clone(), ..Delta::default() };
            // Whoever has left does not hear it.
            let _ = events.send(Event { choice, kind: EventKind::Delta(delta) });
        }
    }

    /// Whether its next tokens are read in passes of their own: each of their rows has logits, or
    /// they have the arithmetic of decoding.
    fn is_apart(&self) -> bool {
        let job = &self.ticket.job;
        job.scores.is_some() || self.sequence.committed() >= job.decoded_from
    }

    /// Where reading has to pause: where another arithmetic begins, before the last token where no
    /// answer is wanted, or at the end of the prompt.
    fn pause(&self) -> usize {
        let Job { decoded_from, prompt, room, .. } = &self.ticket.job;
        let written = Some(*decoded_from).filter(|from| *from > self.sequence.committed());
        let end = prompt.len() - usize::from(*room == 0);
        end.min(written.unwrap_or(usize::MAX))
    }

    /// The next place where the state is worth keeping, or `end` if that is nearer.
    fn next_mark(&self, end: usize) -> usize {
        let mark = self.marks.iter().copied().find(|mark| *mark > self.sequence.committed());
        mark.unwrap_or(usize::MAX).min(end)
    }

    /// Its next tokens, so many of them.
    fn next_tokens(&self, count: usize) -> &[u32] {
        &self.ticket.job.prompt[self.sequence.committed()..][..count]
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
    /// Reads a chunk of prompts: the one that has waited longest, and others beside it.
    pub(crate) fn read_chunk(&mut self, work: &mut Work) {
        let Some(first) = work.reading.front() else { return };
        if first.ticket.job.room == 0 && first.is_at_last() {
            let reading = work.reading.pop_front().expect("there is a first");
            return self.end_unwritten(&reading);
        }
        let (is_apart, is_alone) = (first.is_apart(), work.answers.len() == 0);
        let options = self.engine.model().options();
        let (largest, most_texts) = (options.max_rows, options.max_chosen);
        let limit = if is_alone { largest } else { self.prefill_budget.tokens };
        work.reading.rotate_left(1);
        let last = work.reading.len() - 1;
        let takes_part = |(i, reading): (usize, &Reading)| match is_apart {
            true => i == last,
            false => !reading.is_apart() && i + most_texts > last,
        };
        let left = |(i, reading): (usize, &Reading)| match takes_part((i, reading)) {
            true => reading.pause() - reading.sequence.committed(),
            false => 0,
        };
        let left: Vec<usize> = work.reading.iter().enumerate().map(left).collect();
        match is_apart {
            true => self.read_apart(work, left[last].min(limit)),
            false => self.read_together(work, shares(&left, limit), is_alone),
        }
    }

    /// Sets aside what reading `rows` more tokens of a prompt needs; no, where there is no room.
    fn has_room(&mut self, work: &mut Work, i: usize, rows: usize) -> bool {
        while let Err(error) = self.engine.reserve(&mut work.reading[i].sequence, rows) {
            if !error.is_out_of_memory() || !self.drop_kept() {
                self.give_up(work, i, &Failure::Engine(error));
                return false;
            }
        }
        true
    }

    /// Reads so many tokens of each prompt in one pass.
    fn read_together(&mut self, work: &mut Work, shares: Vec<usize>, is_alone: bool) {
        for (i, rows) in shares.iter().enumerate().filter(|(_, rows)| **rows > 0) {
            if !self.has_room(work, i, *rows) {
                return;
            }
        }
        let start = Instant::now();
        let texts: Vec<(&Sequence, &[u32])> = work
            .reading
            .iter()
            .zip(&shares)
            .filter(|(_, rows)| **rows > 0)
            .map(|(reading, rows)| (&reading.sequence, reading.next_tokens(*rows)))
            .collect();
        let count = texts.len();
        let mut pass = match guarded(|| self.engine.read_together(&texts)) {
            Ok(pass) => pass,
            // It may be the fault of one, whom the others need not follow.
            Err(_) if count > 1 => return self.read_one_by_one(work, &shares, is_alone),
            Err(failure) => {
                let i = shares.iter().position(|rows| *rows > 0).expect("somebody reads");
                return self.give_up(work, i, &failure);
            }
        };
        self.metrics.prefill_tokens.inc_by(shares.iter().sum::<usize>() as u64);
        // Whoever is done leaves the queue, and those behind move up.
        let (mut i, mut index) = (0, 0);
        for rows in &shares {
            if *rows == 0 {
                i += 1;
                continue;
            }
            let end = work.reading[i].sequence.committed() + rows;
            let is_whole = end == work.reading[i].ticket.job.prompt.len();
            match self.take_in(work, i, (&mut pass, index), end) {
                Err(failure) => self.give_up(work, i, &failure),
                Ok(()) if is_whole => self.begin_answer(work, i, index),
                Ok(()) => i += 1,
            }
            index += 1;
        }
        // A device may still be at it.
        if !is_alone && self.engine.backend().finish().is_ok() {
            self.prefill_budget.add(shares.iter().sum(), start.elapsed().as_secs_f64());
        }
    }

    /// Reads what a pass for all could not.
    fn read_one_by_one(&mut self, work: &mut Work, shares: &[usize], is_alone: bool) {
        let mut i = 0;
        for rows in shares {
            let under_way = work.reading.len();
            if *rows > 0 {
                let alone = (0..under_way).map(|j| if j == i { *rows } else { 0 });
                self.read_together(work, alone.collect(), is_alone);
            }
            i += usize::from(work.reading.len() == under_way);
        }
    }

    /// Makes what a pass has read part of a prompt's sequence, from one state worth keeping to the
    /// next.
    fn take_in(
        &mut self,
        work: &mut Work,
        i: usize,
        (pass, index): (&mut ReadPass, usize),
        end: usize,
    ) -> Result<(), Failure> {
        let reading = &mut work.reading[i];
        while reading.sequence.committed() < end {
            let from = reading.sequence.committed();
            let to = reading.next_mark(end);
            guarded(|| {
                // What was kept on the way shares its memory.
                self.engine.reserve(&mut reading.sequence, to - from)?;
                self.engine.commit_read(pass, index, &mut reading.sequence, to - from)?;
                // Who is told of progress is told what has been read indeed.
                if reading.ticket.job.progress {
                    self.engine.backend().finish()?;
                }
                Ok(())
            })?;
            if to < reading.ticket.job.prompt.len() {
                reading.tell();
                self.keep(reading);
                admit_siblings(reading, &mut work.waiting);
            }
        }
        Ok(())
    }

    /// Reads up to so many tokens of the last prompt of the queue in a pass of its own.
    fn read_apart(&mut self, work: &mut Work, rows: usize) {
        let i = work.reading.len() - 1;
        let rows = match work.reading[i].ticket.job.scores {
            Some(_) => rows.min(self.engine.scored_rows()),
            None => rows,
        };
        let end = work.reading[i].next_mark(work.reading[i].sequence.committed() + rows);
        let rows = end - work.reading[i].sequence.committed();
        if !self.has_room(work, i, rows) {
            return;
        }
        let reading = &mut work.reading[i];
        let is_whole = end == reading.ticket.job.prompt.len();
        if let Err(failure) = self.read_until(reading, end) {
            return self.give_up(work, i, &failure);
        }
        self.metrics.prefill_tokens.inc_by(rows as u64);
        if is_whole {
            return self.begin_answer(work, i, 0);
        }
        reading.tell();
        self.keep(reading);
        if reading.is_at_last() {
            reading.tell_scores();
        }
        admit_siblings(reading, &mut work.waiting);
    }

    /// Reads a prompt up to `end` with the arithmetic of decoding, or with the likelihoods of its
    /// tokens; those say nothing of the last one's row.
    fn read_until(&mut self, reading: &mut Reading, end: usize) -> Result<(), Failure> {
        let Reading { ticket, sequence, scores, .. } = reading;
        let job = &ticket.job;
        let from = sequence.committed();
        let tokens = &job.prompt[from..end];
        guarded(|| {
            match job.scores.filter(|_| end < job.prompt.len()) {
                None if from >= job.decoded_from => self.engine.read_written(sequence, tokens)?,
                None => self.engine.read(sequence, tokens)?,
                Some(top) => {
                    let following = &job.prompt[from + 1..=end];
                    scores.extend(self.engine.read_scored(sequence, tokens, following, top)?);
                }
            }
            Ok(self.engine.backend().finish()?)
        })
    }

    /// Draws the first token of the answer to a prompt that has just been read, as text `index` of
    /// its pass.
    fn begin_answer(&mut self, work: &mut Work, i: usize, index: usize) {
        let reading = work.reading.remove(i).expect("it was read");
        let (ticket, choice) = (Arc::clone(&reading.ticket), reading.choice);
        let begun = Begun::of(&reading, self.mode, self.engine.drafter_device(), self.load_s);
        let begin = || {
            let mut generation = self.begin(reading, index)?;
            let likelihood = ticket.job.likelihoods.map(|top| {
                generation.tell_likelihoods(top);
                self.engine.first_likelihood(index, &generation, top)
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
        // The end is told when nobody holds the ticket, which must not wait for the prefix cache.
        drop(ticket);
        match answer.take_first(likelihood) {
            true => self.end(answer),
            false => work.answers.push(answer),
        }
    }

    fn begin(&mut self, reading: Reading, index: usize) -> Result<Generation, engine::Error> {
        let Reading { ticket, choice, sequence, .. } = reading;
        let Job { prompt, written, ends, held, .. } = &ticket.job;
        let sampling = ticket.job.choices[choice].clone();
        let held = Some(held.clone()).filter(|held| !held.is_free());
        let constraint = held.map(|held| Box::new(held) as Box<dyn Constraint>);
        let ends = ends.clone();
        self.engine.begin_read(index, constraint, sequence, prompt, *written, sampling, ends)
    }

    /// Lets go of a prompt that could not be read.
    fn give_up(&mut self, work: &mut Work, i: usize, failure: &Failure) {
        let Reading { ticket, choice, .. } = work.reading.remove(i).expect("it was being read");
        self.not_begun(work, ticket, choice, failure);
    }

    /// A prompt that could not be read. For want of room it is read again, at once where something
    /// that was kept could go, else when others have ended; where there are none it does not fit at
    /// all.
    fn not_begun(
        &mut self,
        work: &mut Work,
        ticket: Arc<Ticket>,
        choice: usize,
        failure: &Failure,
    ) {
        let error = self.told(&ticket, failure);
        let others = work.busy_slots();
        // What is kept goes before anybody waits.
        let made_room = failure.is_out_of_memory() && self.drop_kept();
        match failure.is_out_of_memory() {
            true if made_room || others > 0 || !work.away.is_empty() => {
                work.full = (!made_room).then_some(others);
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
            let outcome = Begun::of(reading, self.mode, self.engine.drafter_device(), self.load_s)
                .unwritten();
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
    if reading.ticket.done.siblings.swap(true, Ordering::Relaxed) {
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
