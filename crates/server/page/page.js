// The page: which conversation is open, what is being written, and what keys and buttons do.

import { Answer } from "./answer.js";
import { addNode, chooseNode, messagesTo, newConversation, pathOf } from "./conversation.js";
import { List, newButton } from "./list.js";
import { announce, at, icon, isComposing, kept, make, passNote } from "./parts.js";
import { SettingsPanel, requestOf, settingsOf } from "./settings.js";
import { isUnsaved, loadConversation, onChange, openStore, saveConversation } from "./store.js";
import { ask, findModels, isThere, key } from "./stream.js";
import { Talk, showNotice } from "./talk.js";

/** What is written is kept at least this often, in milliseconds. */
const KEEP_EVERY = 700;

/** A busy server is asked again so often before the reader has to. */
const TRIES = 5;

let conversation = newConversation();
/** Counts what was to be opened. */
let opening = 0;
/** By conversation: the answer being written and what stops it. */
const writing = new Map();
/** Those that were deleted; what is still being written in one is not kept. */
const deleted = new Set();

const isStored = () => Object.keys(conversation.nodes).length > 0;
const draftName = () => `draft.${isStored() ? conversation.id : "new"}`;
const runningHere = () => writing.get(conversation.id);

/** Whether something can be asked here, or says why not. */
function isFree() {
  if (runningHere()) passNote("An answer is being written: stop it first.");
  return !runningHere();
}

const talk = new Talk({
  edit,
  retry: (node) => isFree() && answerTo(conversation, conversation.nodes[node.parent]),
  isFree,
  choose: (node, label) => {
    chooseNode(conversation, node);
    keep(conversation);
    show();
    talk.focusBranch(node, label);
  },
  fresh: () => open(null),
  draft: (node) => kept.get(`edit.${node.id}`) ?? "",
  keepDraft: (node, text) => kept.set(`edit.${node.id}`, text),
});

const list = new List({
  open,
  isOpen: (id) => id === conversation.id && isStored(),
  isWriting: (id) => writing.has(id),
  conversation: (id) => conversationOf(id),
  keep: async (changed) => {
    await keep(changed);
    if (changed.id === conversation.id) showTitle();
  },
  leave: async (id) => {
    deleted.add(id);
    writing.get(id)?.controller.abort();
    const nodes = Object.keys((await conversationOf(id))?.nodes ?? {});
    if (id === conversation.id) await open(null);
    // What was typed there goes with it.
    [`draft.${id}`, ...nodes.map((node) => `edit.${node}`)].forEach((name) => kept.set(name, ""));
  },
});

const panel = new SettingsPanel(
  () => conversation,
  () => {
    if (isStored()) keep(conversation);
    showChips();
  },
);

// ---- Conversations

/** The conversation itself, not a copy, where it is open or being written. */
async function conversationOf(id) {
  if (id === conversation.id) return conversation;
  return writing.get(id)?.conversation ?? (await loadConversation(id));
}

/** Opens a conversation, or a new one. */
async function open(id) {
  deleted.delete(id);
  const turn = (opening += 1);
  const found = id ? await conversationOf(id) : newConversation();
  // The last one that was wanted is opened, whichever was found first.
  if (turn !== opening) return;
  if (!found) passNote("That conversation is not in this browser.");
  keepDraft();
  conversation = found ?? newConversation();
  const hash = isStored() ? `#${conversation.id}` : "";
  if (location.hash !== hash)
    history.pushState(null, "", hash || location.pathname + location.search);
  at("prompt").value = kept.get(draftName()) ?? "";
  fitPrompt();
  showSide(false);
  show();
  talk.scrollToEnd();
  list.draw();
  // On a phone that would bring up the keyboard.
  if (!isNarrow.matches) at("prompt").focus();
}

/** Keeps a conversation, or says that it could not be kept. */
async function keep(changed) {
  if (deleted.has(changed.id)) return;
  const problem = await saveConversation(changed);
  if (problem) {
    const words = `This conversation is only in this tab: ${problem}. Export it, or delete others to make room.`;
    const again = make("button", {
      type: "button",
      text: "Try again",
      onclick: () => keep(changed),
    });
    showNotice("unsaved", words, again);
  } else if (at("notice").dataset.kind === "unsaved" && !isUnsaved()) {
    showNotice("");
  }
}

function showTitle() {
  const title = conversation.title || "New conversation";
  at("title").textContent = title;
  document.title = conversation.title ? `${title} · Forerun` : "Forerun";
}

/** Draws what is open. */
function show() {
  showTitle();
  talk.show(conversation, (node) => {
    const running = runningHere();
    return running?.answer.node === node ? running.answer : undefined;
  });
  showBusy();
  showChips();
}

function showBusy() {
  const isBusy = Boolean(runningHere());
  at("send").hidden = isBusy;
  at("stop").hidden = !isBusy;
  at("send").disabled = at("prompt").value.trim() === "";
}

function showChips() {
  at("thinking").setAttribute("aria-pressed", settingsOf(conversation).thinking !== "off");
  const isTinted = kept.get("tint") !== "off";
  at("shading").setAttribute("aria-pressed", isTinted);
  at("turns").classList.toggle("plain", !isTinted);
}

// ---- Asking

function send() {
  const text = at("prompt").value.trim();
  if (text === "" || runningHere()) return;
  kept.set(draftName(), "");
  const last = pathOf(conversation).at(-1);
  const question = addNode(conversation, last?.id ?? null, "user", { text });
  at("prompt").value = "";
  fitPrompt();
  history.replaceState(null, "", `#${conversation.id}`);
  answerTo(conversation, question);
}

/** A message said otherwise, beside the first; an answer said otherwise is not asked for. */
function edit(node, text) {
  const branch = addNode(conversation, node.parent, node.role, { text });
  if (node.role === "user") return answerTo(conversation, branch);
  keep(conversation);
  show();
}

/** Writes an answer after `question`, in its conversation, whether or not that stays open. */
async function answerTo(asked, question) {
  if (writing.has(asked.id)) return;
  // Another try after one that gave nothing takes its place.
  const tried = Object.values(asked.nodes).find(
    (node) =>
      node.parent === question.id && node.role === "assistant" && !node.text && !node.thought,
  );
  const node = tried ?? addNode(asked, question.id, "assistant");
  chooseNode(asked, node);
  const answer = new Answer(node);
  const controller = new AbortController();
  writing.set(asked.id, { conversation: asked, answer, controller });
  if (asked.id === conversation.id) {
    showNotice("");
    show();
    talk.scrollToEnd();
  }
  list.draw();
  await keep(asked);
  const keeping = setInterval(() => keep(asked), KEEP_EVERY);
  const problem = await write(asked, question, answer, controller.signal);
  clearInterval(keeping);
  const isStopped = problem?.name === "AbortError";
  answer.end(isStopped ? "stopped" : problem ? "failed" : "done", isStopped ? null : problem);
  writing.delete(asked.id);
  await keep(asked);
  list.draw();
  if (asked.id === conversation.id) {
    talk.draw(node);
    showBusy();
    if (problem?.kind === "key") showKey();
    if (problem?.kind === "offline") waitForServer();
    announce(isStopped ? "Stopped." : (problem?.message ?? "The answer is complete."));
  }
}

/** Takes the chunks; what went wrong, where something did. */
async function write(asked, question, answer, signal) {
  const body = requestOf(settingsOf(asked), messagesTo(asked, question));
  // A single model answers to any name.
  if (!at("models").hidden) body.model = at("models").value;
  for (let tries = 1; ; tries += 1) {
    try {
      for await (const chunk of ask(body, signal)) {
        answer.take(chunk);
        if (asked.id === conversation.id) talk.drawSoon(answer);
      }
      return null;
    } catch (error) {
      const waits =
        error.kind === "busy" && answer.tokens === 0 && tries < TRIES && !signal.aborted;
      if (!waits) return error.kind || error.name === "AbortError" ? error : failure(error);
      if (!(await waitToRetry(asked, error.after, signal)))
        return new DOMException("", "AbortError");
    }
  }
}

function failure(error) {
  console.error(error);
  return { kind: "failed", message: error.message };
}

/** Counts the seconds down that a busy server asked for; whether to go on. */
async function waitToRetry(asked, seconds, signal) {
  for (let left = Math.ceil(seconds); left > 0 && !signal.aborted; left -= 1) {
    if (asked.id === conversation.id)
      showNotice("busy", `The server is busy. Trying again in ${left} s.`);
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
  if (at("notice").dataset.kind === "busy") showNotice("");
  return !signal.aborted;
}

/** Says so when the server is back. */
async function waitForServer() {
  const asked = conversation;
  const turn = pathOf(conversation).at(-1);
  while (turn === pathOf(conversation).at(-1) && turn.problem?.kind === "offline") {
    if (await isThere()) {
      const onclick = async () => {
        showNotice("");
        if (asked.id !== conversation.id) await open(asked.id);
        answerTo(conversation, conversation.nodes[turn.parent]);
      };
      const again = make("button", { type: "button", class: "main", text: "Try again", onclick });
      greet();
      return showNotice("back", "The server answers again.", again);
    }
    await new Promise((resolve) => setTimeout(resolve, 2000));
  }
}

// ---- The server

/** Asks for the key, and takes up again what failed without it. */
function showKey() {
  const field = make("input", {
    id: "key",
    type: "password",
    autocomplete: "off",
    placeholder: "Key",
    "aria-label": "Key",
  });
  field.value = key.get();
  const form = make(
    "form",
    { class: "row" },
    field,
    make("button", { class: "main", text: "Use" }),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    key.set(field.value.trim());
    showNotice("");
    greet();
    const last = pathOf(conversation).at(-1);
    if (last?.problem?.kind === "key") answerTo(conversation, conversation.nodes[last.parent]);
    at("prompt").focus();
  });
  const words = key.get() ? "The server does not know this key." : "This server asks for a key.";
  showNotice("key", `${words} It is kept until the tab is closed.`, form);
}

/** Says which model answers, and lets one be chosen where there are several. */
async function greet() {
  try {
    const models = await findModels();
    const chosen = models.find((model) => model.id === kept.get("model")) ?? models[0];
    at("model").hidden = models.length > 1;
    at("models").hidden = models.length < 2;
    const options = models.map((model) => make("option", { text: model.id }));
    at("models").replaceChildren(...options);
    at("models").value = chosen.id;
    at("model").textContent = chosen.id;
    at("model").title = at("models").title = chosen.max_model_len
      ? `Context of ${chosen.max_model_len.toLocaleString("en")} tokens`
      : "";
  } catch (problem) {
    at("model").textContent = problem.kind === "offline" ? "offline" : "";
    if (problem.kind === "key") showKey();
  }
}

// ---- The frame

const THEMES = {
  auto: ["half", "as the system is"],
  light: ["sun", "light"],
  dark: ["moon", "dark"],
};

function showTheme(theme) {
  document.documentElement.dataset.theme = theme;
  kept.set("theme", theme === "auto" ? "" : theme);
  const label = `Colours: ${THEMES[theme][1]}`;
  at("theme").replaceChildren(icon(THEMES[theme][0]));
  at("theme").title = label;
  at("theme").setAttribute("aria-label", label);
}

const isNarrow = matchMedia("(max-width: 52rem)");

/** The list is a drawer where there is no room beside the conversation. */
function showSide(isOpen) {
  document.body.classList.toggle("drawer", isOpen);
  at("shade").hidden = !isOpen;
  at("side").inert = isNarrow.matches && !isOpen;
  at("room").inert = isNarrow.matches && isOpen;
  at("side-open").setAttribute("aria-expanded", isOpen);
}

function fitPrompt() {
  const prompt = at("prompt");
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight}px`;
  at("send").disabled = prompt.value.trim() === "";
}

function keepDraft() {
  kept.set(draftName(), at("prompt").value);
}

function wire() {
  const icons = {
    "side-close": "close",
    "side-open": "list",
    "settings-open": "sliders",
    "settings-close": "close",
  };
  Object.entries({ ...icons, send: "send", latest: "down" }).forEach(([id, name]) =>
    at(id).append(icon(name)),
  );
  at("fresh").append(...newButton("New conversation"));
  const on = (id, act) => at(id).addEventListener("click", act);
  on("fresh", () => open(null));
  on("side-open", () => {
    showSide(true);
    at("search").focus();
  });
  on("side-close", () => showSide(false));
  on("shade", () => showSide(false));
  on("settings-open", () => panel.open());
  on("stop", stop);
  on("theme", () => {
    const all = Object.keys(THEMES);
    showTheme(all[(all.indexOf(document.documentElement.dataset.theme) + 1) % all.length]);
  });
  on("thinking", () => {
    const thinks = at("thinking").getAttribute("aria-pressed") === "true";
    conversation.settings = { ...conversation.settings, thinking: thinks ? "off" : "on" };
    if (isStored()) keep(conversation);
    showChips();
  });
  on("shading", () => {
    kept.set("tint", at("shading").getAttribute("aria-pressed") === "true" ? "off" : "");
    showChips();
  });
  at("models").addEventListener("change", () => {
    kept.set("model", at("models").value);
    greet();
  });
  at("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  at("ask").addEventListener("click", (event) => {
    if (event.target === at("ask")) at("prompt").focus();
  });
  at("prompt").addEventListener("input", () => {
    fitPrompt();
    keepDraft();
  });
  at("prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || isComposing(event)) return;
    event.preventDefault();
    send();
  });
  document.addEventListener("keydown", press);
}

function stop() {
  runningHere()?.controller.abort();
  at("prompt").focus();
}

function press(event) {
  if (isComposing(event)) return;
  const held = event.ctrlKey || event.metaKey;
  const pressed = event.key.toLowerCase();
  if (event.key === "Escape" && document.body.classList.contains("drawer")) showSide(false);
  else if (event.key === "Escape" && !at("settings").open) return stop();
  else if (held && pressed === "k") {
    if (isNarrow.matches) showSide(true);
    at("search").select();
  } else if (held && event.shiftKey && pressed === "o") open(null);
  else if (held && pressed === ",") panel.open();
  else return;
  event.preventDefault();
}

async function begin() {
  wire();
  showTheme(
    document.documentElement.dataset.theme in THEMES
      ? document.documentElement.dataset.theme
      : "auto",
  );
  showSide(false);
  isNarrow.addEventListener("change", () => showSide(false));
  // The on-screen keyboard covers the page on some phones: what is left of it is what is seen.
  visualViewport?.addEventListener("resize", () => {
    if (visualViewport.scale > 1) return;
    document.documentElement.style.setProperty("--seen", `${visualViewport.height}px`);
  });
  if (!(await openStore()))
    passNote("This browser keeps nothing for this page: conversations end with the tab.");
  onChange((id, isElsewhere) => {
    if (isElsewhere && id === conversation.id && !runningHere()) reopen(id);
  });
  addEventListener("popstate", () => open(location.hash.slice(1) || null));
  addEventListener("pagehide", () =>
    writing.forEach(({ conversation }) => saveConversation(conversation)),
  );
  addEventListener("beforeunload", (event) => isUnsaved() && event.preventDefault());
  await open(location.hash.slice(1) || null);
  document.body.dataset.ready = "yes";
  greet();
}

/** Another tab has changed what is open here. */
async function reopen(id) {
  const found = await loadConversation(id);
  // Meanwhile another may have been opened, or something asked.
  if (id !== conversation.id || runningHere()) return;
  if (!found) return open(null);
  conversation = found;
  show();
}

begin();
