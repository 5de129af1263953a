// A conversation: a tree of messages. An edited question and an answer tried again are branches
// beside the first; the path that is shown follows, at each fork, the branch that was chosen last.

const newId = () =>
  [...crypto.getRandomValues(new Uint8Array(12))]
    .map((b) => b.toString(16).padStart(2, "0"))
    .join("");

export function newConversation() {
  const now = Date.now();
  const told = { title: "", named: false, created: now, changed: now };
  return { id: newId(), ...told, settings: {}, nodes: {}, chosen: {} };
}

/** Adds a message after `parent` (an id, or null at the beginning) and chooses it. */
export function addNode(conversation, parent, role, fields) {
  const now = Date.now();
  const node = { id: newId(), parent, role, text: "", time: now, state: "done", ...fields };
  conversation.nodes[node.id] = node;
  conversation.changed = now;
  if (!conversation.named && conversation.title === "") conversation.title = titleOf(node.text);
  chooseNode(conversation, node);
  return node;
}

/** Shows this branch at its fork. */
export function chooseNode(conversation, node) {
  conversation.chosen[node.parent ?? "root"] = node.id;
}

/** The messages that follow `parent`, in order of time. */
function childrenOf(conversation, parent) {
  const children = Object.values(conversation.nodes).filter((node) => node.parent === parent);
  return children.sort((a, b) => a.time - b.time);
}

export const siblingsOf = (conversation, node) => childrenOf(conversation, node.parent);

/** The messages that are shown, from the first on. */
export function pathOf(conversation) {
  const byParent = Map.groupBy(
    Object.values(conversation.nodes).sort((a, b) => a.time - b.time),
    (node) => node.parent,
  );
  const path = [];
  for (let parent = null; byParent.has(parent); parent = path.at(-1).id) {
    const children = byParent.get(parent);
    const chosen = conversation.chosen[parent ?? "root"];
    path.push(children.find((node) => node.id === chosen) ?? children.at(-1));
  }
  return path;
}

/** What the server is told: the way from the first message to `node`. */
export function messagesTo(conversation, node) {
  const messages = [];
  for (let at = node; at; at = conversation.nodes[at.parent]) {
    const { role, text, thought } = at;
    // An answer that failed before its first word is nothing to go on from.
    if (role === "assistant" && !text && !thought) continue;
    const said = { role, content: text };
    if (thought) said.reasoning_content = thought;
    messages.unshift(said);
  }
  return messages;
}

/** The first words of a text. */
export function titleOf(text) {
  const line = text.trim().split("\n", 1)[0].replace(/\s+/g, " ");
  if (line.length <= 60) return line;
  return `${line.slice(0, 60).replace(/\s+\S*$/, "")}…`;
}

/** Characters that it takes to keep. */
export const sizeOf = (conversation) =>
  Object.values(conversation.nodes).reduce(
    (sum, { text, thought, rounds, tints }) =>
      sum +
      text.length +
      (thought?.length ?? 0) +
      8 * (rounds?.length ?? 0) +
      16 * count(tints) +
      200,
    conversation.title.length + 200,
  );

const count = (tints) => (tints ? tints.text.length + tints.thought.length : 0);

/**
 * Takes in the messages of another copy that this one does not have: another tab may have added
 * some.
 */
export function mergeInto(conversation, other) {
  for (const [id, node] of Object.entries(other.nodes)) conversation.nodes[id] ??= node;
}

/** A conversation from a file, which may say anything; nothing where it is none. */
export function checkedConversation(raw) {
  const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
  if (!isObject(raw) || !isObject(raw.nodes)) return null;
  const string = (value, length) => (typeof value === "string" ? value.slice(0, length) : "");
  const time = (value) => (Number.isFinite(value) ? value : Date.now());
  const conversation = newConversation();
  conversation.id = /^[0-9a-f]{24}$/.test(raw.id) ? raw.id : conversation.id;
  conversation.title = string(raw.title, 200);
  conversation.named = raw.named === true;
  conversation.created = time(raw.created);
  conversation.changed = time(raw.changed);
  if (isObject(raw.settings)) conversation.settings = { ...raw.settings };
  for (const [id, node] of Object.entries(raw.nodes)) {
    if (!isObject(node) || !/^[0-9a-f]{24}$/.test(id)) return null;
    if (node.role !== "user" && node.role !== "assistant") return null;
    if (typeof node.text !== "string") return null;
    const known =
      node.parent === null || (typeof node.parent === "string" && raw.nodes[node.parent]);
    if (!known) return null;
    const { role, text, parent } = node;
    const read = { id, parent, role, text, time: time(node.time), state: "done" };
    if (["stopped", "failed", "writing"].includes(node.state)) read.state = "stopped";
    if (typeof node.thought === "string") read.thought = node.thought;
    if (node.finish === "length") read.finish = "length";
    conversation.nodes[id] = read;
  }
  if (isObject(raw.chosen)) {
    for (const [parent, id] of Object.entries(raw.chosen)) {
      if (conversation.nodes[id]) conversation.chosen[parent] = id;
    }
  }
  // A circle has no first message, so nobody would ever see it.
  const reached = new Set();
  let next = [null];
  const byParent = Map.groupBy(Object.values(conversation.nodes), (node) => node.parent);
  while (next.length > 0) {
    next = next.flatMap((id) => byParent.get(id) ?? []).map((node) => node.id);
    next.forEach((id) => reached.add(id));
  }
  if (reached.size !== Object.keys(conversation.nodes).length || reached.size === 0) return null;
  conversation.title ||= titleOf(pathOf(conversation)[0].text);
  return conversation;
}
