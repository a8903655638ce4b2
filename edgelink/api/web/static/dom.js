// Small helpers: elements without markup in strings, and figures as people read them.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

// The head's time, which a browser's clock need not have.
let aheadMs = 0;
export const now = () => Date.now() + aheadMs;
export const setNow = (date) => {
  const told = Date.parse(date ?? "");
  if (Math.abs(told - Date.now()) > 2000) aheadMs = told - Date.now();
  else aheadMs = 0;
};

// Health of nodes and severity of events share four looks; each has a sign beside its colour.
export const SIGNS = { ok: "✓", info: "·", warning: "!", paused: "‖", coming: "…", trouble: "✕", away: "○", off: "–" };
export const WORDS = { ok: "works", warning: "look at it", paused: "paused", coming: "starting", trouble: "does not work", away: "away", off: "switched off" };
export const ORDER = { trouble: 0, away: 1, paused: 2, warning: 3, coming: 4, ok: 5, off: 6 };
export const NEEDS_A_LOOK = ["trouble", "away", "paused", "warning"];

export const badge = (kind) => h("span", { class: `badge ${kind}`, "aria-hidden": "true" }, SIGNS[kind]);

export function rttText(rtt) {
  if (rtt === null || rtt === undefined) return "";
  return rtt < 10 ? `${rtt.toFixed(1)} ms` : `${Math.round(rtt)} ms`;
}

export function lossText(loss) {
  if (!loss) return "";
  return `${loss < 0.1 ? (loss * 100).toFixed(1) : Math.round(loss * 100)} % lost`;
}

// Of a node that answers nothing, how many answers were lost before says nothing.
export const isSilent = (measure) => (measure?.rtt_ms ?? null) === null && (measure?.loss ?? 0) > 0;

export function roundTripText(measure) {
  return isSilent(measure) ? "no answer" : [rttText(measure?.rtt_ms), lossText(measure?.loss)].filter(Boolean).join(", ");
}

export function bytesText(bytes, unit = "B") {
  const names = ["", "k", "M", "G", "T"];
  let value = bytes;
  let power = 0;
  while (value >= 1000 && power < names.length - 1) {
    value /= 1000;
    power += 1;
  }
  const digits = power === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${Number(value.toFixed(digits))} ${names[power]}${unit}`;
}

export const rateText = (bytesPerSecond) => bytesText(bytesPerSecond * 8, "bit/s");

// What a link carries; where it is only known to be less than so much, at least a whole kbit/s.
export function nowText(rate) {
  if (!rate) return "–";
  return rate.is_less ? `< ${rateText(Math.max(rate.bytes_per_s, 125))}` : rateText(rate.bytes_per_s);
}

export function numberText(value) {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2).replace("e+", "e");
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(3)));
}

export function timeText(iso) {
  return new Date(iso).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
}

// Of a point on a chart: the seconds where there are some.
export function clockText(at) {
  const text = timeText(at);
  return text.endsWith(":00") ? text.slice(0, 5) : text;
}

export function whenText(iso, now = new Date()) {
  const at = new Date(iso);
  if (at.toDateString() === now.toDateString()) return timeText(iso);
  const year = at.getFullYear() === now.getFullYear() ? undefined : "numeric";
  return `${at.toLocaleDateString([], { day: "numeric", month: "short", year })} ${timeText(iso)}`;
}

// One that today's turn may change, and that says it all to who points at it.
export const timeElement = (iso) => h("time", { datetime: iso, title: new Date(iso).toLocaleString() }, whenText(iso));

export function agoText(iso) {
  const seconds = Math.max(0, (now() - new Date(iso).getTime()) / 1000);
  if (seconds < 10) return "just now";
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} days ago`;
}

// As far as it is worth saying: two units.
export function spanText(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const [minutes, hours] = [Math.floor(whole / 60), Math.floor(whole / 3600)];
  if (whole < 60) return `${whole} s`;
  if (hours === 0) return `${minutes} min${whole % 60 ? ` ${whole % 60} s` : ""}`;
  return `${hours} h${minutes % 60 ? ` ${minutes % 60} min` : ""}`;
}

// Of a paused node, with what its silence leads to.
export function silenceText(node, at = now()) {
  const silent = node.silent_since ? `no answer for ${spanText((at - Date.parse(node.silent_since)) / 1000)}` : "no answer";
  if (!node.given_up_at) return silent;
  const left = (Date.parse(node.given_up_at) - at) / 1000;
  return `${silent}, given up ${left > 0 ? `in ${spanText(left)}` : "at any moment"}`;
}

// Words of others, in which `this` is code.
export const prose = (text) => text.split("`").map((part, index) => (index % 2 ? h("code", {}, part) : part));

// The figure of a run that is worth most where nobody has chosen.
export const figureName = (names) => names.find((name) => /return|reward/.test(name)) ?? names[0];

export function pathText(node) {
  if (node.path === "self") return "this machine";
  if (node.path === "direct") return node.protocol ? `direct, ${node.protocol}` : "direct";
  if (node.path === "relayed") return `through ${node.via ?? "a relay"}`;
  return "path not known";
}

export const plural = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;
