// Conversations as files: JSON that can be taken in again, and markdown to read.

import { checkedConversation, pathOf } from "./conversation.js";
import { saveFile } from "./parts.js";
import { checkedSettings } from "./settings.js";

const FORMAT = "forerun conversations";

const nameOf = (title) =>
  title
    .normalize("NFC")
    .replace(/[^\p{L}\p{N}]+/gu, "-")
    .replace(/^-+|-+$/g, "")
    .slice(0, 60) || "conversation";

const today = () => new Date().toISOString().slice(0, 10);

export function asJson(conversations) {
  return JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);
}

/** The path that is shown; branches are in the JSON. */
export function asMarkdown(conversation) {
  const parts = [`# ${conversation.title || "Conversation"}`];
  const { system } = conversation.settings;
  if (system) parts.push(`## System\n\n${system}`);
  for (const { role, text, thought } of pathOf(conversation)) {
    parts.push(`## ${role === "user" ? "You" : "Forerun"}`);
    if (thought)
      parts.push(`<details><summary>Thoughts</summary>\n\n${thought.trim()}\n\n</details>`);
    parts.push(text.trim());
  }
  return `${parts.join("\n\n")}\n`;
}

/** Hands conversations to the downloads, as `json` or `md`. */
export function exportFile(conversations, kind) {
  const isOne = conversations.length === 1;
  const name = isOne ? nameOf(conversations[0].title) : `forerun-conversations-${today()}`;
  const text =
    kind === "json" ? asJson(conversations) : conversations.map(asMarkdown).join("\n---\n\n");
  saveFile(`${name}.${kind}`, kind === "json" ? "application/json" : "text/markdown", text);
}

/** The conversations of a file; throws with what is wrong. */
export function readFile(text) {
  let read;
  try {
    read = JSON.parse(text);
  } catch {
    throw new Error("the file is not JSON");
  }
  if (read?.format !== FORMAT || !Array.isArray(read.conversations)) {
    throw new Error("the file has no conversations of Forerun");
  }
  return read.conversations.map((raw, i) => {
    const conversation = checkedConversation(raw);
    if (!conversation) throw new Error(`conversation ${i + 1} of the file is broken`);
    conversation.settings = checkedSettings(conversation.settings);
    return conversation;
  });
}
