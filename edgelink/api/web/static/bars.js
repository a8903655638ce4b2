// How a node was in the last day: a strip of colours, and the same in words.

import { h, clockText, spanText, WORDS } from "./dom.js";

const STEP_S = 600;
const STEPS = 144;
const KINDS = { o: "ok", f: "off", c: "coming", w: "warning", p: "paused", t: "trouble", a: "away" };
const TOLD = ["paused", "trouble", "away"];
const MOST_TOLD = 4;

// Beside its words, or where there are five hundred of them: seen only.
export function dayBar(bar, more = "") {
  const element = h("span", { class: `day ${more}`, "aria-hidden": "true" });
  paintBar(element, bar);
  return element;
}

export function paintBar(element, bar) {
  const key = JSON.stringify(bar ?? null);
  if (element.dataset.key === key) return;
  element.dataset.key = key;
  const stops = stretches(bar).map(({ kind, first, end }) => `var(--bar-${kind ?? "none"}) ${share(first)} ${share(end)}`);
  element.style.backgroundImage = stops.length ? `linear-gradient(to right, ${stops.join(", ")})` : "none";
  element.title = barText(bar);
}

// Equal steps that are beside each other; the newest ends at STEPS.
export function stretches(bar) {
  const found = [];
  const marks = (bar?.marks ?? "").padStart(STEPS);
  for (let index = 0; index < STEPS; index += 1) {
    const kind = KINDS[marks[index]] ?? null;
    if (found.length && found.at(-1).kind === kind) found.at(-1).end = index + 1;
    else found.push({ kind, first: index, end: index + 1 });
  }
  return found;
}

export function barText(bar) {
  const known = stretches(bar).filter(({ kind }) => kind !== null);
  if (!known.length) return "Not known yet.";
  const steps = known.reduce((sum, { first, end }) => sum + end - first, 0);
  const about = steps < STEPS ? ` (${spanText(steps * STEP_S)} of them known)` : "";
  const bad = known.filter(({ kind }) => TOLD.includes(kind));
  if (!bad.length) return `The last 24 h${about}: no outage.`;
  const told = bad.slice(-MOST_TOLD).map(({ kind, first }) => `${WORDS[kind]} about ${clockText(1000 * STEP_S * (bar.step + 1 - STEPS + first))}`);
  const more = bad.length - told.length;
  return `The last 24 h${about}: ${more > 0 ? `${more} more, then ` : ""}${told.join(", ")}.`;
}

const share = (step) => `${((100 * step) / STEPS).toFixed(2)}%`;
