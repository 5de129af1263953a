// One message on the page, with what can be done to it.

import { siblingsOf } from "./conversation.js";
import { copyText, count, icon, iconButton, isComposing, make, showDone } from "./parts.js";
import { Prose } from "./render.js";
import { Strip } from "./strip.js";

/** What to do about a problem, by its kind. */
const ADVICE = {
  offline:
    "The server does not answer. Your message is kept here; try again when the server is back.",
  lost: "The connection broke while the answer was written. What came is kept.",
  key: "The server wants a key, or another one than it got. Enter it below and try again.",
  busy: "The server has as much to do as it takes. Try again in a moment.",
  full: "The conversation no longer fits the model. Edit an earlier message to branch off, or begin a new one.",
  refused: "The server refused the request. Check the settings of this conversation.",
  failed: "The server failed. Try again; if it fails again, its log says why.",
  closed: "The page was closed while this was written, or another tab is at it. What came is kept.",
};

/** A question: the reader's own words, as they were typed. */
class Question {
  constructor(node) {
    this.body = make("div", { class: "said", text: node.text });
    this.parts = [this.body];
  }

  draw() {}
}

/** An answer, with its thoughts, figures and problems. */
class Reply {
  constructor(node) {
    this.node = node;
    this.summary = make("span");
    this.thoughts = make("div", { class: "prose" });
    this.details = make(
      "details",
      {},
      make("summary", {}, icon("right"), this.summary),
      this.thoughts,
    );
    this.body = make("div", { class: "prose" });
    this.reading = make(
      "div",
      { class: "reading" },
      make("progress", { "aria-label": "Reading the prompt" }),
      make("span"),
    );
    this.problem = make("div", { class: "problem", role: "alert" });
    this.strip = new Strip();
    this.figures = make("p", { class: "figures" });
    this.foot = make("div", { class: "foot" }, this.strip.element, this.figures);
    this.thought = new Prose(this.thoughts);
    this.said = new Prose(this.body);
    this.parts = [this.details, this.body, this.reading, this.problem, this.foot];
    this.details.addEventListener("toggle", () => this.drawThought());
  }

  draw(answer) {
    const { node } = this;
    const isWhole = !answer;
    this.details.hidden = !node.thought;
    if (node.thought) {
      const seconds = node.figures?.thought;
      const done = seconds === undefined ? "Thought" : `Thought for ${seconds.toFixed(1)} s`;
      this.summary.textContent = node.text === "" && !isWhole ? "Thinking…" : done;
      this.drawThought(isWhole);
    }
    if (node.text !== "" || isWhole) this.said.draw(node.text, node.tints?.text, isWhole);
    this.drawReading(answer);
    this.drawFoot();
  }

  /** Thoughts are drawn when somebody looks. */
  drawThought(isWhole = this.node.state !== "writing") {
    if (this.details.open) this.thought.draw(this.node.thought, this.node.tints?.thought, isWhole);
  }

  /** A sign of life until the first token. */
  drawReading(answer) {
    this.reading.hidden = !answer || answer.first !== null;
    if (this.reading.hidden) return;
    const [bar, words] = this.reading.children;
    const { read, of, cached } = answer.progress ?? {};
    if (of === undefined) {
      bar.removeAttribute("value");
      words.textContent = "Waiting for the server…";
      return;
    }
    [bar.max, bar.value] = [of, read];
    const known = cached > 0 ? `, ${count(cached)} of them known already` : "";
    words.textContent = `Reading the prompt: ${count(read)} of ${count(of)} tokens${known}`;
  }

  drawFoot() {
    const { rounds = [], figures = {}, finish } = this.node;
    this.strip.draw(rounds);
    this.strip.element.toggleAttribute("hidden", rounds.length === 0);
    const { rate, accepted, tokens, prompt, cached, kept, first } = figures;
    const parts = [];
    if (rate) parts.push([`${count(Math.round(rate))} tok/s`, "Tokens written a second"]);
    if (accepted)
      parts.push([`${accepted.toFixed(2)} a round`, "Tokens a round, the model's own included"]);
    if (tokens) parts.push([`${count(tokens)} tokens`, "Tokens of the answer"]);
    if (prompt !== undefined) {
      const known = cached > 0 ? ` (${count(cached)} cached)` : "";
      parts.push([
        `prompt ${count(prompt)}${known}`,
        "Tokens of the prompt, and how many were known already",
      ]);
    }
    if (kept !== undefined)
      parts.push([
        `${count(kept)} of it read`,
        "The server shortens long prompts, so this answer is not exact",
      ]);
    if (first !== undefined)
      parts.push([`first after ${first.toFixed(2)} s`, "Until the first token"]);
    if (finish === "length")
      parts.push([
        "cut at the limit",
        "The answer reached its most tokens, or the context is full",
      ]);
    this.figures.replaceChildren(...parts.map(([text, title]) => make("span", { text, title })));
    this.foot.hidden = parts.length === 0;
  }

  /** Says what went wrong and what to do. */
  drawProblem(does) {
    const { node } = this;
    const isCut = node.state === "writing" || node.state === "stopped";
    const kind = node.state === "writing" ? "closed" : node.problem?.kind;
    this.problem.hidden =
      node.state === "done" || (isCut && kind === undefined && node.text !== "");
    this.problem.classList.toggle("mild", isCut);
    if (this.problem.hidden) return this.problem.replaceChildren();
    const said =
      node.problem && !["offline", "lost"].includes(kind)
        ? make("small", { text: node.problem.message })
        : null;
    const advice = make("p", { text: ADVICE[kind] ?? "Stopped before the first word." });
    const again = make("button", {
      type: "button",
      class: "retry",
      text: "Try again",
      onclick: () => does.retry(node),
    });
    const fresh = make("button", { type: "button", text: "New conversation", onclick: does.fresh });
    this.problem.replaceChildren(
      make("div", {}, advice, said ?? ""),
      make("div", { class: "row" }, again, kind === "full" ? fresh : ""),
    );
  }
}

/** A message as an article. */
export class Turn {
  constructor(conversation, node, does) {
    this.conversation = conversation;
    this.node = node;
    this.does = does;
    this.isAnswer = node.role === "assistant";
    this.view = this.isAnswer ? new Reply(node) : new Question(node);
    this.tools = make("div", { class: "tools" });
    const label = this.isAnswer ? "Answer" : "Your message";
    const kind = `turn ${this.isAnswer ? "answer" : "mine"}`;
    this.element = make(
      "article",
      { class: kind, "aria-label": label },
      ...this.view.parts,
      this.tools,
    );
    this.element.dataset.id = node.id;
  }

  /** `answer` is there while it is written. */
  draw(answer) {
    const { node } = this;
    this.isWhole = !answer;
    this.element.dataset.state = answer ? "writing" : node.state === "writing" ? "cut" : node.state;
    this.element.setAttribute("aria-busy", answer ? "true" : "false");
    this.view.draw(answer);
    if (answer) {
      this.view.problem.hidden = this.tools.hidden = true;
      return;
    }
    if (this.isAnswer) this.view.drawProblem(this.does);
    this.drawTools();
  }

  drawTools() {
    const { node, does } = this;
    const tools = [];
    const siblings = siblingsOf(this.conversation, node);
    if (siblings.length > 1) tools.push(this.branches(siblings));
    const copy = iconButton("copy", this.isAnswer ? "Copy the answer" : "Copy the message", () => {
      copyText(node.text);
      showDone(copy);
    });
    const edit = this.isAnswer ? "Edit the answer" : "Edit the message";
    const pencil = iconButton("pencil", edit, () => this.edit(), { class: "quiet edit" });
    const retry = () => does.retry(node);
    const again = iconButton("again", "Answer again", retry, { class: "quiet again" });
    // An answer without a word has nothing but its problem, which offers to try again.
    if (node.text !== "") tools.push(copy, pencil);
    if (this.isAnswer && (node.text !== "" || node.state === "done")) tools.push(again);
    if (node.text !== "" && node.state === "stopped") {
      tools.push(make("span", { class: "mark", text: "stopped" }));
    }
    this.tools.hidden = false;
    this.tools.replaceChildren(...tools);
  }

  /** ‹ 2/3 › */
  branches(siblings) {
    const here = siblings.indexOf(this.node);
    const step = (name, label, by) => {
      const other = siblings[here + by];
      return iconButton(name, label, () => this.does.choose(other, label), { disabled: !other });
    };
    const words = make("span", { text: `${here + 1}/${siblings.length}` });
    const before = step("left", "Earlier branch", -1);
    const after = step("right", "Later branch", 1);
    return make(
      "div",
      { class: "branches", role: "group", "aria-label": "Branches" },
      before,
      words,
      after,
    );
  }

  /** Puts a field in place of the text. What is typed is kept as a draft of its own. */
  edit() {
    const { node, does } = this;
    if (this.element.querySelector("form")) return;
    const field = make("textarea", {
      "aria-label": this.isAnswer ? "Answer" : "Message",
      rows: "3",
    });
    field.value = does.draft(node) || node.text;
    const end = () => {
      does.keepDraft(node, "");
      form.remove();
      this.element.classList.remove("edited");
      this.element.querySelector(".edit")?.focus();
    };
    const save = make("button", {
      type: "submit",
      class: "main",
      text: this.isAnswer ? "Keep" : "Send",
    });
    const leave = make("button", { type: "button", text: "Cancel", onclick: end });
    const form = make(
      "form",
      { class: "editor" },
      field,
      make("div", { class: "row" }, leave, save),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const text = field.value.trim();
      if (text === "" || !(this.isAnswer || text === node.text || does.isFree())) return;
      end();
      if (text !== node.text) does.edit(node, text);
    });
    form.addEventListener("keydown", (event) => {
      if (isComposing(event)) return;
      if (event.key === "Escape") end();
      const sends =
        event.target === field &&
        event.key === "Enter" &&
        !event.shiftKey &&
        (!this.isAnswer || event.ctrlKey);
      if (sends) form.requestSubmit();
      if (sends || event.key === "Escape") {
        event.preventDefault();
        event.stopPropagation();
      }
    });
    field.addEventListener("input", () =>
      does.keepDraft(node, field.value === node.text ? "" : field.value),
    );
    this.element.classList.add("edited");
    this.view.body.before(form);
    field.focus();
  }
}
