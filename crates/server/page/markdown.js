// What markdown is here: markdown-it's CommonMark with tables, without HTML, with bare links, and
// with math that is left as it was written. Only tokens are asked for, never HTML.

import "./vendor/markdown-it.min.js";

const parser = globalThis.markdownit({ html: false, linkify: true, breaks: true, maxNesting: 100 });
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });
// Links are judged where they become elements; until then every one is kept with its text.
parser.validateLink = () => true;

/**
 * Delimiters of math. Dollars hug what they hold and are followed by no digit: prices are prices.
 */
const INLINE = [
  [/\\\(/y, "\\)"],
  [/\\\[/y, "\\]"],
  [/\$\$(?=\S)/y, "$$"],
  [/\$(?=[^\s$])/y, "$"],
];

parser.inline.ruler.before("escape", "math", (state, silent) => {
  for (const [opens, closes] of INLINE) {
    opens.lastIndex = state.pos;
    if (!opens.test(state.src)) continue;
    const from = opens.lastIndex;
    const end = state.src.indexOf(closes, from);
    if (end <= from || end > state.posMax) continue;
    const after = end + closes.length;
    const isPrice =
      closes === "$" && (/\s/.test(state.src[end - 1]) || /\d/.test(state.src[after] ?? ""));
    if (isPrice || state.src.slice(from, end).includes("\n\n")) continue;
    if (!silent) state.push("math", "", 0).content = state.src.slice(state.pos, after);
    state.pos = after;
    return true;
  }
  return false;
});

/** Math in lines of its own, from `$$` or `\[` to its end. */
const BLOCKS = { $$: "$$", "\\[": "\\]" };

parser.block.ruler.before(
  "fence",
  "math",
  (state, first, last, silent) => {
    if (state.sCount[first] - state.blkIndent >= 4) return false;
    const lineOf = (line) =>
      state.src.slice(state.bMarks[line] + state.tShift[line], state.eMarks[line]);
    const closes = BLOCKS[lineOf(first).slice(0, 2)];
    if (!closes) return false;
    let line = first;
    let text = lineOf(first).slice(2);
    while (!text.trimEnd().endsWith(closes)) {
      if (text.includes(closes)) return false;
      line += 1;
      if (line >= last) return false;
      text = lineOf(line);
    }
    if (silent) return true;
    const token = state.push("math_block", "", 0);
    token.content = state.getLines(first, line + 1, state.blkIndent, false).trim();
    token.map = [first, line + 1];
    state.line = line + 1;
    return true;
  },
  { alt: ["paragraph", "blockquote", "list"] },
);

/** The tokens of a text. */
export const parseMarkdown = (text) => parser.parse(text, {});

/** Where a link may lead, or nothing. */
export function safeLink(href) {
  try {
    const url = new URL(href);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    // Relative: there is nothing here it could mean.
    return null;
  }
}
