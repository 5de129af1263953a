// The page: a conversation over /v1/chat/completions. Every token comes in a chunk of its own that says whether it was
// drafted; the text is put together again from tokens, so that each keeps its tint.
"use strict";

const at = (id) => document.getElementById(id);
const messages = [];
let running = null;

/** A conversation's headers; the key is kept for this tab only. */
function headers() {
  const key = at("key").value;
  return { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
}

function element(name, parent, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

/** Cuts text into prose and fenced code: [from, to, isCode]. The fences themselves belong to neither. */
function blocksOf(text) {
  const blocks = [];
  const fence = /^[ \t]*```[^\n]*(\n|$)/gm;
  let from = 0;
  let code = false;
  for (let found; (found = fence.exec(text)) !== null; ) {
    if (found.index > from) blocks.push([from, found.index, code]);
    from = found.index + found[0].length;
    code = !code;
    if (found[0].length === 0) break;
  }
  if (from < text.length) blocks.push([from, text.length, code]);
  return blocks;
}

/** Text made of tokens, drawn into a place of the page. */
class Tokens {
  constructor(place) {
    this.place = place;
    this.pieces = [];
    this.text = "";
  }

  push(text, drafted) {
    const last = this.pieces[this.pieces.length - 1];
    const from = this.text.length;
    this.text += text;
    // Neighbours of one kind are one span.
    if (last && last.drafted === drafted) last.to = this.text.length;
    else this.pieces.push({ from, to: this.text.length, drafted });
  }

  draw() {
    const drawn = document.createDocumentFragment();
    for (const [from, to, code] of blocksOf(this.text)) {
      const block = element(code ? "pre" : "p", drawn, code ? "" : "text");
      const inner = code ? element("code", block) : block;
      // The line breaks around a block are its margin.
      let end = to;
      while (end > from && this.text[end - 1] === "\n") end -= 1;
      for (const piece of this.pieces) {
        if (piece.to <= from || piece.from >= end) continue;
        const text = this.text.slice(Math.max(piece.from, from), Math.min(piece.to, end));
        if (piece.drafted) element("span", inner, "drafted", text);
        else inner.append(text);
      }
    }
    this.place.replaceChildren(drawn);
  }
}

/** An answer on the page while it arrives. */
class Answer {
  constructor(parent) {
    this.turn = element("article", parent, "turn answer");
    this.details = element("details", this.turn);
    this.details.hidden = true;
    this.summary = element("summary", this.details, "", "Thinking…");
    this.thought = new Tokens(element("div", this.details));
    this.said = new Tokens(element("div", this.turn));
    this.note = element("p", this.turn, "note");
    this.began = performance.now();
    this.first = null;
    this.drafted = 0;
    this.own = 0;
    this.waits = false;
  }

  take(chunk) {
    const choice = chunk.choices && chunk.choices[0];
    if (chunk.forerun && "drafted" in chunk.forerun) {
      this.first ??= performance.now();
      this.kind = chunk.forerun.drafted;
      if (this.kind) this.drafted += 1;
      else this.own += 1;
    }
    if (chunk.usage) this.usage = chunk.usage;
    if (chunk.forerun && chunk.forerun.spec) this.report = chunk.forerun;
    if (choice) {
      const { content, reasoning_content: thought } = choice.delta;
      if (thought) {
        this.details.hidden = false;
        this.thought.push(thought, this.kind);
      }
      if (content) {
        if (this.said.text === "" && this.thought.text !== "") this.thinkingEnds();
        this.said.push(content, this.kind);
      }
      if (choice.finish_reason) this.finish = choice.finish_reason;
    }
    if (!this.waits) {
      this.waits = true;
      requestAnimationFrame(() => {
        this.waits = false;
        this.draw();
      });
    }
  }

  thinkingEnds() {
    const seconds = (performance.now() - (this.first ?? this.began)) / 1000;
    this.summary.textContent = `Thought for ${seconds.toFixed(1)} s`;
  }

  draw() {
    const talk = at("talk");
    const follows = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 80;
    this.thought.draw();
    this.said.draw();
    this.figures();
    if (follows) talk.scrollTop = talk.scrollHeight;
  }

  /** Every token the model drew itself ends a round, but for the first, which ends the prompt. */
  figures() {
    const tokens = this.drafted + this.own;
    if (tokens === 0) return;
    const rounds = Math.max(this.own - 1, 1);
    const seconds = ((this.ended ?? performance.now()) - this.first) / 1000;
    at("acceptance").textContent = this.report
      ? this.report.spec.mean_accept_length.toFixed(2)
      : ((tokens - 1) / rounds).toFixed(2);
    const rate = this.report ? this.report.timing.tokens_per_s : (tokens - 1) / Math.max(seconds, 1e-3);
    at("rate").textContent = Math.round(rate).toLocaleString("en");
    at("share").textContent = `${Math.round((100 * this.drafted) / tokens)} %`;
  }

  end(problem) {
    this.ended = performance.now();
    if (this.said.text === "" && this.thought.text !== "") this.thinkingEnds();
    this.draw();
    const tokens = this.usage ? this.usage.completion_tokens : this.drafted + this.own;
    const cached = this.usage ? this.usage.prompt_tokens_details.cached_tokens : 0;
    const parts = [`${tokens} tokens`];
    if (cached > 0) parts.push(`${cached} of the prompt known already`);
    if (this.finish === "length") parts.push("cut at the limit");
    if (problem) parts.push(problem);
    this.note.textContent = parts.join(" · ");
    this.turn.dataset.done = problem ?? this.finish ?? "lost";
    at("status").textContent = problem ?? "The answer is complete.";
  }
}

/** The chunks of a response, as they come. */
async function* chunksOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const lines = held.split("\n");
    held = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      const data = line.slice(6);
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

function busy(is) {
  at("send").hidden = is;
  at("stop").hidden = !is;
  at("fresh").disabled = is;
}

async function ask(text) {
  at("welcome").hidden = true;
  const talk = at("talk");
  element("p", element("article", talk, "turn mine"), "", text);
  messages.push({ role: "user", content: text });
  const answer = new Answer(talk);
  talk.scrollTop = talk.scrollHeight;
  const body = {
    messages,
    stream: true,
    stream_options: { include_usage: true },
    forerun: { origins: true },
    chat_template_kwargs: { enable_thinking: at("thinking").checked },
  };
  if (at("temperature").value !== "") body.temperature = Number(at("temperature").value);
  running = new AbortController();
  busy(true);
  let problem;
  try {
    const { signal } = running;
    const response = await fetch("v1/chat/completions", { method: "POST", headers: headers(), body: JSON.stringify(body), signal });
    if (!response.ok) {
      at("keyed").hidden = response.status !== 401 && at("keyed").hidden;
      throw new Error((await response.json()).error.message);
    }
    for await (const chunk of chunksOf(response)) {
      if (chunk.error) throw new Error(chunk.error.message);
      answer.take(chunk);
    }
  } catch (error) {
    problem = error.name === "AbortError" ? "stopped" : error.message;
    if (problem !== "stopped") answer.note.classList.add("wrong");
  }
  running = null;
  busy(false);
  answer.end(problem);
  if (answer.said.text === "" && answer.thought.text === "") messages.pop();
  else messages.push({ role: "assistant", content: answer.said.text, reasoning_content: answer.thought.text });
  at("prompt").focus();
}

function grow() {
  const prompt = at("prompt");
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight}px`;
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = at("prompt").value.trim();
  if (text === "" || running) return;
  at("prompt").value = "";
  grow();
  ask(text);
});
at("prompt").addEventListener("input", grow);
at("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    at("ask").requestSubmit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running) running.abort();
});
at("stop").addEventListener("click", () => running && running.abort());
at("shading").addEventListener("change", () => at("talk").classList.toggle("plain", !at("shading").checked));
at("fresh").addEventListener("click", () => {
  messages.length = 0;
  document.querySelectorAll(".turn").forEach((turn) => turn.remove());
  at("welcome").hidden = false;
  for (const id of ["acceptance", "rate", "share"]) at(id).textContent = "–";
  at("prompt").focus();
});
at("key").value = sessionStorage.getItem("key") ?? "";
at("key").addEventListener("change", () => {
  sessionStorage.setItem("key", at("key").value);
  greet();
});

/** Says which model answers. */
async function greet() {
  const response = await fetch("v1/models", { headers: headers() });
  at("keyed").hidden = response.status !== 401 && at("key").value === "";
  if (response.ok) at("model").textContent = (await response.json()).data[0].id;
}
greet();
