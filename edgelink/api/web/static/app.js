// Log in, follow the head's events, and hand each change to the parts of the page.

import { byId, h, badge, plural, prose, setNow, setText, silenceText, ORDER } from "./dom.js";
import { NodeMap } from "./map.js";
import { Nodes } from "./nodes.js";
import { Panels } from "./panels.js";
import { figuresOf, needsALook, verdictOf } from "./summary.js";

const LISTS = ["events", "points", "traffic"];
const TABLES = ["nodes", "measures", "bars", "outages"];
const MOST_SHOWN = 6;
const MAP_FROM = 8; // nodes: fewer are seen in the list at a glance, and the map is folded
const [FIRST_WAIT_MS, MOST_WAIT_MS] = [250, 4000];
const MOST_SILENT_MS = 40000; // the head says something every 15 s: after that, what is shown is old

const ORDERS = {
  map: ["map", "nodes", "run", "placement", "traffic", "events"],
  run: ["run", "nodes", "traffic", "events", "placement", "map"],
  idle: ["nodes", "events", "traffic", "run", "placement", "map"],
};

let state = null;
let parts = null;
let isDrawing = false;
let isPainted = false;
let changed = new Set();
let isMapFolded = null; // as this page has it, until somebody unfolds it

// What the head said instead of an answer, in words for a person.
class Refusal extends Error {
  static async of(answer) {
    const { error } = await answer.json().catch(() => ({ error: `it said ${answer.status}` }));
    return new Refusal(`${error[0].toUpperCase()}${error.slice(1)}.`);
  }
}

const linkInAddress = () => new URLSearchParams(location.hash.slice(1)).get("link");

async function start() {
  const link = linkInAddress();
  for (let wait = FIRST_WAIT_MS; ; wait = longer(wait)) {
    try {
      const why = link === null ? await isLoggedIn() : await logIn(link);
      if (why !== null) return showLogin(...why);
      break;
    } catch (error) {
      showAway(error, link === null ? "" : " Your link is kept.");
      await pause(wait);
    }
  }
  await follow();
}

// Null where somebody is logged in; else what to say. Throws while the head does not answer.
async function isLoggedIn() {
  const answer = await fetch("api/session", { cache: "no-store", signal: AbortSignal.timeout(MOST_SILENT_MS) });
  if (!answer.ok) throw await Refusal.of(answer);
  return (await answer.json()).logged_in ? null : ["Log in", ""];
}

// The link stays in the address until the head has answered: a reload tries again, too.
async function logIn(link) {
  const answer = await fetch("api/login", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ link }),
    signal: AbortSignal.timeout(MOST_SILENT_MS),
  });
  if (answer.status >= 500) throw await Refusal.of(answer);
  history.replaceState(null, "", location.pathname);
  return answer.ok ? null : ["This link does not work", (await Refusal.of(answer)).message];
}

function showAway(error, more = "") {
  showLive("away", "Reconnecting");
  const why = error instanceof Refusal ? error.message : state === null ? "The head does not answer." : null;
  if (why !== null) showNotice(`${why} This page tries again by itself.${more}`, "away");
  else hideNotice("away");
}

function showNotice(text, kind) {
  const notice = byId("notice");
  notice.dataset.kind = kind;
  notice.hidden = false;
  setText(notice, text);
}

function hideNotice(kind) {
  const notice = byId("notice");
  if (notice.dataset.kind === kind) notice.hidden = true;
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const longer = (wait) => Math.min(wait * 2, MOST_WAIT_MS);

function showLogin(title, why) {
  state = null;
  hideNotice("away");
  setText(byId("login-title"), title);
  setText(byId("login-why"), why);
  byId("login").hidden = false;
  byId("page").hidden = true;
  byId("log-out").hidden = true;
  byId("ray-dashboard").hidden = true;
  setText(byId("verdict"), "");
  setText(byId("countdown"), "");
  showLive("off", "Not logged in");
}

function showLive(kind, text) {
  const live = byId("live");
  live.dataset.state = kind;
  setText(live, text);
}

// One request that the head answers for as long as it lasts; then another one.
async function follow() {
  for (let wait = FIRST_WAIT_MS; ; wait = longer(wait)) {
    const ending = new AbortController();
    let silence = null;
    const heard = () => {
      clearTimeout(silence);
      silence = setTimeout(() => ending.abort(), MOST_SILENT_MS);
    };
    try {
      heard();
      const answer = await fetch("api/events", { cache: "no-store", signal: ending.signal });
      if (answer.status === 401) return showLogin("Your session has ended", "");
      setNow(answer.headers.get("Date"));
      if (!answer.ok) throw await Refusal.of(answer);
      wait = FIRST_WAIT_MS;
      await readEvents(answer.body.getReader(), heard);
      showAway(null);
    } catch (error) {
      showAway(error);
    } finally {
      clearTimeout(silence);
    }
    await pause(wait);
  }
}

async function readEvents(reader, heard) {
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    heard();
    text += decoder.decode(value, { stream: true });
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      const message = text.slice(0, end);
      text = text.slice(end + 2);
      const lines = message.split("\n");
      const kind = lines.find((line) => line.startsWith("event: "))?.slice(7);
      const data = lines.find((line) => line.startsWith("data: "))?.slice(6);
      if (kind && data) take(kind, JSON.parse(data));
    }
  }
}

function take(kind, content) {
  if (kind === "snapshot") {
    state = content;
    changed = new Set([...Object.keys(content), "all"]);
  } else if (kind === "changes" && state !== null) {
    apply(content);
  }
  showLive("on", "Live");
  hideNotice("away");
  if (state === null) return;
  nameTab();
  draw();
}

// At once: of a tab that nobody looks at nothing is drawn, and its title is all that is seen.
function nameTab() {
  const { head, nodes } = state;
  const broken = Object.values(nodes).filter((node) => needsALook(node) && node.health !== "warning").length;
  document.title = `${broken ? `(${broken}) ` : ""}${head.hostname} · EdgeLink`;
}

function apply(found) {
  for (const [name, change] of Object.entries(found)) {
    changed.add(name);
    if (TABLES.includes(name)) {
      for (const key of change.gone) delete state[name][key];
      Object.assign(state[name], change.set);
      if (name === "nodes") parts?.nodes.touched(Object.keys(change.set));
    } else if (LISTS.includes(name) && change.all === undefined) {
      state[name] = state[name].filter((item) => item.n >= change.first).concat(change.add);
    } else {
      state[name] = LISTS.includes(name) ? change.all : change;
    }
  }
}

function draw() {
  if (isDrawing) return;
  isDrawing = true;
  requestAnimationFrame(() => {
    isDrawing = false;
    if (state === null) return;
    byId("login").hidden = true;
    byId("page").hidden = false;
    byId("log-out").hidden = false;
    parts ??= makeParts();
    const now = changed;
    changed = new Set();
    drawHead();
    arrange();
    parts.map.draw(state, now);
    parts.nodes.draw(state, now);
    parts.panels.draw(state, now);
    if (!isPainted) {
      isPainted = true;
      requestAnimationFrame(() => setTimeout(() => performance.mark("edgelink-painted"), 0));
    }
  });
}

function makeParts() {
  const nodes = new Nodes((id) => map.select(id));
  const map = new NodeMap(byId("map"), (id) => nodes.show(id, { scroll: true }));
  return { nodes, map, panels: new Panels((id) => nodes.show(id, { scroll: true })) };
}

function drawHead() {
  const { head } = state;
  setText(byId("network"), head.hostname);
  drawVerdict();
  drawAttention(head, Object.values(state.nodes).filter(needsALook).sort((a, b) => ORDER[a.health] - ORDER[b.health]));
  drawRayDashboard(head);
  const figures = figuresOf(state);
  const box = byId("figures");
  const names = figures.map(([name]) => name).join();
  if (box.dataset.names !== names) {
    box.dataset.names = names;
    box.replaceChildren(...figures.map(([name]) => h("div", {}, h("dt", {}, name), h("dd", {}, h("b"), h("span")))));
  }
  figures.forEach(([, figure, more], index) => {
    setText(box.children[index].querySelector("b"), figure);
    setText(box.children[index].querySelector("span"), more);
  });
}

function drawVerdict() {
  const { kind, text, more } = verdictOf(state.nodes, state.head);
  const verdict = byId("verdict");
  setText(byId("countdown"), more);
  if (verdict.dataset.text === kind + text) return;
  verdict.dataset.text = kind + text;
  verdict.replaceChildren(badge(kind), text);
}

// What is first: of a run that is on the training, of a few nodes what there is of them, of many the map.
function arrange() {
  const isSmall = Object.keys(state.nodes).length < MAP_FROM;
  const layout = state.run?.in_progress || (isSmall && state.run) ? "run" : isSmall ? "idle" : "map";
  const page = byId("page");
  const order = ORDERS[layout].map((name) => byId(`${name}-card`));
  if (order.some((card, index) => index > 0 && card.previousElementSibling !== order[index - 1])) page.append(...order);
  page.dataset.layout = layout;
  byId("placement-card").hidden = layout === "idle";
  if (isMapFolded === isSmall) return;
  isMapFolded = isSmall;
  byId("map-fold").open = !isSmall;
}

// Whom the sentence at the top counts.
function drawAttention(head, items) {
  const notes = [...head.notes];
  if (!head.is_connected) notes.unshift("The head has no session with the relay’s registry: what other nodes say of themselves is not heard.");
  if (head.waits.length) notes.unshift(`Waits: ${head.waits.join(", ")}. Goes on: ${head.goes_on.join(", ") || "nothing"}.`);
  const shown = items.slice(0, MOST_SHOWN).map((node) => [node, attentionText(node)]);
  const key = JSON.stringify([items.length, shown.map(([node, text]) => [node.node_id, node.health, text]), notes]);
  const box = byId("attention");
  if (box.dataset.key === key) return;
  box.dataset.key = key;
  box.hidden = items.length + notes.length === 0;
  box.dataset.kind = items.some((node) => !["warning", "paused"].includes(node.health)) ? "trouble" : "warning";
  const more = items.length - MOST_SHOWN;
  byId("attention-list").replaceChildren(
    ...notes.map((note) => h("li", { class: "note" }, badge("warning"), h("span", {}, prose(note)))),
    ...shown.map(([node, text]) => h("li", {},
      h("button", { type: "button", onclick: () => parts.nodes.show(node.node_id, { scroll: true }) },
        badge(node.health), h("strong", {}, node.hostname), h("span", {}, prose(text))))),
    ...(more > 0 ? [h("li", {}, h("button", { type: "button", class: "more", onclick: () => parts.nodes.filter("wrong") }, `and ${plural(more, "other")}`))] : []),
  );
}

function attentionText(node) {
  if (node.health === "paused") return `paused: ${silenceText(node)}`;
  return node.wrong[0] ?? (node.loses_full_packets ? "full packets are lost on its direct path: set a smaller overlay.mtu" : node.brief);
}

function drawRayDashboard(head) {
  const link = byId("ray-dashboard");
  const isHere = ["localhost", "127.0.0.1", "[::1]"].includes(location.hostname);
  link.hidden = !isHere; // it listens on loopback only, and `edgelink dashboard` tells the way there
  const another = location.hostname === "localhost" ? "127.0.0.1" : "localhost"; // our cookie does not go there
  if (isHere) link.href = `http://${another}:${head.ray_dashboard_port}/`;
}

// What is counted in seconds.
setInterval(() => {
  if (state === null || !Object.values(state.nodes).some((node) => node.health === "paused")) return;
  changed.add("tick");
  draw();
}, 1000);

// A new link in the same tab: another fragment alone loads nothing.
addEventListener("hashchange", () => {
  if (linkInAddress() !== null) location.reload();
});

byId("log-out").addEventListener("click", async () => {
  try {
    const answer = await fetch("api/logout", { method: "POST", signal: AbortSignal.timeout(MOST_SILENT_MS) });
    if (!answer.ok && answer.status !== 401) throw await Refusal.of(answer);
    location.reload();
  } catch (error) {
    const why = error instanceof Refusal ? error.message : "The head does not answer.";
    showNotice(`${why} You may still be logged in: try again.`, "log-out");
  }
});

await start();
