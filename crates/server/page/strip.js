// A strip of bars, one a round: how many tokens were drafted, and how many of them stood.

import { drawing } from "./parts.js";

/** Bars shown, their width with the gap, and their height. */
const SHOWN = 48;
const STEP = 4;
const HEIGHT = 18;

/** Taller bars are cut: a tree may hold many more tokens than one path through it. */
const TALLEST = 16;

export class Strip {
  constructor() {
    this.drafted = drawing("path", { class: "of" });
    this.stood = drawing("path", { class: "stood" });
    const box = { height: HEIGHT, class: "strip", role: "img" };
    this.element = drawing("svg", box, this.drafted, this.stood);
    this.title = drawing("title", {});
    this.element.prepend(this.title);
  }

  /** Draws the last rounds: `[drafted, stood]` each. */
  draw(rounds) {
    const shown = rounds.slice(-SHOWN);
    const top = Math.min(Math.max(...shown.map(([drafted]) => drafted), 1), TALLEST);
    const bars = (which) => {
      const bar = (round, i) => {
        const height = Math.max((HEIGHT * Math.min(round[which], top)) / top, 1);
        return `M${i * STEP} ${HEIGHT}v${-height.toFixed(1)}h${STEP - 1}V${HEIGHT}z`;
      };
      return shown.map(bar).join("");
    };
    this.drafted.setAttribute("d", bars(0));
    this.stood.setAttribute("d", bars(1));
    this.element.setAttribute("width", shown.length * STEP);
    const last = rounds.at(-1);
    if (!last) return;
    this.title.textContent =
      `${rounds.length} rounds, the last ${shown.length} shown: a bar is what was drafted, ` +
      `its dark part what was accepted. Last round: ${last[1]} of ${last[0]}.`;
  }
}
