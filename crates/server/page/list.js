// The list of conversations: to open, to search, to rename, to delete and to carry away.

import { newConversation } from "./conversation.js";
import { exportFile, readFile } from "./files.js";
import { announce, at, icon, iconButton, make, openMenu, passNote, walk } from "./parts.js";
import {
  allConversations,
  headsByTime,
  loadConversation,
  onChange,
  removeConversation,
  saveConversation,
  search,
} from "./store.js";

/** Milliseconds after the last key before texts are searched. */
const PAUSE = 150;

/** What a day is called in the list. */
function ageOf(time) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  const days = (midnight - time) / 86_400_000;
  if (days <= 0) return "Today";
  if (days <= 1) return "Yesterday";
  if (days <= 7) return "Last seven days";
  return new Date(time).toLocaleDateString("en", { month: "long", year: "numeric" });
}

export class List {
  /** `does` opens conversations and tells which is open and which are being written. */
  constructor(does) {
    this.does = does;
    this.place = at("list");
    this.turn = 0;
    onChange(() => this.draw());
    const field = at("search");
    field.addEventListener("input", () => {
      clearTimeout(this.pause);
      this.pause = setTimeout(() => this.draw(), PAUSE);
    });
    field.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown") this.stops()[0]?.focus();
      else if (event.key === "Enter") this.stops()[0]?.click();
      else if (event.key === "Escape" && field.value) {
        field.value = "";
        this.draw();
        event.stopPropagation();
      } else return;
      event.preventDefault();
    });
    this.place.addEventListener("keydown", (event) => this.press(event));
    at("all").addEventListener("click", () => this.openAllMenu());
    at("file").addEventListener("change", () => this.takeFiles());
  }

  stops() {
    return [...this.place.querySelectorAll("a")];
  }

  press(event) {
    const id = event.target.closest("li")?.dataset.id;
    if (!event.target.matches("a")) return;
    if (event.key === "ArrowUp" && event.target === this.stops()[0]) at("search").focus();
    else if (walk(event, this.stops())) return;
    else if (event.key === "F2") this.rename(id);
    else if (event.key === "Delete") this.remove(id);
    else return;
    event.preventDefault();
  }

  async draw() {
    const turn = ++this.turn;
    const words = at("search").value.trim();
    const found = [];
    if (words === "") headsByTime().forEach((head) => found.push({ head }));
    else for await (const one of search(words)) found.push(one);
    // Somebody typed on, or is naming one.
    if (turn !== this.turn || this.place.querySelector("form")) return;
    const focused = document.activeElement.closest?.("#list li")?.dataset.id;
    const rows = [];
    let age;
    for (const one of found) {
      if (words === "" && ageOf(one.head.changed) !== age) {
        age = ageOf(one.head.changed);
        rows.push(make("li", { class: "age", text: age }));
      }
      rows.push(this.row(one));
    }
    if (rows.length === 0) {
      const text =
        words === "" ? "Conversations will be kept here, in this browser." : "Nothing found.";
      rows.push(make("li", { class: "none", text }));
    }
    this.place.replaceChildren(...rows);
    if (words !== "") announce(`${found.length} found`);
    if (focused) this.place.querySelector(`li[data-id="${focused}"] a`)?.focus();
  }

  row({ head, before, match, after }) {
    const { id, title } = head;
    const link = make(
      "a",
      { href: `#${id}`, title },
      make("span", { class: "title", text: title || "New conversation" }),
    );
    if (match !== undefined) {
      link.append(make("span", { class: "found" }, before, make("mark", { text: match }), after));
    }
    const isOpen = this.does.isOpen(id);
    if (isOpen) link.setAttribute("aria-current", "page");
    link.addEventListener("click", (event) => {
      event.preventDefault();
      this.does.open(id);
    });
    link.addEventListener("dblclick", () => this.rename(id));
    const more = iconButton("dots", `More for ${title}`, () => this.openMenu(id, more), {
      class: "quiet more",
    });
    const writes = this.does.isWriting(id)
      ? make("span", { class: "writes", title: "Being written" })
      : "";
    const row = make("li", { class: isOpen ? "open" : "" }, link, writes, more);
    row.dataset.id = id;
    return row;
  }

  openMenu(id, button) {
    const carry = async (kind) => exportFile([await this.does.conversation(id)], kind);
    openMenu(button, [
      ["Rename", () => this.rename(id)],
      ["Export as markdown", () => carry("md")],
      ["Export as JSON", () => carry("json")],
      ["Delete", () => this.remove(id), true],
    ]);
  }

  openAllMenu() {
    const carry = async (kind) => {
      const all = await Array.fromAsync(allConversations());
      if (all.length > 0) exportFile(all, kind);
      else passNote("There is nothing to export yet.");
    };
    openMenu(at("all"), [
      ["Import conversations…", () => at("file").click()],
      ["Export all as JSON", () => carry("json")],
      ["Export all as markdown", () => carry("md")],
    ]);
  }

  /** Puts a field in place of the title. */
  rename(id) {
    const row = this.place.querySelector(`li[data-id="${id}"]`);
    if (!row || row.querySelector("form")) return;
    const link = row.querySelector("a");
    const field = make("input", { "aria-label": "Title", maxlength: "200" });
    field.value = link.title;
    const form = make("form", { class: "rename" }, field);
    let isOver = false;
    const end = async (isKept) => {
      if (isOver) return;
      isOver = true;
      const title = field.value.trim();
      form.replaceWith(link);
      if (isKept && title !== "" && title !== link.title) {
        const conversation = await this.does.conversation(id);
        Object.assign(conversation, { title, named: true });
        await this.does.keep(conversation);
      }
      await this.draw();
      this.place.querySelector(`li[data-id="${id}"] a`)?.focus();
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      end(true);
    });
    field.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Escape") end(false);
    });
    field.addEventListener("blur", () => end(true));
    link.replaceWith(form);
    field.select();
  }

  async remove(id) {
    const stops = this.stops();
    const here = stops.findIndex((stop) => stop.closest("li").dataset.id === id);
    const next = (stops[here + 1] ?? stops[here - 1])?.closest("li").dataset.id;
    const removed = await this.does.conversation(id);
    await this.does.leave(id);
    await removeConversation(id);
    await this.draw();
    this.place.querySelector(`li[data-id="${next}"] a`)?.focus();
    passNote(`Deleted “${removed?.title || "the conversation"}”`, [
      "Undo",
      async () => {
        await saveConversation(removed);
        await this.draw();
        this.does.open(id);
      },
    ]);
  }

  async takeFiles() {
    const field = at("file");
    let taken = 0;
    try {
      for (const file of field.files) {
        for (const conversation of readFile(await file.text())) {
          // One that is here already stays as it is, and the file's comes beside it.
          if (await loadConversation(conversation.id)) conversation.id = newConversation().id;
          const problem = await saveConversation(conversation);
          if (problem) throw new Error(problem);
          taken += 1;
        }
      }
      passNote(`Imported ${taken} ${taken === 1 ? "conversation" : "conversations"}.`);
    } catch (error) {
      passNote(`Imported ${taken}; then: ${error.message}.`);
    }
    field.value = "";
    this.draw();
  }
}

export const newButton = (label) => [icon("plus"), make("span", { text: label })];
