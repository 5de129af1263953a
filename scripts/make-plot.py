#!/usr/bin/env python3
"""Draws the README's plot from runs that docs/performance.md keeps: tokens a second of one text,
by how they are proposed.

usage: scripts/make-plot.py > docs/page/rates.svg
"""

import json
import os

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RUNS = [("Qwen3.6-27B", "h200-27b"), ("Qwen3.6-35B-A3B", "h200-35b-a3b")]
LEFT, WIDTH, BAR, GAP = 250, 720, 22, 7


def rounds(name):
    """The run, and milliseconds and tokens a second of each of its rows that has both."""
    with open(os.path.join(ROOT, "docs", "runs", name + ".json")) as file:
        run = json.load(file)
    table = run["tables"]["rounds"]
    rate = table["columns"].index("tok/s")
    rows = [(row[0], row[rate]) for row in table["rows"] if row[rate] != "" and "prompt" not in row[0]]
    return run, rows


def main():
    parts, top, dates = [], 34, set()
    everything = [(title, *rounds(name)) for title, name in RUNS]
    most = max(rate for _, _, rows in everything for _, rate in rows)
    for title, run, rows in everything:
        dates.add(run["date"].split()[0])
        plain = next(rate for label, rate in rows if label == "plain decode")
        # Of each kind the one that is fastest.
        kinds = [[row for row in rows if row[0].startswith(kind)] for kind in ("plain", "chain", "tree")]
        shown = [max(kind, key=lambda row: row[1]) for kind in kinds if kind]
        about = next(part for part in run["shapes"].split("; ") if "acceptance" in part)
        about = about.replace(" imposed", " tokens a round imposed")
        parts.append(f'<text class="title" x="0" y="{top}">{title}, Q4_K_M</text>')
        parts.append(f'<text class="soft" x="{LEFT}" y="{top}">{about}</text>')
        top += 12
        for label, rate in shown:
            width = round((WIDTH - LEFT - 110) * rate / most)
            kind = "plain" if label == "plain decode" else "drafted"
            words = {"plain decode": "alone"}.get(label, label.replace(" round", " with DFlash", 1))
            times = "" if kind == "plain" else f" ({rate / plain:.1f} times)"
            middle = top + BAR - 6
            parts.append(f'<text x="{LEFT - 8}" y="{middle}" text-anchor="end">{words}</text>')
            parts.append(f'<rect class="{kind}" x="{LEFT}" y="{top}" width="{width}" height="{BAR}" rx="3"/>')
            parts.append(f'<text x="{LEFT + width + 8}" y="{middle}">{rate:.0f}{times}</text>')
            top += BAR + GAP
        top += 30
    machine = everything[0][1]["machine"].split(" (")[0]
    foot = (f"Tokens a second of one text at 1024 tokens of context on one {machine}, {max(dates)}. "
            "Weights of these shapes are random.")
    parts.append(f'<text class="soft" x="0" y="{top - 8}">{foot}</text>')
    print(f'''<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}">
<style>
text {{ font: 14px system-ui, sans-serif; fill: #333 }}
.title {{ font-weight: 600 }} .soft {{ font-size: 12px; fill: #777 }}
.plain {{ fill: #b9bfc4 }} .drafted {{ fill: #2a8578 }}
@media (prefers-color-scheme: dark) {{
  text {{ fill: #ddd }} .soft {{ fill: #999 }} .plain {{ fill: #666d73 }} .drafted {{ fill: #45b3a2 }}
}}
</style>''')
    print("\n".join(parts))
    print("</svg>")


if __name__ == "__main__":
    main()
