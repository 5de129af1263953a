//! The simulation: conversations ask, a router chooses, workers turn their wheels, some die.

use super::Random;
use super::curves::Curves;
use super::router::{Policy, Router, View};
use super::trace::Trace;
use super::worker::{Job, Worker};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What is simulated.
#[derive(Clone, Debug)]
pub(super) struct Fleet {
    pub(super) workers: usize,
    pub(super) slots: usize,
    /// Tokens of a prompt that are read at a time beside answers; where nothing is said, as many as
    /// these can wait for.
    pub(super) chunk: Option<usize>,
    /// Tokens whose states a worker keeps.
    pub(super) kept: usize,
    /// Of each worker.
    pub(super) deaths_per_s: f64,
    /// Whether all are restarted, one after the other.
    pub(super) restart: bool,
    /// Until a worker that was started answers.
    pub(super) start_s: f64,
    /// Whether prompts have the tokens of the answers before them.
    pub(super) has_answers: bool,
    pub(super) seed: u64,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    /// Seconds from the first question to the last answer.
    pub(super) span: f64,
    pub(super) answer_tokens: f64,
    pub(super) prompt_tokens: f64,
    pub(super) cached_tokens: f64,
    /// Seconds to the first token, by answer.
    pub(super) firsts: Vec<f64>,
    /// Answers that a death cut off.
    pub(super) lost: usize,
}

impl Figures {
    fn quantile(&self, share: f64) -> f64 {
        let mut firsts = self.firsts.clone();
        firsts.sort_by(f64::total_cmp);
        let at = (share * firsts.len() as f64) as usize;
        firsts.get(at.min(firsts.len().saturating_sub(1))).copied().unwrap_or(0.0)
    }

    fn rate(&self) -> f64 {
        self.answer_tokens / self.span.max(1e-9)
    }

    fn cached(&self) -> f64 {
        self.cached_tokens / self.prompt_tokens.max(1.0)
    }

    /// Of a million tokens: hours of workers, or what they cost.
    fn cost(&self, workers: usize, price: Option<f64>) -> f64 {
        let hours = workers as f64 * self.span / 3600.0;
        price.unwrap_or(1.0) * hours / self.answer_tokens.max(1.0) * 1e6
    }

    pub(super) fn line(&self, workers: usize, price: Option<f64>) -> String {
        format!(
            "{:>10.1} {:>24.3} {:>8.3} {:>6.1}% {:>17.3} {:>6}",
            self.rate(),
            self.quantile(0.5),
            self.quantile(0.95),
            100.0 * self.cached(),
            self.cost(workers, price),
            self.lost
        )
    }

    pub(super) fn json(&self, workers: usize, price: Option<f64>) -> Value {
        json!({"tokens_per_s": self.rate(), "first_token_s": {"median": self.quantile(0.5),
            "95": self.quantile(0.95)}, "cached": self.cached(), "lost": self.lost,
            "answers": self.firsts.len(), "per_million_tokens": self.cost(workers, price)})
    }

    /// The figures of a simulation that are held against measured ones.
    pub(super) fn judged(&self) -> [(&'static str, f64); 4] {
        let mean = self.firsts.iter().sum::<f64>() / self.firsts.len().max(1) as f64;
        [
            ("tok/s", self.rate()),
            ("first token ms, mean", 1e3 * mean),
            ("first token ms, median", 1e3 * self.quantile(0.5)),
            ("cached %", 100.0 * self.cached()),
        ]
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    /// A conversation asks.
    Ask {
        talk: usize,
        turn: usize,
    },
    /// A worker's wheel has turned, unless it has died since.
    Turn {
        worker: usize,
        life: u64,
    },
    Die {
        worker: usize,
    },
    Drain {
        worker: usize,
    },
    Up {
        worker: usize,
    },
}

/// Events by time; of the same time those first that came first.
#[derive(Default)]
struct Calendar {
    heap: BinaryHeap<Reverse<(u64, usize)>>,
    events: Vec<Event>,
}

impl Calendar {
    fn add(&mut self, at: f64, event: Event) {
        // Nanoseconds: whole numbers have an order.
        self.heap.push(Reverse(((at * 1e9) as u64, self.events.len())));
        self.events.push(event);
    }

    fn next(&mut self) -> Option<(f64, Event)> {
        let Reverse((at, event)) = self.heap.pop()?;
        Some((at as f64 / 1e9, self.events[event]))
    }
}

struct Simulation<'a> {
    trace: &'a Trace,
    curves: &'a Curves,
    fleet: &'a Fleet,
    /// Whether an answer goes on elsewhere when its worker dies.
    migrates: bool,
    router: Router,
    workers: Vec<Worker>,
    calendar: Calendar,
    random: Random,
    figures: Figures,
    /// Conversations that have not ended.
    open: usize,
}

/// Replays a trace.
pub(super) fn replay(trace: &Trace, curves: &Curves, fleet: &Fleet, policy: Policy) -> Figures {
    let workers = (0..fleet.workers).map(|_| Worker::open());
    let mut simulation = Simulation {
        trace,
        curves,
        fleet,
        migrates: policy == Policy::Kv,
        router: Router::new(policy),
        workers: workers.collect(),
        calendar: Calendar::default(),
        random: Random(fleet.seed ^ 0x5eed),
        figures: Figures::default(),
        open: trace.talks.len(),
    };
    simulation.run();
    simulation.figures
}

impl Simulation<'_> {
    fn run(&mut self) {
        for (talk, begun) in self.trace.talks.iter().enumerate() {
            self.calendar.add(begun.begins, Event::Ask { talk, turn: 0 });
        }
        for worker in 0..self.workers.len() {
            self.plan_death(0.0, worker);
        }
        if self.fleet.restart {
            self.calendar.add(60.0, Event::Drain { worker: 0 });
        }
        while self.open > 0
            && let Some((now, event)) = self.calendar.next()
        {
            match event {
                Event::Ask { talk, turn } => self.ask(now, talk, turn),
                Event::Turn { worker, life } => self.turn(now, worker, life),
                Event::Die { worker } => self.die(now, worker),
                Event::Drain { worker } => {
                    self.workers[worker].drains = true;
                    self.end_drained(now, worker);
                }
                Event::Up { worker } => self.workers[worker].is_up = true,
            }
        }
    }

    fn ask(&mut self, now: f64, talk: usize, turn: usize) {
        let said = &self.trace.talks[talk];
        let asked = said.asked(talk, turn, self.fleet.has_answers);
        self.send(now, Job::new(asked, turn, now, said.turns[turn].answer as f64));
    }

    fn send(&mut self, now: f64, job: Job) {
        let views: Vec<View> = self.workers.iter().map(|w| w.view(&job.asked)).collect();
        let Some(worker) = self.router.choose(&job.asked, &views) else {
            // Nobody is there: it is asked again a second later.
            let (talk, turn) = (job.asked.talk, job.turn);
            return self.calendar.add(now + 1.0, Event::Ask { talk, turn });
        };
        self.workers[worker].take(job);
        if !self.workers[worker].is_turning {
            self.begin_turn(now, worker);
        }
    }

    fn begin_turn(&mut self, now: f64, worker: usize) {
        let Fleet { slots, chunk, .. } = *self.fleet;
        let random = &mut self.random;
        let seconds = self.workers[worker].begin_turn(self.curves, slots, chunk, random);
        self.workers[worker].is_turning = seconds.is_some();
        if let Some(seconds) = seconds {
            let life = self.workers[worker].life;
            self.calendar.add(now + seconds, Event::Turn { worker, life });
        }
    }

    fn turn(&mut self, now: f64, worker: usize, life: u64) {
        if self.workers[worker].life != life {
            return;
        }
        let round = self.curves.round_tokens();
        for job in self.workers[worker].end_turn(now, round, self.fleet.kept) {
            // Between a client and the engine there is a way, which keeps nobody else.
            let now = now + self.curves.way_s();
            self.figures.span = now;
            self.figures.answer_tokens += job.answer;
            self.figures.prompt_tokens += job.asked.prompt as f64;
            self.figures.cached_tokens += job.cached as f64;
            let first = job.first.unwrap_or(now) + self.curves.way_s();
            self.figures.firsts.push(first - job.at);
            self.go_on(now, job.asked.talk, job.turn);
        }
        self.begin_turn(now, worker);
        self.end_drained(now, worker);
    }

    /// The next question of a conversation, if there is one.
    fn go_on(&mut self, now: f64, talk: usize, turn: usize) {
        let turns = &self.trace.talks[talk].turns;
        match turn + 1 < turns.len() {
            true => self.calendar.add(now + turns[turn].pause, Event::Ask { talk, turn: turn + 1 }),
            false => self.open -= 1,
        }
    }

    fn plan_death(&mut self, now: f64, worker: usize) {
        if self.fleet.deaths_per_s > 0.0 {
            let after = self.random.exponential(1.0 / self.fleet.deaths_per_s);
            self.calendar.add(now + after, Event::Die { worker });
        }
    }

    /// Streams go on elsewhere or are lost; a conversation whose answer was lost goes on without it.
    fn die(&mut self, now: f64, worker: usize) {
        let jobs = self.workers[worker].die();
        self.calendar.add(now + self.fleet.start_s, Event::Up { worker });
        self.plan_death(now + self.fleet.start_s, worker);
        for mut job in jobs {
            let has_begun = job.first.is_some();
            if !has_begun || self.migrates {
                job.written = job.answer - job.left;
                self.send(now, job);
            } else {
                self.figures.lost += 1;
                self.go_on(now, job.asked.talk, job.turn);
            }
        }
    }

    /// Restarts a worker that has finished what it had, and tells the next one to.
    fn end_drained(&mut self, now: f64, worker: usize) {
        let ended = &mut self.workers[worker];
        if ended.drains && ended.load() == 0 {
            ended.die();
            self.calendar.add(now + self.fleet.start_s, Event::Up { worker });
            if worker + 1 < self.workers.len() {
                let next = now + self.fleet.start_s;
                self.calendar.add(next, Event::Drain { worker: worker + 1 });
            }
        }
    }
}
