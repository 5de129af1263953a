// How answers are written: a system prompt and sampling, for one conversation or as defaults for
// all. What is left empty is as the level below says: the defaults, and below them the model.

import { at, kept, make } from "./parts.js";

/** name, label, least, most, step, what it does. */
const NUMBERS = [
  ["temperature", "Temperature", 0, 2, 0.1, "0 takes the likeliest word every time"],
  ["top_p", "Top p", 0, 1, 0.05, "The likeliest words that have this share together"],
  ["top_k", "Top k", 0, undefined, 1, "So many of the likeliest words; 0 is all"],
  ["min_p", "Min p", 0, 1, 0.01, "Words at least this likely, measured by the likeliest"],
  [
    "repetition_penalty",
    "Repetition penalty",
    0.1,
    2,
    0.05,
    "Above 1 what was said is less likely",
  ],
  ["presence_penalty", "Presence penalty", -2, 2, 0.1, "Against words that were there at all"],
  [
    "frequency_penalty",
    "Frequency penalty",
    -2,
    2,
    0.1,
    "Against words by how often they were there",
  ],
  ["max_tokens", "Most tokens", 1, undefined, 1, "The answer, its thoughts included, ends there"],
  ["seed", "Seed", 0, Number.MAX_SAFE_INTEGER, 1, "The same seed gives the same answer"],
];
const WHOLE = new Set(["top_k", "max_tokens", "seed"]);

const CHOICES = [
  [
    "thinking",
    "Think first",
    [
      ["on", "Yes"],
      ["off", "No"],
    ],
  ],
  ["effort", "Effort", ["low", "medium", "high", "xhigh"].map((effort) => [effort, effort])],
];

const TEXTS = [
  ["system", "System prompt", 5, "What the model should know and how it should behave"],
  ["stop", "Stop at", 2, "Texts that end the answer, one a line"],
];

/** Only what is known and has the right form: files and old versions may say anything. */
export function checkedSettings(raw) {
  const checked = {};
  for (const [name, , least, most] of NUMBERS) {
    const value = raw?.[name];
    const fits =
      typeof value === "number" && value >= least && value <= (most ?? Number.MAX_SAFE_INTEGER);
    if (fits && (!WHOLE.has(name) || Number.isInteger(value))) checked[name] = value;
  }
  for (const [name, , options] of CHOICES) {
    if (options.some(([value]) => value === raw?.[name])) checked[name] = raw[name];
  }
  for (const [name] of TEXTS) {
    if (typeof raw?.[name] === "string" && raw[name] !== "") checked[name] = raw[name];
  }
  return checked;
}

export function defaults() {
  try {
    return checkedSettings(JSON.parse(kept.get("defaults") ?? "{}"));
  } catch {
    return {};
  }
}

/** What holds for a conversation. */
export const settingsOf = (conversation) => ({
  ...defaults(),
  ...checkedSettings(conversation.settings),
});

/**
 * The fields of a request that say all this, and the messages with the system prompt before them.
 */
export function requestOf(settings, messages) {
  const { system, stop, thinking, effort, ...numbers } = settings;
  const body = { messages, ...numbers };
  if (system) body.messages = [{ role: "system", content: system }, ...messages];
  const stops = (stop ?? "").split("\n").filter((line) => line !== "");
  if (stops.length > 0) body.stop = stops;
  if (thinking) body.chat_template_kwargs = { enable_thinking: thinking === "on" };
  if (effort && thinking !== "off") body.reasoning_effort = effort;
  return body;
}

/**
 * The panel. `current` tells the conversation, `changed` is called when its settings have changed.
 */
export class SettingsPanel {
  constructor(current, changed) {
    this.current = current;
    this.changed = changed;
    this.dialog = at("settings");
    this.fields = new Map();
    const texts = TEXTS.map((text) => this.text(...text));
    const choices = make(
      "div",
      { class: "pair" },
      ...CHOICES.map((choice) => this.choice(...choice)),
    );
    const numbers = make(
      "div",
      { class: "pair" },
      ...NUMBERS.map((number) => this.number(...number)),
    );
    at("fields").append(texts[0], choices, numbers, texts[1]);
    at("fields").addEventListener("change", (event) => this.take(event.target));
    for (const radio of this.dialog.querySelectorAll("[name=level]")) {
      radio.addEventListener("change", () => this.show());
    }
    at("reset").addEventListener("click", () => this.keep({}));
    at("settings-close").addEventListener("click", () => this.dialog.close());
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close();
    });
  }

  open() {
    this.show();
    this.dialog.showModal();
    at("settings-title").focus();
  }

  field(name, label, help, input) {
    input.id = `set-${name}`;
    input.name = name;
    this.fields.set(name, input);
    const words = make("label", { for: input.id, text: label });
    const hint = make("p", { class: "hint", id: `hint-${name}`, text: help ?? "" });
    if (help) input.setAttribute("aria-describedby", hint.id);
    return make("div", { class: "field" }, words, input, help ? hint : "");
  }

  number(name, label, least, most, step, help) {
    const mode = step < 1 ? "decimal" : "numeric";
    const traits = {
      type: "number",
      min: least,
      max: most,
      step: step < 1 ? "any" : step,
      inputmode: mode,
    };
    return this.field(name, label, help, make("input", traits));
  }

  text(name, label, rows, help) {
    return this.field(name, label, help, make("textarea", { rows }));
  }

  choice(name, label, options) {
    const all = [["", ""], ...options].map(([value, text]) => make("option", { value, text }));
    return this.field(name, label, undefined, make("select", {}, ...all));
  }

  get isDefaults() {
    return this.dialog.querySelector("[name=level]:checked").value === "defaults";
  }

  settings() {
    return this.isDefaults ? defaults() : checkedSettings(this.current().settings);
  }

  show() {
    const settings = this.settings();
    const below = this.isDefaults ? {} : defaults();
    for (const [name, input] of this.fields) {
      const inherited =
        below[name] ?? (name === "system" || name === "stop" ? "none" : "model’s own");
      input.value = settings[name] ?? "";
      input.removeAttribute("aria-invalid");
      if (input.tagName === "SELECT") input.options[0].textContent = inherited;
      else input.placeholder = inherited;
    }
    at("reset").disabled = Object.keys(settings).length === 0;
  }

  take(input) {
    const settings = this.settings();
    const isValid = input.checkValidity();
    input.setAttribute("aria-invalid", !isValid);
    if (!isValid) return input.reportValidity();
    if (input.value === "") delete settings[input.name];
    else settings[input.name] = input.type === "number" ? Number(input.value) : input.value;
    this.keep(settings, input);
  }

  keep(settings) {
    if (this.isDefaults) kept.set("defaults", JSON.stringify(settings));
    else this.current().settings = settings;
    this.changed();
    this.show();
  }
}
