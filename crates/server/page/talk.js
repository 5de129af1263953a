// The conversation on the page: its messages, the place that is looked at, and the drawing of what
// is being written.

import { pathOf } from "./conversation.js";
import { at, copyText, make, showDone } from "./parts.js";
import { Turn } from "./turn.js";

/** So near the end the page follows what is written. */
const NEAR = 80;

/**
 * Between two drawings of an answer at least so many times the time that one took: the page stays
 * free to scroll.
 */
const REST = 3;

export class Talk {
  constructor(does) {
    this.does = does;
    this.place = at("talk");
    this.turns = new Map();
    this.follows = true;
    this.place.addEventListener("scroll", () => this.noteScroll(), { passive: true });
    at("latest").addEventListener("click", () => this.scrollToEnd());
    this.place.addEventListener("click", (event) => {
      const button = event.target.closest?.("button.copy");
      if (!button) return;
      copyText(button.closest("figure").querySelector("code").textContent);
      showDone(button);
    });
  }

  /** Shows a conversation's path. `answerOf` tells which answers are being written. */
  show(conversation, answerOf) {
    const path = pathOf(conversation);
    const before = this.turns;
    this.turns = new Map();
    const turns = path.map((node) => {
      const [known, answer] = [before.get(node.id), answerOf(node)];
      // What was drawn whole stays, but that there may be more branches now.
      const stays = known?.node === node && known.isWhole && !answer;
      const turn = stays ? known : new Turn(conversation, node, this.does);
      this.turns.set(node.id, turn);
      if (stays) turn.drawTools();
      else turn.draw(answer);
      return turn.element;
    });
    at("turns").replaceChildren(...turns);
    at("welcome").hidden = path.length > 0;
    path.forEach((node) => this.does.draft(node) && this.turns.get(node.id).edit());
    this.noteScroll();
  }

  /** Draws a message again, before the next frame of the screen and not all the time. */
  drawSoon(answer) {
    if (answer.waits) return;
    answer.waits = true;
    const rest = REST * (answer.took ?? 0) - (performance.now() - (answer.drawn ?? 0));
    const draw = () =>
      requestAnimationFrame(() => {
        answer.waits = false;
        if (answer.node.state !== "writing") return;
        const start = performance.now();
        this.draw(answer.node, answer);
        answer.drawn = performance.now();
        answer.took = answer.drawn - start;
      });
    if (rest > 16) setTimeout(draw, rest);
    else draw();
  }

  draw(node, answer) {
    this.turns.get(node.id)?.draw(answer);
    if (this.follows) this.scrollToEnd();
    else this.noteScroll();
  }

  /** Keeps the focus on the arrow that was pressed, or on the other one at the last branch. */
  focusBranch(node, label) {
    const arrows = this.turns.get(node.id)?.element.querySelectorAll(".branches :enabled") ?? [];
    ([...arrows].find((arrow) => arrow.ariaLabel === label) ?? arrows[0])?.focus();
  }

  noteScroll() {
    const { scrollHeight, scrollTop, clientHeight } = this.place;
    const left = scrollHeight - scrollTop - clientHeight;
    // What grows below does not end the following; only somebody who scrolls up does.
    if (left < NEAR) this.follows = true;
    else if (scrollTop < this.last) this.follows = false;
    this.last = scrollTop;
    at("latest").hidden = left < 2 * NEAR;
  }

  scrollToEnd() {
    this.follows = true;
    this.place.scrollTop = this.place.scrollHeight;
  }
}

/** What stands below the messages: a request for something before it can go on. */
export function showNotice(kind, ...parts) {
  const place = at("notice");
  place.hidden = parts.length === 0;
  place.dataset.kind = kind;
  place.replaceChildren(
    ...parts.map((part) => (typeof part === "string" ? make("p", { text: part }) : part)),
  );
}
