// The list of nodes, what is wrong first, and one node in full.

import { byId, h, badge, prose, setText, agoText, clockText, isSilent, lossText, nowText, pathText, roundTripText, rttText, silenceText, timeElement, ORDER, WORDS } from "./dom.js";
import { barText, dayBar, paintBar } from "./bars.js";
import { drawChart } from "./charts.js";
import { needsALook } from "./summary.js";

const CONDITION_KINDS = { True: "ok", False: "trouble", Unknown: "info" };
const REFETCH_MS = 1000;
const COPIED_MS = 2000;
const DOMAIN = "edgelink.internal";
const MOST_WAITED_MS = 10000; // a connection may be dead without a word

export class Nodes {
  constructor(onSelect) {
    this.onSelect = onSelect;
    this.rows = new Map();
    this.order = [];
    this.shown = null; // id of the node that is shown in full
    this.only = "all";
    this.words = "";
    this.list = byId("node-list");
    this.list.addEventListener("click", (event) => {
      const row = event.target.closest("button");
      if (row) this.show(row.dataset.id);
    });
    for (const button of document.querySelectorAll("[data-filter]")) {
      button.addEventListener("click", () => this.filter(button.dataset.filter));
    }
    byId("search").addEventListener("input", (event) => {
      this.words = event.target.value.trim().toLowerCase();
      this.arrange();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.shown) this.back();
    });
    setInterval(() => this.shown && this.fetchDetails(), 5000);
  }

  filter(only) {
    this.only = only;
    for (const button of document.querySelectorAll("[data-filter]")) {
      button.setAttribute("aria-pressed", String(button.dataset.filter === only));
    }
    if (this.shown) this.back();
    this.arrange();
    byId("nodes-card").scrollIntoView({ block: "nearest" });
  }

  touched(ids) {
    if (this.shown && ids.includes(this.shown)) this.fetchDetails();
  }

  draw(state, changed) {
    this.state = state;
    if (changed.has("nodes")) {
      for (const [id, row] of this.rows) {
        if (state.nodes[id]) continue;
        row.item.remove();
        this.rows.delete(id);
      }
    }
    if (changed.has("nodes") || changed.has("measures")) {
      for (const node of Object.values(state.nodes)) this.drawRow(node, state.measures[node.node_id]);
    }
    else if (changed.has("tick")) {
      for (const node of Object.values(state.nodes)) if (node.health === "paused") this.drawRow(node, state.measures[node.node_id]);
    }
    if (changed.has("bars")) for (const [id, row] of this.rows) paintBar(row.bar, state.bars[id]);
    if (changed.has("nodes")) this.arrange();
    if (this.shown && !state.nodes[this.shown]) this.back();
    if (this.shown && ["nodes", "measures", "bars", "tick"].some((each) => changed.has(each))) this.drawNode();
  }

  drawRow(node, measure) {
    let row = this.rows.get(node.node_id);
    if (!row) {
      row = makeRow(node.node_id);
      this.rows.set(node.node_id, row);
    }
    if (row.node !== node) {
      row.node = node;
      row.text = [node.hostname, node.overlay_ip, node.brief, node.via, node.role, ...Object.entries(node.labels).map((each) => each.join("="))].join(" ").toLowerCase();
      if (row.health !== node.health) {
        row.health = node.health;
        row.badge.replaceWith((row.badge = badge(node.health)));
      }
      setText(row.name, node.hostname);
      setText(row.hidden, `, ${WORDS[node.health]}`);
      setText(row.path, node.path === null ? "" : pathText(node));
    }
    setText(row.state, stateText(node));
    setText(row.figure, node.path === "self" || node.health === "paused" ? "" : isSilent(measure) ? "no answer" : rttText(measure?.rtt_ms) || "–");
    setText(row.loss, isSilent(measure) ? "" : lossText(measure?.loss));
  }

  arrange() {
    if (!this.state) return;
    const isWanted = (row) => (this.only === "all" || needsALook(row.node)) && row.text.includes(this.words);
    const rows = [...this.rows.values()].filter(isWanted).sort(byTrouble);
    const order = rows.map((row) => row.node.node_id);
    byId("node-list-empty").hidden = order.length > 0;
    setText(byId("nodes-title"), this.only === "all" && !this.words ? `Nodes (${order.length})` : `Nodes (${order.length} of ${this.rows.size})`);
    if (order.length === this.order.length && order.every((id, index) => id === this.order[index])) return;
    this.order = order;
    const focused = document.activeElement;
    let next = this.list.firstElementChild; // of five hundred only those move that have to
    for (const { item } of rows) {
      if (item === next) next = next.nextElementSibling;
      else this.list.insertBefore(item, next);
    }
    while (next) {
      const last = next;
      next = next.nextElementSibling;
      last.remove();
    }
    if (focused !== document.activeElement && this.list.contains(focused)) focused.focus({ preventScroll: true });
  }

  show(id, { scroll = false } = {}) {
    if (!this.state?.nodes[id]) return;
    this.cameFrom = document.activeElement;
    this.shown = id;
    this.details = null;
    this.drawn = "";
    byId("node-list-view").hidden = true;
    byId("node-view").hidden = false;
    this.onSelect(id);
    this.drawNode();
    this.fetchDetails();
    const panel = byId("nodes-card");
    panel.focus({ preventScroll: true });
    if (scroll) panel.scrollIntoView({ block: "nearest", behavior: reducedMotion() ? "auto" : "smooth" });
  }

  back() {
    const id = this.shown;
    this.shown = null;
    byId("node-list-view").hidden = false;
    byId("node-view").hidden = true;
    this.onSelect(null);
    (this.rows.get(id)?.button ?? byId("nodes-card")).focus({ preventScroll: true });
  }

  async fetchDetails() {
    const id = this.shown;
    const now = performance.now();
    if (this.fetching || now - (this.fetchedAt ?? -REFETCH_MS) < REFETCH_MS / 4) {
      this.again ??= setTimeout(() => { this.again = null; if (this.shown === id) this.fetchDetails(); }, REFETCH_MS / 4);
      return;
    }
    this.fetching = true;
    this.fetchedAt = now;
    try {
      const answer = await fetch(`api/nodes/${encodeURIComponent(id)}`, { cache: "no-store", signal: AbortSignal.timeout(MOST_WAITED_MS) });
      if (answer.ok && this.shown === id) {
        this.details = await answer.json();
        this.drawNode();
      }
    } catch {
      // The head is away: what was shown stays, and the corner says that it is old.
    } finally {
      this.fetching = false;
    }
  }

  drawNode() {
    const node = this.state.nodes[this.shown];
    const measure = this.state.measures[this.shown];
    const bar = this.state.bars[this.shown];
    const how = node.health === "paused" ? silenceText(node) : `${node.since ? `${agoText(node.since)} · ` : ""}${node.brief}`;
    const drawn = JSON.stringify([node, measure, bar, how, this.copied, this.details]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const view = byId("node-view");
    const hadFocus = view.contains(document.activeElement);
    view.replaceChildren(
      h("div", { class: "node-head" },
        h("button", { type: "button", class: "back", onclick: () => this.back() }, "← All nodes"),
        h("h2", {}, badge(node.health), node.hostname),
        h("p", { class: "muted" }, `${WORDS[node.health]}, ${how}`)),
      ...(node.wrong.length ? [h("ul", { class: "wrong" }, node.wrong.map((text) => h("li", { class: node.health }, prose(text))))] : []),
      ...(node.path === "self" ? [] : [h("h3", {}, "From the head"), this.commands(node)]),
      h("h3", {}, "The last 24 hours"),
      dayBar(bar, "tall"),
      h("p", { class: "muted small" }, barText(bar)),
      facts(node, measure),
      h("h3", {}, "Round trip from the head"),
      h("div", { class: "chart small", id: "node-rtt" }),
      h("h3", {}, node.health === "away" ? "Conditions, as it stated them last" : "Conditions"),
      this.conditions(),
      h("h3", {}, "What changed"),
      this.history(),
    );
    if (hadFocus) view.querySelector(".back").focus({ preventScroll: true });
    const points = (this.details?.rtts ?? []).map(([at, rtt]) => [at * 1000, rtt]);
    drawChart(byId("node-rtt"), [{ name: "round trip", class: "first", points }], {
      xText: clockText,
      isTime: true,
      yText: (value) => `${Number(value.toPrecision(2))} ms`,
      label: `Round trips to ${node.hostname}`,
      fromZero: true,
      empty: node.path === "self" ? "This is the head." : "Not measured yet.",
    });
  }

  conditions() {
    if (!this.details) return h("p", { class: "empty" }, "…");
    if (!this.details.conditions.length) return h("p", { class: "empty" }, "It has not told any.");
    return h("ul", { class: "conditions" }, this.details.conditions.map((each) => h("li", {},
      badge(conditionKind(each)),
      h("div", {}, h("strong", {}, each.type), h("span", { class: "hidden" }, `: ${each.status}`), " ",
        h("span", { class: "muted" }, each.since ? agoText(each.since) : ""),
        h("p", {}, prose(`${each.reason}: ${each.message}`))))));
  }

  // Ready to be copied: into a terminal there.
  commands(node) {
    const found = [`ssh ${node.hostname}.${DOMAIN}`, `edgelink ping ${node.hostname}`];
    if (node.node_rank !== null) found.push(`sudo edgelink logs --ray ${node.hostname}`);
    return h("ul", { class: "commands" }, found.map((command) => h("li", {},
      h("code", {}, command),
      h("button", { type: "button", "aria-label": `Copy: ${command}`, onclick: () => this.copy(command) }, this.copied === command ? "Copied" : "Copy"))));
  }

  async copy(command) {
    await intoClipboard(command);
    this.copied = command;
    this.drawNode();
    setTimeout(() => {
      this.copied = null;
      if (this.shown) this.drawNode();
    }, COPIED_MS);
  }

  history() {
    const found = (this.details?.changes ?? []).slice().reverse();
    if (!found.length) return h("p", { class: "empty" }, "Nothing since the head’s daemon started.");
    return h("ol", { class: "history" }, found.map((each) => h("li", {},
      timeElement(each.at), badge(conditionKind(each)),
      h("span", {}, h("strong", {}, each.type), " ", prose(`${each.reason}: ${each.message}`)))));
  }
}

function makeRow(id) {
  const row = { badge: badge("ok"), name: h("strong"), hidden: h("span", { class: "hidden" }), state: h("span", { class: "state" }), bar: dayBar(), path: h("span", { class: "path" }), figure: h("span", { class: "rtt" }), loss: h("span", { class: "loss" }) };
  row.button = h("button", { type: "button", dataset: { id } },
    row.badge,
    h("span", { class: "who" }, h("span", { class: "name" }, row.name, row.hidden), row.state),
    h("span", { class: "way" }, row.figure, row.loss, row.path),
    row.bar);
  row.item = h("li", {}, row.button);
  return row;
}

function stateText(node) {
  if (node.health === "ok") return roleText(node);
  if (node.health === "paused") return silenceText(node);
  return node.health === "coming" ? node.brief : (node.wrong[0] ?? node.brief).replaceAll("`", "");
}

// Also where the page is not served by a secure name: there browsers have no clipboard for scripts.
async function intoClipboard(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = h("textarea", { class: "hidden" });
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
}

function byTrouble(a, b) {
  return ORDER[a.node.health] - ORDER[b.node.health]
    || (a.node.node_rank ?? -1) - (b.node.node_rank ?? -1)
    || (a.node.hostname < b.node.hostname ? -1 : 1);
}

function roleText(node) {
  const parts = [node.node_rank === null ? (node.is_relay ? "relay" : node.brief) : `rank ${node.node_rank}`];
  if (node.role === "head") parts.unshift("head");
  if (node.gpus) parts.push(`${node.gpus} GPU`);
  if (node.placed.length) parts.push(node.placed.map((each) => each.component).join(", "));
  return parts.join(" · ");
}

function facts(node, measure) {
  const isInRay = ["ok", "warning", "paused"].includes(node.health);
  const versions = Object.entries(node.versions).filter(([, version]) => version).map((each) => each.join(" "));
  const rows = [
    ["Overlay address", node.overlay_ip],
    ["Node rank", node.node_rank === null ? "none" : String(node.node_rank)],
    ["Path", pathText(node)],
    ["Round trip", roundTripText(measure) || "–"],
    ["Link carries", measure?.received_now || measure?.sent_now ? `${nowText(measure.received_now)} from it, ${nowText(measure.sent_now)} to it` : null],
    ["Link carried", measure?.received || measure?.sent ? `${measure.received ?? "–"} from it, ${measure.sent ?? "–"} to it` : null],
    ["Ray has", node.node_rank === null || !isInRay ? null : `${node.cpus} CPU, ${node.gpus} GPU`],
    [isInRay ? "Runs here" : "Is to run here", node.placed.map((each) => `${each.component} × ${each.processes}`).join(", ") || null],
    ["Labels", Object.entries(node.labels).map((each) => each.join("=")).join(", ") || null],
    ["Open to other nodes", node.open_ports.join(", ") || null],
    ["Versions", versions.join(", ") || null],
    ["Node id", node.node_id],
  ];
  return h("dl", { class: "facts" }, rows.filter(([, value]) => value).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

const reducedMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

// That no run is in progress is no trouble.
const conditionKind = (each) => (each.type === "DriverRunning" && each.status === "False" ? "info" : CONDITION_KINDS[each.status]);
