// Small parts that everything else is made of: elements, icons, menus, passing notes, files.

export const at = (id) => document.getElementById(id);

/** An element. `traits` are attributes, but for `class`, `text` and handlers (`onclick`). */
export function make(name, traits = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(traits)) {
    if (value === undefined || value === false) continue;
    if (key === "class") made.className = value;
    else if (key === "text") made.textContent = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Lines of the icons, drawn on a field of 20 by 20. */
const LINES = {
  plus: "M10 4v12M4 10h12",
  search: "M9 4a5 5 0 1 0 0 10a5 5 0 0 0 0-10M12.7 12.7L16.5 16.5",
  sliders: "M3 6h8M15 6h2M13 4v4M3 14h2M9 14h8M7 12v4",
  list: "M3.5 5.5h13M3.5 10h13M3.5 14.5h13",
  pencil: "M4 16l.8-3.4L13 4.4l2.6 2.6l-8.2 8.2zM11.4 6l2.6 2.6",
  copy: "M7.5 7.5h8v9h-8zM12.5 7.5v-4h-8v9h3",
  check: "M4.5 10.5l3.5 3.5l7.5-8",
  again: "M15.5 10a5.5 5.5 0 1 1-1.6-3.9M15.8 3.5v3.2h-3.2",
  dots: "M5 10h.01M10 10h.01M15 10h.01",
  send: "M10 16V4.5M5 9.2l5-5l5 5",
  left: "M12 5l-5 5l5 5",
  right: "M8 5l5 5l-5 5",
  down: "M10 4v11.5M5 10.8l5 5l5-5",
  close: "M5 5l10 10M15 5L5 15",
  sun: "M10 7a3 3 0 1 0 0 6a3 3 0 0 0 0-6M10 2.5v1.5M10 16v1.5M2.5 10H4M16 10h1.5M4.7 4.7l1 1M14.3 14.3l1 1M4.7 15.3l1-1M14.3 5.7l1-1",
  moon: "M15.8 12A6.5 6.5 0 0 1 8 4.2a6.5 6.5 0 1 0 7.8 7.8z",
  half: "M10 3.5a6.5 6.5 0 1 0 0 13a6.5 6.5 0 0 0 0-13zM10 3.5v13M12 5.5v9M14 7v6",
};

export function drawing(name, traits, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(traits)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function icon(name) {
  const line = drawing("path", { d: LINES[name] });
  return drawing("svg", { viewBox: "0 0 20 20", class: "icon", "aria-hidden": "true" }, line);
}

/** A button that is an icon; its label is for those who do not see it, and for those who wait. */
export function iconButton(name, label, onclick, traits = {}) {
  const all = { type: "button", class: "quiet", "aria-label": label, title: label, onclick };
  return make("button", { ...all, ...traits }, icon(name));
}

/** Whether a key is an input method's; Safari tells of the last one by its code alone. */
export const isComposing = (event) => event.isComposing || event.keyCode === 229;

/** A menu beside a button: `[label, action, isGrave]` each. */
export function openMenu(button, entries) {
  const before = document.activeElement;
  const menu = make("div", { class: "menu", role: "menu", popover: "auto" });
  for (const [label, action, grave] of entries) {
    const onclick = () => {
      menu.hidePopover();
      action();
    };
    const traits = { type: "button", role: "menuitem", class: grave ? "grave" : "", text: label };
    menu.append(make("button", { ...traits, onclick }));
  }
  menu.addEventListener("keydown", (event) => {
    // It closes the menu and nothing else.
    if (event.key === "Escape") event.stopPropagation();
    else walk(event, [...menu.children]);
  });
  menu.addEventListener("toggle", ({ newState }) => {
    if (newState === "open") return;
    if (menu.contains(document.activeElement)) before?.focus();
    menu.remove();
  });
  document.body.append(menu);
  menu.showPopover();
  const { left, right, top, bottom } = button.getBoundingClientRect();
  const { width, height } = menu.getBoundingClientRect();
  const below = bottom + height + 8 < innerHeight;
  menu.style.top = `${Math.max(8, below ? bottom + 4 : top - height - 4)}px`;
  menu.style.left = `${Math.max(8, left + width + 8 < innerWidth ? left : right - width)}px`;
  menu.firstElementChild.focus();
}

/** Moves the focus in a list by arrows, Home and End; whether the key was one of them. */
export function walk(event, stops) {
  const here = stops.indexOf(document.activeElement);
  const to = {
    ArrowDown: Math.min(here + 1, stops.length - 1),
    ArrowUp: Math.max(here - 1, 0),
    Home: 0,
    End: stops.length - 1,
  }[event.key];
  if (to === undefined || stops.length === 0) return false;
  event.preventDefault();
  stops[to].focus();
  return true;
}

/** Says something in passing, with an action where there is one: `[label, act]`. */
export function passNote(text, action) {
  const note = make("div", { class: "note" }, make("span", { text }));
  const end = () => note.remove();
  if (action) {
    const onclick = () => {
      end();
      action[1]();
    };
    note.append(make("button", { type: "button", text: action[0], onclick }));
  }
  at("notes").replaceChildren(note);
  setTimeout(end, action ? 10_000 : 4_000);
}

/** Says something to those who listen and do not look. */
export function announce(text) {
  at("status").textContent = text;
}

/** Puts a text on the clipboard; browsers keep their clipboard from pages that come without TLS. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = make("textarea", { class: "hidden" });
    field.value = text;
    document.body.append(field);
    field.select();
    const copied = document.execCommand("copy");
    field.remove();
    if (!copied)
      return passNote("The browser does not let the page copy: select the text instead.");
  }
  announce("Copied.");
}

/** Shows for a moment that a button has done its work. */
export function showDone(button) {
  const before = [...button.childNodes];
  if (button.dataset.done) return;
  button.dataset.done = "yes";
  button.replaceChildren(icon("check"));
  setTimeout(() => {
    button.replaceChildren(...before);
    delete button.dataset.done;
  }, 1500);
}

/** Hands a file to the browser's downloads. */
export function saveFile(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/**
 * Small things kept beside conversations: drafts, defaults, how the page looks. A full store keeps
 * what it has.
 */
export const kept = {
  get: (name) => {
    try {
      return localStorage.getItem(`forerun.${name}`);
    } catch {
      return null;
    }
  },
  set: (name, value) => {
    try {
      if (value) localStorage.setItem(`forerun.${name}`, value);
      else localStorage.removeItem(`forerun.${name}`);
    } catch {
      // What was typed is still in its field.
    }
  },
};

export const count = (number) => number.toLocaleString("en");
