// An answer while it is written: chunks become text, tints, rounds and figures of its message.

/** Rounds kept of an answer at most. */
const MOST_ROUNDS = 2_000;

export class Answer {
  constructor(node) {
    this.node = node;
    Object.assign(node, { text: "", thought: "", state: "writing", rounds: [] });
    node.tints = { text: [], thought: [] };
    node.figures = {};
    delete node.problem;
    delete node.finish;
    /** How much of the prompt has been read, while it is. */
    this.progress = null;
    this.began = performance.now();
    this.first = null;
    this.tokens = 0;
    this.rounds = 0;
    this.stood = 0;
    this.isDrafted = false;
  }

  take(chunk) {
    const { forerun, usage, choices } = chunk;
    if (forerun?.progress) this.progress = forerun.progress;
    if (forerun && "drafted" in forerun) this.takeToken(forerun);
    if (forerun?.spec) this.takeReport(forerun);
    if (usage) {
      this.node.figures.tokens = usage.completion_tokens;
      this.node.figures.prompt = usage.prompt_tokens;
      this.node.figures.cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    }
    const choice = choices?.[0];
    if (!choice) return;
    const { content, reasoning_content: thought } = choice.delta;
    if (thought) this.put("thought", thought);
    if (content) {
      if (this.node.text === "") this.endThinking();
      this.put("text", content);
    }
    if (choice.finish_reason) this.node.finish = choice.finish_reason;
  }

  put(where, text) {
    const from = this.node[where].length;
    this.node[where] += text;
    if (!this.isDrafted) return;
    const tints = this.node.tints[where];
    if (tints.at(-1) === from) tints[tints.length - 1] += text.length;
    else tints.push(from, from + text.length);
  }

  takeToken({ drafted, round }) {
    const { figures, rounds } = this.node;
    const now = performance.now();
    if (this.first === null) {
      this.first = now;
      this.progress = null;
      figures.first = (now - this.began) / 1000;
    }
    this.isDrafted = drafted;
    this.tokens += 1;
    if (round) {
      rounds.push([round.drafted, 0]);
      this.rounds += 1;
      if (rounds.length > MOST_ROUNDS) rounds.shift();
    }
    if (drafted && rounds.length > 0) {
      rounds.at(-1)[1] += 1;
      this.stood += 1;
    }
    figures.tokens = this.tokens;
    figures.rate = (this.tokens - 1) / Math.max((now - this.first) / 1000, 1e-3);
    // A round has a token of the model's own besides those that stood.
    if (this.rounds > 0) figures.accepted = (this.stood + this.rounds) / this.rounds;
  }

  takeReport({ spec, timing, seed, prefill }) {
    const { figures } = this.node;
    figures.accepted = spec.mean_accept_length;
    figures.rate = timing.tokens_per_s;
    figures.seed = seed;
    if (prefill?.lossy) figures.kept = prefill.kept_tokens;
  }

  endThinking() {
    if (this.node.thought === "" || this.node.figures.thought !== undefined) return;
    this.node.figures.thought = (performance.now() - (this.first ?? this.began)) / 1000;
  }

  /** Ends it: `done`, `stopped` or `failed` with a problem. */
  end(state, problem) {
    this.endThinking();
    this.progress = null;
    this.node.state = state;
    if (problem) this.node.problem = { kind: problem.kind, message: problem.message };
  }
}
