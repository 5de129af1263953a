// Text of a model becomes elements. It is not trusted: elements are made one by one from tokens,
// what the model wrote is only ever put in as text, and links lead nowhere but http, https and
// mailto.
//
// While an answer is written only its end is drawn again: a block that two others follow has
// settled.

import hljs from "./vendor/highlight.min.js";
import { parseMarkdown, safeLink } from "./markdown.js";
import { icon, make } from "./parts.js";

/** Code of more characters is not coloured, and while it is written of so many. */
const MOST_COLOURED = 200_000;
const MOST_COLOURED_LIVE = 6_000;

/** A text that is being drawn, and which of its characters were drafted: from, to, from, to … */
class Source {
  constructor(text, tints) {
    this.text = text;
    this.tints = tints;
    this.cursor = 0;
    this.end = text.length;
  }

  /** From here to there is drawn next. */
  within(from, to) {
    [this.cursor, this.end] = [from, to];
  }

  /**
   * Puts a text into `parent`. Its lines are looked for in the source, because their marks are
   * gone.
   */
  put(parent, shown) {
    if (this.tints.length === 0) return parent.append(shown);
    for (const line of shown.split(/(?<=\n)/)) {
      const words = line.endsWith("\n") ? line.slice(0, -1) : line;
      const found = this.text.indexOf(words, this.cursor);
      if (found < 0 || found + words.length > this.end) {
        parent.append(line);
        continue;
      }
      this.tint(parent, found, found + words.length);
      this.cursor = found + words.length;
      if (words !== line) parent.append("\n");
    }
  }

  tint(parent, from, to) {
    let at = from;
    for (let i = this.firstAfter(from); i < this.tints.length && this.tints[i] < to; i += 2) {
      const [start, end] = [Math.max(this.tints[i], from), Math.min(this.tints[i + 1], to)];
      if (start > at) parent.append(this.text.slice(at, start));
      // Words are tinted, the spaces between them are not.
      for (const part of this.text.slice(start, end).split(/(\s+)/)) {
        if (part === "") continue;
        parent.append(/\s/.test(part[0]) ? part : make("span", { class: "drafted", text: part }));
      }
      at = end;
    }
    if (at < to) parent.append(this.text.slice(at, to));
  }

  /** The first tint that ends after `place`. */
  firstAfter(place) {
    let [low, high] = [0, this.tints.length / 2];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.tints[2 * middle + 1] <= place) low = middle + 1;
      else high = middle;
    }
    return 2 * low;
  }
}

/** Draws a text into a place of the page, again and again as it grows. */
export class Prose {
  constructor(place) {
    this.place = place;
    /** Characters and elements that have settled. */
    this.settled = 0;
    this.kept = 0;
    /** Long code that is being written: where it begins, its element and what that shows. */
    this.code = null;
  }

  draw(text, tints = [], isWhole = true) {
    if (text.includes("\r")) {
      text = text.replace(/\r\n?/g, "\n");
      tints = [];
    }
    // A link may be defined anywhere, so the last drawing is one of everything.
    if (isWhole && /^ {0,3}\[[^\]\n]+\]:/m.test(text)) this.settled = this.kept = 0;
    const source = new Source(text, tints);
    const [from, blocks] = [this.settled, blocksOf(text.slice(this.settled))];
    if (!isWhole && this.extendCode(blocks, from, source)) return;
    const drawn = document.createDocumentFragment();
    const ends = [];
    for (const { start, end, tokens } of blocks) {
      source.within(from + start, from + end);
      drawn.append(block(tokens, source, isWhole || ends.length + 1 < blocks.length));
      ends.push(from + end);
    }
    while (this.place.childNodes.length > this.kept) this.place.lastChild.remove();
    this.place.append(drawn);
    if (isWhole) return;
    if (blocks.length > 2) {
      this.settled = ends[blocks.length - 3];
      this.kept += blocks.length - 2;
    }
    const last = blocks.at(-1);
    const shown = last && longCode(last);
    this.code = shown
      ? {
          start: from + last.start,
          inner: this.place.querySelector(":scope > :last-child code"),
          shown,
        }
      : null;
  }

  /** Adds to long code what has come since; whether that was all there was to draw. */
  extendCode(blocks, from, source) {
    const last = blocks.at(-1);
    const text = last && longCode(last);
    const { start, inner, shown } = this.code ?? {};
    if (!text || start !== from + last.start || !text.startsWith(shown)) return false;
    // The code begins after the line that opens it.
    source.within(source.text.indexOf("\n", start) + 1 + shown.length, from + last.end);
    source.put(inner, text.slice(shown.length));
    this.code.shown = text;
    return true;
  }
}

/** The text of a block that is code, too long to be coloured while it is written. */
function longCode({ tokens: [token] }) {
  const text = token.type === "fence" ? token.content.replace(/\n$/, "") : "";
  return text.length > MOST_COLOURED_LIVE ? text : "";
}

/** The outermost blocks of a text: where they begin and end in it, and their tokens. */
function blocksOf(text) {
  const lines = [0];
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) lines.push(at + 1);
  const blocks = [];
  let open = [];
  for (const token of parseMarkdown(text)) {
    open.push(token);
    if (token.level > 0 || token.nesting > 0) continue;
    const [first, last] = open[0].map ?? [0, lines.length];
    blocks.push({ start: lines[first], end: lines[last] ?? text.length, tokens: open });
    open = [];
  }
  return blocks;
}

/** The element of one outermost block. */
function block(tokens, source, isWhole) {
  const root = document.createDocumentFragment();
  const stack = [root];
  for (const token of tokens) {
    const parent = stack.at(-1);
    if (token.type === "inline") inline(token.children, parent, source);
    else if (token.type === "fence" || token.type === "code_block")
      parent.append(code(token, source, isWhole));
    else if (token.type === "math_block")
      source.put(parent.appendChild(make("p", { class: "math" })), token.content);
    else if (token.type === "hr") parent.append(make("hr"));
    else if (token.nesting > 0) stack.push(opened(token, parent));
    else if (token.nesting < 0) stack.pop();
    else source.put(parent, token.content);
  }
  return root;
}

const BLOCK_TAGS = new Set(
  "p h1 h2 h3 h4 h5 h6 blockquote ul ol li table thead tbody tr th td".split(" "),
);

function opened(token, parent) {
  // Items of a tight list are no paragraphs.
  if (token.hidden) return parent;
  const made = make(BLOCK_TAGS.has(token.tag) ? token.tag : "div");
  if (token.tag === "ol") made.start = Number(token.attrGet("start") ?? 1);
  const align = /text-align:(left|right|center)/.exec(token.attrGet("style") ?? "");
  if (align) made.className = align[1];
  if (token.tag === "table") parent.append(make("div", { class: "table", tabindex: "0" }, made));
  else parent.append(made);
  return made;
}

function inline(tokens, place, source) {
  const stack = [place];
  for (const token of tokens) {
    const parent = stack.at(-1);
    const into = (name, traits) => parent.appendChild(make(name, traits));
    if (token.type === "softbreak" || token.type === "hardbreak") into("br");
    else if (token.type === "code_inline") source.put(into("code"), token.content);
    else if (token.type === "math") source.put(into("span", { class: "math" }), token.content);
    else if (token.type === "image") image(token, parent, source);
    else if (token.type === "link_open") stack.push(into(...linkTo(token.attrGet("href"))));
    else if (token.type.endsWith("_open"))
      stack.push(into(["em", "strong", "s"].find((tag) => tag === token.tag) ?? "span"));
    else if (token.nesting < 0) stack.pop();
    else source.put(parent, token.content);
  }
}

function linkTo(href) {
  const safe = safeLink(href ?? "");
  if (!safe) return ["span"];
  return ["a", { href: safe, target: "_blank", rel: "noopener noreferrer nofollow" }];
}

/** Pictures from elsewhere are not loaded: their place has a link. */
function image(token, parent, source) {
  const [name, traits] = linkTo(token.attrGet("src"));
  source.put(parent.appendChild(make(name, traits)), token.content || "image");
}

/** A block of code, with its language and a button that copies it. */
function code(token, source, isWhole) {
  const language = (token.info ?? "")
    .trim()
    .split(/[\s{,]/, 1)[0]
    .slice(0, 24);
  const text = token.content.replace(/\n$/, "");
  const inner = make("code");
  const most = isWhole ? MOST_COLOURED : MOST_COLOURED_LIVE;
  if (language && text.length <= most && hljs.getLanguage(language)) {
    // The tree of scopes rather than the HTML that is made of it.
    colour(
      hljs.highlight(text, { language, ignoreIllegals: true })._emitter.rootNode,
      inner,
      source,
    );
  } else {
    source.put(inner, text);
  }
  const copy = make(
    "button",
    { type: "button", class: "quiet copy", "aria-label": "Copy the code" },
    icon("copy"),
    "Copy",
  );
  const head = make("figcaption", {}, make("span", { text: language || "text" }), copy);
  return make("figure", { class: "code" }, head, make("pre", { tabindex: "0" }, inner));
}

function colour(node, parent, source) {
  for (const child of node.children) {
    if (typeof child === "string") source.put(parent, child);
    else if (!child.scope) colour(child, parent, source);
    else
      colour(
        child,
        parent.appendChild(make("span", { class: `c-${child.scope.split(".")[0]}` })),
        source,
      );
  }
}
