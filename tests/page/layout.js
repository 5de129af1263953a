// What is wrong with the page as it is laid out: a list of sentences, empty where all is well.
(() => {
  const wrong = [];
  const seen = (element) => {
    const { width, height } = element.getBoundingClientRect();
    return width > 0 && height > 0 && element.checkVisibility({ visibilityProperty: true });
  };
  const all = (selector) => [...document.querySelectorAll(selector)].filter(seen);
  const name = (element) => {
    const mark = element.id
      ? `#${element.id}`
      : `.${element.className.baseVal ?? element.className}`;
    return `${element.tagName.toLowerCase()}${mark} "${element.textContent.trim().slice(0, 20)}"`;
  };
  const box = (element) => element.getBoundingClientRect();

  // Nothing is wider than the window.
  for (const element of [
    document.documentElement,
    document.body,
    ...all("#talk, #side, #settings"),
  ]) {
    if (element.scrollWidth > element.clientWidth) wrong.push(`${name(element)} scrolls sideways`);
  }

  // Neighbours do not overlap.
  const apart = (elements) => {
    elements.forEach((a, i) =>
      elements.slice(i + 1).forEach((b) => {
        const [p, q] = [box(a), box(b)];
        const across = Math.min(p.right, q.right) - Math.max(p.left, q.left);
        const down = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
        if (across > 1 && down > 1) wrong.push(`${name(a)} and ${name(b)} overlap`);
      }),
    );
  };
  apart(all("#room > *"));
  if (!document.body.classList.contains("drawer") && !document.querySelector("dialog[open]"))
    apart(all("body > #side, body > #room"));
  for (const parent of all(
    "#side, header, #ask, #ask .row, #turns, .turn, .tools, .foot, .figures, .prose, figcaption, #list, #list li, .branches, #fields, .pair, .field, .levels, tr",
  )) {
    apart(
      [...parent.children].filter(
        (child) => seen(child) && getComputedStyle(child).position !== "absolute",
      ),
    );
  }

  // What is to be pressed or written in is in the window, or in something that scrolls to it.
  for (const element of all("button, input, textarea, select, header *, footer *")) {
    if (element.closest(".hidden, dialog:not([open])") || element.matches("option")) continue;
    const { left, right, top, bottom } = box(element);
    const scrolls = element.closest("#talk, #side nav, #settings");
    const across = left >= -1 && right <= innerWidth + 1;
    const down = scrolls || (top >= -1 && bottom <= innerHeight + 1);
    if (!across || !down) wrong.push(`${name(element)} is outside the window`);
    if (element.tagName === "BUTTON" && (right - left < 24 || bottom - top < 24))
      wrong.push(`${name(element)} is too small to press`);
  }

  // Text is not cut, but where dots say so or where it scrolls.
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const parent = node.parentElement;
    if (
      node.data.trim() === "" ||
      !seen(parent) ||
      parent.closest(".hidden, option, title, textarea")
    )
      continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const text = range.getBoundingClientRect();
    for (let holder = parent; holder && holder !== document.body; holder = holder.parentElement) {
      const style = getComputedStyle(holder);
      if (
        /auto|scroll/.test(style.overflowX + style.overflowY) ||
        style.textOverflow === "ellipsis"
      )
        break;
      if (holder.matches("#notes, .menu")) break;
      const { left, right, top, bottom } = box(holder);
      const clips = style.overflowX === "hidden" || style.overflowX === "clip";
      const beyond =
        text.left < left - 2 ||
        text.right > right + 2 ||
        (clips && (text.top < top - 2 || text.bottom > bottom + 2));
      if (beyond)
        wrong.push(`the text "${node.data.trim().slice(0, 30)}" is cut by ${name(holder)}`);
    }
  }
  return wrong;
})();
