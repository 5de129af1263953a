// Conversations kept in this browser (IndexedDB): heads for the list, bodies with the messages.
// What cannot be kept stays in the tab and is said to be unsaved; nothing is ever thrown away to
// make room.

import { mergeInto, sizeOf } from "./conversation.js";

/** Characters kept at most. A list of more than that is nobody's any more. */
const MOST = 200_000_000;

let database = null;
const heads = new Map();
const unsaved = new Map();
const tabs = "BroadcastChannel" in window ? new BroadcastChannel("forerun") : null;
const listeners = [];

/**
 * Calls back when conversations change here or in another tab: with the id and whether it was
 * another tab.
 */
export const onChange = (listener) => listeners.push(listener);

const tell = (id, elsewhere) => listeners.forEach((listener) => listener(id, elsewhere));

const result = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

/** Runs `work` on both stores; done when it is on the disk. */
function within(mode, work) {
  const transaction = database.transaction(["heads", "bodies"], mode);
  const done = new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(transaction.error ?? new Error("the browser gave up"));
    transaction.onerror = () => reject(transaction.error);
  });
  const value = work(transaction.objectStore("heads"), transaction.objectStore("bodies"));
  return Promise.all([value, done]).then(([got]) => got);
}

/** Opens the store; whether there is one. Without it conversations live as long as the tab. */
export async function openStore() {
  try {
    const request = indexedDB.open("forerun", 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("heads", { keyPath: "id" });
      request.result.createObjectStore("bodies", { keyPath: "id" });
    };
    database = await result(request);
    await readHeads();
  } catch (error) {
    console.warn("conversations are not kept:", error);
  }
  tabs?.addEventListener("message", async ({ data }) => {
    await readHeads();
    tell(data, true);
  });
  return database !== null;
}

async function readHeads() {
  if (!database) return;
  const all = await within("readonly", (heads) => result(heads.getAll()));
  const here = [...unsaved.keys()].map((id) => heads.get(id));
  heads.clear();
  for (const head of [...all, ...here]) heads.set(head.id, head);
}

/** The list: newest first. */
export const headsByTime = () => [...heads.values()].sort((a, b) => b.changed - a.changed);

export const isUnsaved = () => unsaved.size > 0;

/** The conversation, or nothing where it is gone. */
export async function loadConversation(id) {
  if (unsaved.has(id)) return unsaved.get(id);
  if (!database) return null;
  return (await within("readonly", (_, bodies) => result(bodies.get(id)))) ?? null;
}

/** Keeps a conversation; why not, where it cannot be kept. */
export async function saveConversation(conversation) {
  const { id, title, changed } = conversation;
  const head = { id, title, changed, size: sizeOf(conversation) };
  const isNews = heads.get(id)?.title !== title || heads.get(id)?.changed !== changed;
  heads.set(id, head);
  let problem = null;
  try {
    if (!database) throw new Error("this browser keeps nothing for this page");
    const sum = [...heads.values()].reduce((sum, head) => sum + head.size, 0);
    if (sum > MOST) throw new DOMException("", "QuotaExceededError");
    await within("readwrite", async (heads, bodies) => {
      const there = await result(bodies.get(id));
      if (there) mergeInto(conversation, there);
      heads.put(head);
      bodies.put(conversation);
    });
    unsaved.delete(id);
  } catch (error) {
    unsaved.set(id, conversation);
    const isFull = error.name === "QuotaExceededError";
    problem = isFull ? "this browser's store is full" : error.message;
  }
  if (isNews) tell(id, false);
  if (!problem) tabs?.postMessage(id);
  return problem;
}

export async function removeConversation(id) {
  heads.delete(id);
  unsaved.delete(id);
  if (database) {
    await within("readwrite", (heads, bodies) => {
      heads.delete(id);
      bodies.delete(id);
    });
  }
  tell(id, false);
  tabs?.postMessage(id);
}

/** All conversations, one by one, newest first. */
export async function* allConversations() {
  for (const { id } of headsByTime()) {
    const conversation = await loadConversation(id);
    if (conversation) yield conversation;
  }
}

/** Looks for a text in titles and messages: `{head, before, match, after}` each. */
export async function* search(words) {
  const wanted = words.toLocaleLowerCase();
  for await (const conversation of allConversations()) {
    const head = heads.get(conversation.id);
    if (!head) continue;
    const said = Object.values(conversation.nodes).map((node) => node.text);
    const found = [conversation.title, ...said].find((text) =>
      text.toLocaleLowerCase().includes(wanted),
    );
    if (found === undefined) continue;
    const from = found.toLocaleLowerCase().indexOf(wanted);
    const to = from + words.length;
    const before = found.slice(Math.max(0, from - 24), from).replace(/\s+/g, " ");
    const after = found.slice(to, to + 80).replace(/\s+/g, " ");
    yield { head, before, match: found.slice(from, to), after };
  }
}
